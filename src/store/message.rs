//! What backends tell each other of changes to our tables: PostgreSQL's own messages, which come with the
//! commit, and on a standby with its replay.
//!
//! A message says of a relation that it has changed. What touches everything that is remembered (DDL, a
//! restore, the secret) is told by one of our tables. What happens often, or at anybody's wish, must not
//! cost all others what they remember: a change of one standing session, and of the ring's pointer, is told
//! by a number that is no relation's, as a message about a dropped table is. PostgreSQL has nothing to do
//! for it. The numbers are the last that a cluster would give away; were there a relation with one of them,
//! its entry in the relation cache would be built anew now and then.
//!
//! The callback runs in the middle of other code's work, so it only notes what came; `cache.rs` acts on it.

use crate::domain::identity::SessionId;
use crate::store::cache::{self, Table};
use pgrx::{pg_guard, pg_sys};
use std::cell::Cell;

/// What came since it was acted on.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    /// Anything may have changed.
    pub all: bool,
    /// The ring's pointer has.
    pub ring: bool,
    sessions: [u64; SETS as usize / 64],
}

impl Changes {
    /// Whether the standing session, or another of its set, has changed.
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

/// In so many sets standing sessions are told apart.
const SETS: u32 = 256;

/// The numbers of the messages about them.
const FIRST_SET: u32 = u32::MAX - SETS + 1;

/// The number of that about the ring.
const RING: u32 = FIRST_SET - 1;

/// The last byte of an id is random, and whoever makes a session does not choose it.
fn set_of(session: &SessionId) -> u32 {
    session[15].into()
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(1) };
    static CHANGES: Cell<Changes> =
        const { Cell::new(Changes { all: false, ring: false, sessions: [0; SETS as usize / 64] }) };
}

/// Raised with each message that concerns us.
pub(super) fn count() -> u64 {
    COUNT.get()
}

/// Gives what came, once.
pub(super) fn take_changes() -> Changes {
    CHANGES.take()
}

fn note(change: impl FnOnce(&mut Changes)) {
    COUNT.set(COUNT.get() + 1);
    let mut changes = CHANGES.get();
    change(&mut changes);
    CHANGES.set(changes);
}

/// As if this backend had been told that anything may have changed.
pub fn forget() {
    note(|changes| changes.all = true);
}

/// Makes every other backend drop all that it remembers when this transaction commits, and this one at once.
pub fn all_changed() {
    all_changed_by(cache::oid(Table::Session));
}

/// The same by a table of ours that the caller has open. Its shape does not matter, so that it can be
/// written by SQL in whatever version it is.
pub fn all_changed_by(table: pg_sys::Oid) {
    forget();
    // SAFETY: sends a message with the commit; the table exists.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) }
}

/// Makes every other backend look at a standing session anew when this transaction commits, and this one at
/// once.
pub fn session_changed(session: &SessionId) {
    send(FIRST_SET + set_of(session));
}

/// The same about the ring's pointer.
pub fn ring_changed() {
    send(RING);
}

fn send(number: u32) {
    note(|changes| changes.add(number));
    let table = pg_sys::Datum::from(cache::oid(Table::Session));
    let (none, class) = (pg_sys::Datum::null(), pg_sys::SysCacheIdentifier::RELOID as i32);
    // SAFETY: a copy of our table's row in pg_class; the message takes the number from it, and that it is no
    // shared relation.
    unsafe {
        let row = pg_sys::SearchSysCacheCopy(class, table, none, none, none);
        assert!(!row.is_null(), "an open table has a row in pg_class");
        let header = (*row).t_data;
        let form = header.cast::<u8>().add((*header).t_hoff.into()).cast::<pg_sys::FormData_pg_class>();
        (*form).oid = number.into();
        pg_sys::CacheInvalidateRelcacheByTuple(row);
        pg_sys::heap_freetuple(row);
    }
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
        note(|changes| changes.add(number));
    } else if relation == pg_sys::InvalidOid || cache::is_ours(relation) {
        // InvalidOid: messages were lost, anything may have changed.
        forget();
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
