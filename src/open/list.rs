//! The list itself: plain memory, that knows of subtransactions by their nesting level only.

use crate::domain::decision::Fingerprint;
use crate::domain::identity::{Digest, SessionId};
use crate::domain::sequence::Range;
use crate::error::{Missing, Name};
use crate::store::session::{Session, Standing};
use std::rc::Rc;

/// A nesting level of subtransactions; the transaction itself is 1.
pub type Level = i32;

/// Which request is meant.
#[derive(Clone, Copy)]
pub struct Which<'a> {
    /// Its session's name.
    pub session: &'a str,
    /// Its stream; empty in a standing session.
    pub stream: &'a str,
    /// Its key, or its number, in canonical form.
    pub request: &'a str,
}

impl Which<'_> {
    /// For messages.
    pub fn name(&self) -> Name {
        Name::in_stream(self.session, self.stream, self.request)
    }
}

/// What the steps after begin need to know of an open request.
#[derive(Clone, Copy)]
pub struct Open {
    /// What is locked for it.
    pub lock: Digest,
    /// Where a keyed one's outcome and anyone's checkpoint is kept.
    pub digest: Digest,
    /// What a numbered one is recorded with.
    pub numbers: Option<Numbers>,
    /// Of the payload it was begun with, or of an earlier attempt's.
    pub fingerprint: Option<Fingerprint>,
    /// An expired outcome or a checkpoint is there, which the record clears away.
    pub leftovers: bool,
}

/// See [`Open`].
#[derive(Clone, Copy)]
pub struct Numbers {
    /// All of them.
    pub range: Range,
    /// Where its reply goes.
    pub slot: i32,
    /// Up to where its client said with it that it has all answers.
    pub acked: i64,
}

/// What becomes of an open request.
#[derive(Clone, Copy)]
pub enum Step {
    /// It has its outcome.
    Record,
    /// It got so far.
    Checkpoint,
    /// It was given up.
    Release,
}

/// A request of this transaction.
struct Entry {
    session: Session,
    stream: String,
    request: String,
    is: Open,
    begun: Level,
    checkpointed: Option<Level>,
}

impl Entry {
    fn is(&self, which: Which<'_>) -> bool {
        self.request == which.request && self.stream == which.stream && self.session.name() == which.session
    }

    fn name(&self) -> Name {
        Name::in_stream(self.session.name(), &self.stream, &self.request)
    }

    /// The standing session of a request whose key is not yet in canonical form.
    fn standing(&self, session: &str, request: &str) -> Option<&Rc<Standing>> {
        match &self.session {
            Session::Standing(standing) if standing.name == session => (self.request == request
                || standing.time_keys && self.request.eq_ignore_ascii_case(request))
            .then_some(standing),
            _ => None,
        }
    }
}

/// A request that was recorded or released.
struct Settled {
    entry: Entry,
    recorded: bool,
    at: Level,
}

/// The list.
#[derive(Default)]
pub struct List {
    /// Those at work: few, mostly one. They are looked through.
    open: Vec<Entry>,
    /// The others, in the order in which they were settled. A subtransaction ends before the one around it
    /// does, so the levels never fall from one to the next: what the innermost did stands at the end.
    settled: Vec<Settled>,
}

impl List {
    /// Puts a request on the list. One that was released before is open again.
    pub fn begin(&mut self, session: Session, which: Which<'_>, is: Open, level: Level) {
        let (stream, request) = (which.stream.into(), which.request.into());
        self.open.push(Entry { session, stream, request, is, begun: level, checkpointed: None });
    }

    /// Whether the request is open.
    pub fn holds(&self, which: Which<'_>) -> bool {
        self.open.iter().any(|entry| entry.is(which))
    }

    /// The request, if it is open; else what keeps it from being recorded, checkpointed or released.
    pub fn find(&self, which: Which<'_>) -> Result<Open, Missing> {
        if let Some(entry) = self.open.iter().rev().find(|entry| entry.is(which)) {
            return Ok(entry.is);
        }
        // The newest counts: a released request may have been begun and recorded again.
        match self.settled.iter().rev().find(|settled| settled.entry.is(which)) {
            Some(Settled { recorded: true, .. }) => Err(Missing::Recorded),
            Some(Settled { recorded: false, .. }) => Err(Missing::Released),
            None => Err(Missing::Begin),
        }
    }

    /// The standing session of a request, whose key is not yet in canonical form.
    pub fn standing(&self, session: &str, request: &str) -> Option<Rc<Standing>> {
        let settled = self.settled.iter().rev().map(|settled| &settled.entry);
        self.open.iter().rev().chain(settled).find_map(|entry| entry.standing(session, request)).map(Rc::clone)
    }

    /// The open request under a lock.
    pub fn under(&self, lock: &Digest) -> Option<Name> {
        self.open.iter().find(|entry| entry.is.lock == *lock).map(Entry::name)
    }

    /// The open request under a lock that has a number up to this one.
    pub fn begun_under(&self, lock: &Digest, upto: i64) -> Option<Name> {
        let begun = |is: &Open| is.lock == *lock && is.numbers.is_some_and(|numbers| numbers.range.first <= upto);
        self.open.iter().find(|entry| begun(&entry.is)).map(Entry::name)
    }

    /// Whether a request of the client session is open.
    pub fn uses(&self, id: &SessionId) -> bool {
        self.open.iter().any(|entry| matches!(&entry.session, Session::Client(client) if client.id == *id))
    }

    /// Notes what became of the request that [`List::find`] found.
    pub fn step(&mut self, which: Which<'_>, step: Step, level: Level) {
        let Some(place) = self.open.iter().rposition(|entry| entry.is(which)) else { return };
        match step {
            Step::Checkpoint => {
                let entry = &mut self.open[place];
                entry.is.leftovers = true;
                // The outermost level decides: a second checkpoint, rolled back, leaves the first standing.
                entry.checkpointed = Some(entry.checkpointed.map_or(level, |before| before.min(level)));
            }
            Step::Record | Step::Release => {
                let entry = self.open.remove(place);
                self.settled.push(Settled { entry, recorded: matches!(step, Step::Record), at: level });
            }
        }
    }

    /// The first request that a commit now would lose, and how many more there are.
    pub fn unrecorded(&self) -> Option<(Name, usize)> {
        let mut unrecorded = self.open.iter().filter(|entry| entry.checkpointed.is_none());
        let first = unrecorded.next()?;
        Some((first.name(), unrecorded.count()))
    }

    /// Undoes what happened at `level`, the innermost.
    pub fn roll_back(&mut self, level: Level) {
        while self.settled.last().is_some_and(|settled| settled.at >= level) {
            self.open.extend(self.settled.pop().map(|settled| settled.entry));
        }
        self.open.retain_mut(|entry| {
            if entry.checkpointed.is_some_and(|at| at >= level) {
                entry.checkpointed = None;
            }
            entry.begun < level
        });
    }

    /// What happened at `level` is from now on its parent's.
    pub fn hand_up(&mut self, level: Level) {
        let hand_up = |entry: &mut Entry| {
            entry.begun = entry.begun.min(level - 1);
            entry.checkpointed = entry.checkpointed.map(|at| at.min(level - 1));
        };
        self.open.iter_mut().for_each(hand_up);
        // Whatever was begun or checkpointed at this level was settled at it too.
        for settled in self.settled.iter_mut().rev().take_while(|settled| settled.at >= level) {
            settled.at = level - 1;
            hand_up(&mut settled.entry);
        }
    }

    /// At the end of the transaction.
    pub fn clear(&mut self) {
        self.open.clear();
        self.settled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const R: Which<'_> = Which { session: "", stream: "", request: "r" };

    fn which(request: &str) -> Which<'_> {
        Which { request, ..R }
    }

    fn begin(list: &mut List, request: &str, level: Level) {
        let zero = Digest([0; 16]);
        let is = Open { lock: zero, digest: zero, numbers: None, fingerprint: None, leftovers: false };
        list.begin(Session::Standing(Rc::default()), which(request), is, level);
    }

    #[test]
    fn what_was_begun_inside_leaves_the_list() {
        let mut list = List::default();
        begin(&mut list, "outside", 1);
        begin(&mut list, "inside", 2);
        list.roll_back(2);
        assert!(list.find(which("outside")).is_ok());
        assert!(matches!(list.find(which("inside")), Err(Missing::Begin)));
    }

    #[test]
    fn what_was_recorded_inside_is_open_again() {
        let mut list = List::default();
        begin(&mut list, "r", 1);
        list.step(R, Step::Record, 2);
        assert!(matches!(list.find(R), Err(Missing::Recorded)));
        list.roll_back(2);
        assert!(list.find(R).is_ok() && list.unrecorded().is_some());
    }

    #[test]
    fn what_was_recorded_outside_stays_recorded() {
        let mut list = List::default();
        begin(&mut list, "r", 1);
        list.step(R, Step::Record, 1);
        list.roll_back(2);
        assert!(list.unrecorded().is_none());
    }

    #[test]
    fn a_released_savepoint_hands_its_steps_up() {
        let mut list = List::default();
        begin(&mut list, "r", 3);
        list.step(R, Step::Record, 3);
        list.hand_up(3);
        list.roll_back(3);
        assert!(matches!(list.find(R), Err(Missing::Recorded)));
        list.roll_back(2);
        assert!(matches!(list.find(R), Err(Missing::Begin)));
    }

    /// The same in a form that cannot be wrong: all entries with all their levels, each looked at each time.
    #[derive(Default)]
    struct Model(Vec<[Option<Level>; 3]>);

    impl Model {
        fn open(&self) -> usize {
            self.0.iter().filter(|[_, _, settled]| settled.is_none()).count()
        }
        fn unrecorded(&self) -> usize {
            self.0.iter().filter(|[_, checkpointed, settled]| checkpointed.is_none() && settled.is_none()).count()
        }
    }

    proptest! {
        #[test]
        fn as_if_each_entry_were_looked_at(moves in prop::collection::vec((0u8..6, any::<prop::sample::Index>()), 1..80)) {
            let (mut list, mut model, mut level) = (List::default(), Model::default(), 1);
            for (what, at) in moves {
                match what {
                    0 => {
                        begin(&mut list, &model.0.len().to_string(), level);
                        model.0.push([Some(level), None, None]);
                    }
                    1 | 2 if !model.0.is_empty() => {
                        let at = at.index(model.0.len());
                        let name = at.to_string();
                        let [begun, checkpointed, settled] = &mut model.0[at];
                        let open = begun.is_some() && settled.is_none();
                        prop_assert_eq!(list.find(which(&name)).is_ok(), open);
                        if open && what == 1 {
                            list.step(which(&name), Step::Record, level);
                            *settled = Some(level);
                        } else if open {
                            list.step(which(&name), Step::Checkpoint, level);
                            *checkpointed = Some(checkpointed.map_or(level, |before| before.min(level)));
                        }
                    }
                    3 => level += 1,
                    4 if level > 1 => {
                        list.hand_up(level);
                        level -= 1;
                        for noted in model.0.iter_mut().flatten().flatten() {
                            *noted = (*noted).min(level);
                        }
                    }
                    5 if level > 1 => {
                        list.roll_back(level);
                        for entry in &mut model.0 {
                            for noted in entry.iter_mut().filter(|noted| noted.is_some_and(|at| at >= level)) {
                                *noted = None;
                            }
                            if entry[0].is_none() {
                                // It never was.
                                *entry = [None, None, Some(0)];
                            }
                        }
                        level -= 1;
                    }
                    _ => {}
                }
                prop_assert_eq!(list.open.len(), model.open());
                prop_assert_eq!(list.unrecorded().map_or(0, |(_, more)| more + 1), model.unrecorded());
            }
        }
    }
}
