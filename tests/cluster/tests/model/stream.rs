//! One numbering, remembered whole: what was done of it, and what that makes of a request.

use std::collections::BTreeMap;

/// First and last number of a request.
pub type Range = (i64, i64);

/// A request that was done.
#[derive(Clone, Debug)]
pub struct Done {
    pub range: Range,
    /// Status and response, as a replay gives them.
    pub answer: String,
    pub payload: Option<i64>,
    /// Its response was dropped.
    pub dropped: bool,
}

impl Done {
    pub fn covers(&self, number: i64) -> bool {
        self.range.0 <= number && number <= self.range.1
    }
}

/// A request that is on its way.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub range: Range,
    pub point: String,
    pub payload: Option<i64>,
}

/// A numbering of a session.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// In the order of recording.
    pub done: Vec<Done>,
    pub acked: i64,
    pub allocated: i64,
    /// It is told apart from streams that never were.
    pub noted: bool,
    pub checkpoints: BTreeMap<i64, Checkpoint>,
}

/// Where a request stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// Done, its answer (by its place in `done`) kept.
    Answered(usize),
    /// Done or skipped, no longer kept.
    Past,
    /// To be executed.
    Turn,
    /// Never, or not yet.
    OutOfSequence,
}

/// What never changes of a session.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub strict: bool,
    pub window: i64,
}

impl Stream {
    /// The requests whose answers are kept: of each slot the newest, or of the line the newest ones.
    pub fn kept(&self, kind: Kind) -> Vec<usize> {
        let all = 0..self.done.len();
        if kind.strict {
            return all.rev().take(kind.window as usize).collect();
        }
        all.filter(|&this| !self.done.iter().any(|other| is_over(kind, other.range.0, self.done[this].range.0)))
            .collect()
    }

    /// What becomes of a request that comes with the word that all up to `said` have their answers.
    pub fn place(&self, kind: Kind, range: Range, said: i64) -> Place {
        let acked = self.acked.max(said);
        if range.1 <= acked {
            return Place::Past;
        }
        let kept = self.kept(kind);
        if let Some(&at) = kept.iter().find(|&&at| self.done[at].range == range) {
            return if self.done[at].dropped { Place::Past } else { Place::Answered(at) };
        }
        if kind.strict { self.place_in_line(&kept, range, acked) } else { self.place_in_window(kind, range.0, acked) }
    }

    fn place_in_window(&self, kind: Kind, number: i64, acked: i64) -> Place {
        let was_done = |number| self.done.iter().any(|done| done.range.0 == number);
        let before = number - kind.window;
        if was_done(number) || self.done.iter().any(|done| is_over(kind, done.range.0, number)) {
            Place::Past
        } else if before < 1 || before <= acked || was_done(before) {
            Place::Turn
        } else {
            Place::OutOfSequence
        }
    }

    fn place_in_line(&self, kept: &[usize], (first, last): Range, acked: i64) -> Place {
        let next = self.done.last().map_or(0, |done| done.range.1).max(acked) + 1;
        let overlaps = |done: &Done| first <= done.range.1 && done.range.0 <= last;
        if first == next {
            Place::Turn
        } else if last >= next || kept.iter().any(|&at| overlaps(&self.done[at])) {
            Place::OutOfSequence
        } else {
            Place::Past
        }
    }

    /// The greatest number done, and the one after all that is known of.
    pub fn position(&self, kind: Kind) -> (i64, i64) {
        let last = self.done.iter().map(|done| done.range.1).max().unwrap_or(0);
        let allocated = if kind.strict { 0 } else { self.allocated };
        (last, last.max(self.acked).max(allocated) + 1)
    }
}

/// Whether a number's slot went from it to this one.
fn is_over(kind: Kind, number: i64, earlier: i64) -> bool {
    number > earlier && (number - earlier) % kind.window == 0
}
