//! One numbering, remembered whole: what was done of it, and what that makes of a request.

use std::collections::BTreeMap;

/// The names of the streams that the steps use.
pub const STREAMS: [&str; 2] = ["", "s"];

/// The first and the last number of a request.
pub type Range = (i64, i64);

/// A request that was recorded.
#[derive(Clone, Debug)]
pub struct Done {
    pub range: Range,
    /// Status and response, as a replay returns them.
    pub answer: String,
    pub payload: Option<i64>,
    /// Whether the response of the request was dropped.
    pub dropped: bool,
}

impl Done {
    pub fn covers(&self, number: i64) -> bool {
        self.range.0 <= number && number <= self.range.1
    }
}

/// A request that has a checkpoint and no outcome.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub range: Range,
    pub point: String,
    pub payload: Option<i64>,
}

/// A stream of numbers in a session.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// The recorded requests, in the order of recording.
    pub done: Vec<Done>,
    pub acked: i64,
    pub allocated: i64,
    /// Whether the stream has been stored, unlike a stream that was never used.
    pub noted: bool,
    pub checkpoints: BTreeMap<i64, Checkpoint>,
}

/// Where a request stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// The request was done, and its answer is kept. The number is its place in `done`.
    Answered(usize),
    /// The request was done or skipped, and is no longer kept.
    Discarded,
    /// The request may be executed now.
    Next,
    /// The request may never be executed, or not yet.
    OutOfSequence,
}

/// The properties of a session that never change.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub strict: bool,
    pub window: i64,
}

impl Stream {
    /// The requests whose answers are kept: the newest request of each slot, or the newest requests of a
    /// strict stream.
    pub fn kept(&self, kind: Kind) -> Vec<usize> {
        let all = 0..self.done.len();
        if kind.strict {
            return all.rev().take(kind.window as usize).collect();
        }
        all.filter(|&this| !self.done.iter().any(|other| is_over(kind, other.range.0, self.done[this].range.0)))
            .collect()
    }

    /// The place of a request that comes with an acknowledgement of all answers up to `said`.
    pub fn place(&self, kind: Kind, range: Range, said: i64) -> Place {
        let acked = self.acked.max(said);
        if range.1 <= acked {
            return Place::Discarded;
        }
        let kept = self.kept(kind);
        if let Some(&at) = kept.iter().find(|&&at| self.done[at].range == range) {
            return if self.done[at].dropped { Place::Discarded } else { Place::Answered(at) };
        }
        if kind.strict { self.place_in_line(&kept, range, acked) } else { self.place_in_window(kind, range.0, acked) }
    }

    fn place_in_window(&self, kind: Kind, number: i64, acked: i64) -> Place {
        let was_done = |number| self.done.iter().any(|done| done.range.0 == number);
        let before = number - kind.window;
        if was_done(number) || self.done.iter().any(|done| is_over(kind, done.range.0, number)) {
            Place::Discarded
        } else if before < 1 || before <= acked || was_done(before) {
            Place::Next
        } else {
            Place::OutOfSequence
        }
    }

    fn place_in_line(&self, kept: &[usize], (first, last): Range, acked: i64) -> Place {
        let next = self.done.last().map_or(0, |done| done.range.1).max(acked) + 1;
        let overlaps = |done: &Done| first <= done.range.1 && done.range.0 <= last;
        if first == next {
            Place::Next
        } else if last >= next || kept.iter().any(|&at| overlaps(&self.done[at])) {
            Place::OutOfSequence
        } else {
            Place::Discarded
        }
    }

    /// The greatest number that was done, and the number after all numbers that are known.
    pub fn position(&self, kind: Kind) -> (i64, i64) {
        let last = self.done.iter().map(|done| done.range.1).max().unwrap_or(0);
        let allocated = if kind.strict { 0 } else { self.allocated };
        (last, last.max(self.acked).max(allocated) + 1)
    }
}

/// Whether `number` has the slot of `earlier` and comes after it.
fn is_over(kind: Kind, number: i64, earlier: i64) -> bool {
    number > earlier && (number - earlier) % kind.window == 0
}
