//! What other backends have changed, as PostgreSQL's invalidation messages tell it. A message comes with the commit of
//! the transaction that sent it, and on a standby with the replay of that commit. `message.rs` sends them.
//!
//! A message tells that a relation has changed. A change that touches everything that is remembered (DDL, a restore,
//! the secret) is told by the oid of one of our tables. A change that happens often, or whenever a role wishes, must
//! not make other backends forget everything. So a change of one standing session, or of the ring's pointer, is told by
//! a number that is the oid of no relation. PostgreSQL itself sends such messages, after DROP TABLE, and has nothing to
//! do when it receives one. The numbers are the last ones that a cluster would give to a relation. If a relation had
//! one of them, its entry in the relation cache would be built anew now and then, without further harm.
//!
//! The callback runs in the middle of other code's work. So it only notes what came; `cache.rs` acts on it.

use crate::domain::identity::SessionId;
use crate::store::blank;
use crate::store::catalog::TABLES;
use pgrx::{pg_guard, pg_sys};
use std::cell::Cell;

/// The changes that came since the cache acted on them.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    /// Anything may have changed.
    pub all: bool,
    /// The ring's pointer has changed.
    pub ring: bool,
    /// A bit for each set of standing sessions.
    sessions: [u64; SETS as usize / 64],
}

impl Changes {
    /// Whether the standing session, or another one of its set, has changed.
    pub fn include(&self, session: &SessionId) -> bool {
        let set = set_of(session);
        self.sessions[set as usize / 64] >> (set % 64) & 1 == 1
    }

    fn add(&mut self, number: u32) {
        match number.checked_sub(FIRST_SET) {
            Some(set) => self.sessions[set as usize / 64] |= 1 << (set % 64),
            None => self.ring = true,
        }
    }
}

/// The number of sets that standing sessions are divided into.
const SETS: u32 = 256;

/// The number that stands for the first set.
const FIRST_SET: u32 = u32::MAX - SETS + 1;

/// The number that stands for the ring's pointer.
pub(super) const RING: u32 = FIRST_SET - 1;

/// The set of a standing session: the last byte of its id, which is random, and which nobody can choose.
fn set_of(session: &SessionId) -> u32 {
    session[15].into()
}

/// The number that stands for a standing session's set.
pub(super) fn number_of(session: &SessionId) -> u32 {
    FIRST_SET + set_of(session)
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(1) };
    static CHANGES: Cell<Changes> =
        const { Cell::new(Changes { all: false, ring: false, sessions: [0; SETS as usize / 64] }) };
    /// The oids of our tables. They stay when the cache is emptied.
    static WATCHED: Cell<[pg_sys::Oid; TABLES.len()]> = const { Cell::new([pg_sys::InvalidOid; TABLES.len()]) };
}

/// The number of messages about our tables that have come.
pub(super) fn count() -> u64 {
    COUNT.get()
}

/// Gives the changes that came, and forgets them.
pub(super) fn take_changes() -> Changes {
    CHANGES.take()
}

/// Sets the tables whose messages are noted.
pub(super) fn watch(tables: [pg_sys::Oid; TABLES.len()]) {
    WATCHED.set(tables);
}

/// Notes that anything may have changed, as if a message had told so.
pub fn forget() {
    note(|changes| changes.all = true);
}

/// Notes the change that a number stands for, as if a message had told it.
pub(super) fn note_number(number: u32) {
    note(|changes| changes.add(number));
}

fn note(change: impl FnOnce(&mut Changes)) {
    COUNT.set(COUNT.get() + 1);
    let mut changes = CHANGES.get();
    change(&mut changes);
    CHANGES.set(changes);
}

/// Registers the callback, once a backend.
pub fn init() {
    // SAFETY: the callback is a static function.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::null()) }
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    let number = relation.to_u32();
    if number >= RING {
        note_number(number);
    } else if relation == pg_sys::InvalidOid || WATCHED.get().contains(&relation) {
        // InvalidOid: messages were lost, anything may have changed.
        forget();
        blank::forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_and_the_ring_are_told_apart() {
        for told in 0..SETS {
            let mut changes = Changes::default();
            changes.add(FIRST_SET + told);
            for asked in 0..SETS {
                let mut id = [7; 16];
                id[15] = asked as u8;
                assert_eq!(changes.include(&id), asked == told);
            }
            assert!(!changes.ring && !changes.all);
        }
        let mut changes = Changes::default();
        changes.add(RING);
        assert!(changes.ring && !changes.all && changes.sessions == [0; 4]);
    }
}
