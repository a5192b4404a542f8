//! The list itself. It is plain memory and knows subtransactions only by their nesting level.
//!
//! Entries stand in the order in which they were begun. The list notes every change to an entry, and at which nesting
//! level it was made. A subtransaction ends before the one around it, so the changes of the innermost one stand at the
//! end. A rollback undoes these, the last first. A release makes them the parent's. No other call goes through a long
//! list, except [`List::unrecorded`], which a commit calls once, and [`List::uses`], which the end of a client session
//! calls.
//!
//! The caller tells those who watch: it is given the place where they see an entry, or tells the list what to call.

use super::entry::{Entry, OpenRequest, RequestKey};
use super::index::{EntryIndex, SCANNED_MAX};
use crate::domain::identity::{Digest, SessionId};
use crate::error::{Missing, RequestName};
use crate::model::{Session, StandingSession};
use crate::monitor::in_flight::{Place, State};
use std::collections::TryReserveError;
use std::rc::Rc;

/// A nesting level of subtransactions; the transaction itself is 1.
pub type Level = i32;

/// A change that a rollback undoes.
enum Change {
    /// An entry was added. When that is undone, it is the last one of the list.
    Begun,
    /// The entry at this place had this state before.
    Finished(usize, State),
}

/// The list.
#[derive(Default)]
pub struct List {
    entries: Vec<Entry>,
    /// The changes, in their order, each with its level. So the levels rise.
    changes: Vec<(Level, Change)>,
    /// How many entries are open.
    open: usize,
    /// Finds entries, once there are more than a few.
    index: Option<EntryIndex>,
}

impl List {
    /// Makes room for one more request.
    pub fn reserve(&mut self) -> Result<(), TryReserveError> {
        self.entries.try_reserve(1)?;
        // It is begun, saved and recorded or released.
        self.changes.try_reserve(3)?;
        self.index.as_mut().map_or(Ok(()), EntryIndex::reserve)
    }

    /// Puts a request on the list. A request that was released before is open again.
    pub fn begin(&mut self, session: Session, key: RequestKey<'_>, open: OpenRequest, place: Place, level: Level) {
        let (stream, request) = (key.stream.into(), key.request.into());
        let entry = Entry { session, stream, request, open, state: State::Begun, place };
        match &mut self.index {
            Some(index) => index.add(&entry),
            None if self.entries.len() >= SCANNED_MAX => {
                let mut index = EntryIndex::default();
                self.entries.iter().chain([&entry]).for_each(|entry| index.add(entry));
                self.index = Some(index);
            }
            None => {}
        }
        self.entries.push(entry);
        self.open += 1;
        self.changes.push((level, Change::Begun));
    }

    /// Whether any request is open.
    pub fn has_open(&self) -> bool {
        self.open > 0
    }

    /// The request, if it is open; otherwise why it cannot be recorded, checkpointed or released.
    pub fn find(&self, key: RequestKey<'_>) -> Result<OpenRequest, Missing> {
        let (_, entry) = self.newest(key).ok_or(Missing::Begin)?;
        match entry.state {
            State::Begun | State::Saved => Ok(entry.open),
            State::Recorded => Err(Missing::Recorded),
            State::Released => Err(Missing::Released),
        }
    }

    /// The standing session of a request on the list. `request` need not be in canonical form: whether the key is a
    /// time key, only the session tells.
    pub fn standing(&self, session: &str, stream: &str, request: &str) -> Option<Rc<StandingSession>> {
        let named = |request: &str| match self.newest(RequestKey { session, stream, request }) {
            Some((_, Entry { session: Session::Standing(standing), .. })) => Some(Rc::clone(standing)),
            _ => None,
        };
        let canonical = || {
            let upper_case = request.bytes().any(|byte| byte.is_ascii_uppercase());
            let standing = upper_case.then(|| named(&request.to_ascii_lowercase())).flatten();
            standing.filter(|standing| standing.time_keys)
        };
        named(request).or_else(canonical)
    }

    /// How many locks the entries have. For a short list it is an upper bound: the number of entries.
    pub fn locks(&self) -> usize {
        self.index.as_ref().map_or(self.entries.len(), EntryIndex::locks)
    }

    /// The open request under a lock, if its number is `upto` or less. There is one at most, and it is the newest entry
    /// under the lock.
    pub fn under(&self, lock: &Digest, upto: i64) -> Option<RequestName> {
        let newest = match &self.index {
            Some(index) => index.newest_under(lock, &self.entries),
            None => self.entries.iter().rev().find(|entry| entry.open.lock == *lock),
        };
        let is_beyond = |entry: &Entry| entry.open.numbers.is_some_and(|numbers| numbers.range.first > upto);
        newest.filter(|entry| entry.is_open() && !is_beyond(entry)).map(Entry::name)
    }

    /// Whether a request of the client session is open.
    pub fn uses(&self, id: &SessionId) -> bool {
        let is_of = |entry: &Entry| matches!(&entry.session, Session::Client(session) if session.id == *id);
        self.entries.iter().any(|entry| entry.is_open() && is_of(entry))
    }

    /// Notes what becomes of the request that [`List::find`] found: that it is saved, recorded or released. Gives its place
    /// if that is a change.
    pub fn finish(&mut self, key: RequestKey<'_>, state: State, level: Level) -> Option<Place> {
        let (place, _) = self.newest(key)?;
        let entry = &mut self.entries[place];
        let before = entry.state;
        entry.open.leftovers.checkpoint |= state == State::Saved;
        // A trigger on our tables may have finished it within the very call that does so now. And to save it a second time
        // is no change: rolling that back leaves the first standing.
        if !entry.is_open() || before == state {
            return None;
        }
        self.changes.push((level, Change::Finished(place, before)));
        Some(self.set_state(place, state))
    }

    fn set_state(&mut self, place: usize, state: State) -> Place {
        let entry = &mut self.entries[place];
        self.open -= usize::from(entry.is_open());
        entry.state = state;
        self.open += usize::from(entry.is_open());
        entry.place
    }

    /// The open request that was begun last, and how many other ones are open.
    pub fn last_open(&self) -> Option<(RequestName, usize)> {
        if self.open == 0 {
            return None;
        }
        let last = self.entries.iter().rev().find(|entry| entry.is_open())?;
        Some((last.name(), self.open - 1))
    }

    /// The first request that is neither recorded, saved nor released, and the sessions of all of them, one for each.
    pub fn unrecorded(&self) -> Option<(RequestName, Vec<Session>)> {
        if self.open == 0 {
            return None;
        }
        let unrecorded = || self.entries.iter().filter(|entry| entry.state == State::Begun);
        Some((unrecorded().next()?.name(), unrecorded().map(|entry| entry.session.clone()).collect()))
    }

    /// Undoes what happened at `level`, the innermost. Tells of each entry that has another state now, and of each that was
    /// taken away, the last first.
    pub fn roll_back(&mut self, level: Level, mut tell: impl FnMut(Place, Option<State>)) {
        while let Some((_, change)) = self.changes.pop_if(|(at, _)| *at >= level) {
            #[cfg(test)]
            super::entry::count_work();
            match change {
                Change::Begun => {
                    // All other changes to the entry came later and are already undone.
                    let Some(entry) = self.entries.pop() else { return };
                    debug_assert!(entry.state == State::Begun, "an entry goes as it came");
                    tell(entry.place, None);
                    self.open -= 1;
                    if let Some(index) = &mut self.index {
                        index.remove(&entry);
                    }
                }
                Change::Finished(place, before) => tell(self.set_state(place, before), Some(before)),
            }
        }
    }

    /// Makes what happened at `level`, the innermost, part of the level above.
    pub fn hand_up(&mut self, level: Level) {
        for (at, _) in self.changes.iter_mut().rev().take_while(|(at, _)| *at >= level) {
            #[cfg(test)]
            super::entry::count_work();
            *at = level - 1;
        }
    }

    /// Empties the list, at the end of the transaction.
    pub fn clear(&mut self) {
        if self.index.is_some() {
            // The list was long, so its memory is given back.
            *self = List::default();
            return;
        }
        self.entries.clear();
        self.changes.clear();
        self.open = 0;
    }

    /// The newest entry of a request, and its place. Older entries of the same request are never open.
    fn newest(&self, key: RequestKey<'_>) -> Option<(usize, &Entry)> {
        match &self.index {
            Some(index) => index.newest(key, &self.entries),
            None => self.entries.iter().enumerate().rev().find(|(_, entry)| entry.is(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sequence::Order;
    use crate::model::ClientSession;
    use crate::open::entry::{Leftovers, work};
    use proptest::prelude::*;

    const R: RequestKey<'_> = RequestKey { session: "", stream: "", request: "r" };

    fn key(request: &str) -> RequestKey<'_> {
        RequestKey { request, ..R }
    }

    fn begin(list: &mut List, request: &str, level: Level) {
        begin_at(list, request, Place::UNWATCHED, level);
    }

    fn begin_at(list: &mut List, request: &str, place: Place, level: Level) {
        let zero = Digest([0; 16]);
        let open = OpenRequest {
            lock: zero,
            digest: zero,
            numbers: None,
            fingerprint: None,
            leftovers: Leftovers::default(),
            token: None,
        };
        list.begin(Session::Standing(Rc::default()), key(request), open, place, level);
    }

    #[test]
    fn what_was_begun_inside_leaves_the_list() {
        let mut list = List::default();
        begin(&mut list, "outside", 1);
        begin(&mut list, "inside", 2);
        list.roll_back(2, |_, _| {});
        assert!(list.find(key("outside")).is_ok());
        assert!(matches!(list.find(key("inside")), Err(Missing::Begin)));
    }

    #[test]
    fn what_was_recorded_inside_is_open_again() {
        let mut list = List::default();
        begin(&mut list, "r", 1);
        list.finish(R, State::Recorded, 2);
        assert!(matches!(list.find(R), Err(Missing::Recorded)));
        list.roll_back(2, |_, _| {});
        assert!(list.find(R).is_ok() && list.unrecorded().is_some());
    }

    #[test]
    fn what_was_recorded_outside_stays_recorded() {
        let mut list = List::default();
        begin(&mut list, "r", 1);
        list.finish(R, State::Recorded, 1);
        list.roll_back(2, |_, _| {});
        assert!(list.unrecorded().is_none());
    }

    #[test]
    fn a_released_savepoint_hands_its_steps_up() {
        let mut list = List::default();
        begin(&mut list, "r", 3);
        list.finish(R, State::Recorded, 3);
        list.hand_up(3);
        list.roll_back(3, |_, _| {});
        assert!(matches!(list.find(R), Err(Missing::Recorded)));
        list.roll_back(2, |_, _| {});
        assert!(matches!(list.find(R), Err(Missing::Begin)));
    }

    #[test]
    fn what_is_finished_twice_is_finished_once() {
        let mut list = List::default();
        begin(&mut list, "r", 1);
        list.finish(R, State::Recorded, 1);
        list.finish(R, State::Released, 1);
        assert!(!list.has_open() && matches!(list.find(R), Err(Missing::Recorded)));
    }

    #[test]
    fn what_was_released_may_be_begun_again() {
        let mut list = List::default();
        (0..10).for_each(|n| begin(&mut list, &n.to_string(), 1));
        begin(&mut list, "r", 1);
        list.finish(R, State::Released, 1);
        assert!(matches!(list.find(R), Err(Missing::Released)));
        begin(&mut list, "r", 2);
        assert!(list.find(R).is_ok() && list.under(&Digest([0; 16]), 0).is_some());
        list.finish(R, State::Recorded, 2);
        assert!(matches!(list.find(R), Err(Missing::Recorded)));
        list.roll_back(2, |_, _| {});
        assert!(matches!(list.find(R), Err(Missing::Released)));
    }

    #[test]
    fn a_lock_is_counted_once_and_a_session_while_it_has_an_open_request() {
        let client = Rc::new(ClientSession {
            id: [7; 16],
            name: String::new(),
            owner: pgrx::pg_sys::InvalidOid,
            client: None,
            request_id: None,
            order: Order::Any,
            window: 5,
            timeout_us: 1,
            created_at: 0,
        });
        let mut list = List::default();
        for n in 0..20u8 {
            let lock = Digest([n % 5; 16]);
            let open = OpenRequest {
                lock,
                digest: lock,
                numbers: None,
                fingerprint: None,
                leftovers: Leftovers::default(),
                token: None,
            };
            let name = n.to_string();
            assert!(list.under(&lock, 0).is_none());
            list.begin(Session::Client(Rc::clone(&client)), key(&name), open, Place::UNWATCHED, 1);
            assert!(list.under(&lock, 0).is_some() && list.uses(&[7; 16]));
            list.finish(key(&name), State::Recorded, if n == 19 { 2 } else { 1 });
            assert!(!list.uses(&[7; 16]));
        }
        assert_eq!(list.locks(), 5);
        list.roll_back(2, |_, _| {});
        assert!(list.uses(&[7; 16]) && list.has_open());
    }

    #[test]
    fn no_call_looks_at_the_whole_list() {
        let mut list = List::default();
        let (count, calls) = (30_000, 10);
        for n in 0..count {
            let name = n.to_string();
            assert!(list.find(key(&name)).is_err() && list.standing("", "", &name).is_none());
            begin(&mut list, &name, 2);
            match n % 3 {
                // A savepoint that is released, one that is rolled back, and one in which it is recorded.
                0 => list.hand_up(2),
                1 => list.roll_back(2, |_, _| {}),
                _ => {
                    list.finish(key(&name), State::Saved, 3);
                    list.finish(key(&name), State::Recorded, 3);
                    list.roll_back(3, |_, _| {});
                    list.finish(key(&name), State::Recorded, 3);
                    list.hand_up(3);
                    list.hand_up(2);
                }
            }
            let _ = (list.find(key(&name)), list.find(key("0")), list.has_open());
        }
        assert!(work() < count * calls, "{} looks at entries in {count} rounds", work());
    }

    /// The same list in its simplest form: for each entry the levels at which it was begun, checkpointed and settled.
    /// Every call goes through all entries.
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
            // The states as shared memory shows them.
            let mut shown: Vec<State> = Vec::new();
            for (what, at) in moves {
                match what {
                    0 => {
                        begin_at(&mut list, &model.0.len().to_string(), Place(shown.len() as u32), level);
                        shown.push(State::Begun);
                        model.0.push([Some(level), None, None]);
                    }
                    1 | 2 if !model.0.is_empty() => {
                        let at = at.index(model.0.len());
                        let name = at.to_string();
                        let [begun, checkpointed, settled] = &mut model.0[at];
                        let open = begun.is_some() && settled.is_none();
                        prop_assert_eq!(list.find(key(&name)).is_ok(), open);
                        let state = if what == 1 { State::Recorded } else { State::Saved };
                        if open && let Some(place) = list.finish(key(&name), state, level) {
                            shown[place.0 as usize] = state;
                        }
                        if open && what == 1 {
                            *settled = Some(level);
                        } else if open {
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
                        list.roll_back(level, |place, state| match state {
                            Some(state) => shown[place.0 as usize] = state,
                            None => {
                                shown.pop();
                                assert_eq!(shown.len(), place.0 as usize, "the last one goes first");
                            }
                        });
                        for entry in &mut model.0 {
                            for noted in entry.iter_mut().filter(|noted| noted.is_some_and(|at| at >= level)) {
                                *noted = None;
                            }
                            if entry[0].is_none() {
                                // It is no longer on the list.
                                *entry = [None, None, Some(0)];
                            }
                        }
                        level -= 1;
                    }
                    _ => {}
                }
                let states: Vec<State> = list.entries.iter().map(|entry| entry.state).collect();
                prop_assert_eq!(&shown, &states);
                prop_assert_eq!(list.open, model.open());
                prop_assert_eq!(list.unrecorded().map_or(0, |(_, sessions)| sessions.len()), model.unrecorded());
            }
        }
    }
}
