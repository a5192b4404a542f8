//! The cells, in which backends count, and the tallies, to which the counters are moved. `counters.rs` says what they are for.

use crate::domain::identity::SessionId;
use crate::error::OWN_SQLSTATES;
use crate::model::Session;
use crate::pg::{self, SharedHash};
use serde::{Deserialize, Serialize};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// A begin or a claim gave the caller the request to execute, from the beginning or from a checkpoint.
    Started,
    /// A begin gave the caller a request that a former holder's lease ran out of.
    TakenOver,
    /// The answer was an outcome that was recorded before.
    Replayed,
    /// An outcome was recorded as succeeded.
    Recorded,
    /// An outcome was recorded as failed.
    Failed,
    /// A request was settled by this call: it is never executed.
    Cancelled,
    /// A request was given up by its holder.
    Released,
    /// The answer was that another holder has the request.
    InProgress,
    /// ID001
    Mismatched,
    /// ID003
    Discarded,
    /// ID005
    Fenced,
    /// ID006
    OutOfSequence,
    /// ID008, or the warning in its place.
    Unrecorded,
    /// A call waited for another holder.
    Waits,
    /// How long such calls waited, in milliseconds.
    WaitMs,
    /// The first of those that count errors: ID001. The others follow it. They count for the whole database, in its tally
    /// for others, since many an error tells of no session that is known here.
    Errors,
}

impl Counter {
    /// How many counters there are.
    pub const COUNT: usize = Counter::Errors as usize + OWN_SQLSTATES;
}

/// Whom a tally counts for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct Key {
    /// The database; 0 in a cell that counts for nobody.
    pub database: u32,
    /// The role whose client sessions it counts for; 0 for a standing session.
    pub role: u32,
    /// The id of a standing session; else zeros.
    pub session: SessionId,
}

impl Key {
    /// The tally of a session in this database.
    pub fn of(session: &Session, database: u32) -> Key {
        let others = Key::of_others(database);
        match session {
            Session::Standing(session) => Key { session: session.id, ..others },
            Session::Client(session) => Key { role: session.owner.to_u32(), ..others },
        }
    }

    /// The tally of a database for what tallies that gave way had counted.
    pub fn of_others(database: u32) -> Key {
        Key { database, ..Key::default() }
    }

    /// Whether it is the tally for what tallies that gave way had counted.
    pub fn is_others(&self) -> bool {
        self.role == 0 && self.session == SessionId::default()
    }
}

/// A tally.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[repr(C)]
pub struct Tally {
    /// Whom it counts for.
    pub key: Key,
    /// Since when it counts, in PostgreSQL's microseconds.
    pub since: i64,
    /// When it was last known to be counting.
    pub used: i64,
    /// The counters, by number.
    pub counts: [u64; Counter::COUNT],
}

impl Tally {
    /// Makes a tally begin at `now_us`. Its key is set.
    pub fn begin(&mut self, now_us: i64) {
        self.since = now_us;
        self.used = now_us;
        self.counts = [0; Counter::COUNT];
    }

    /// What it has counted apart from errors, in the order of [`Counter`], which is that of the columns of `stats`.
    pub fn counts(&self) -> &[u64] {
        &self.counts[..Counter::Errors as usize]
    }

    /// What it has counted of the errors ID001, ID002 and so on.
    pub fn errors(&self) -> &[u64] {
        &self.counts[Counter::Errors as usize..]
    }

    /// Adds what another tally has counted.
    pub fn add(&mut self, other: &Tally) {
        self.since = self.since.min(other.since);
        self.used = self.used.max(other.used);
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            // What was saved in a file may be anything.
            *count = count.saturating_add(more);
        }
    }
}

/// The number of sessions that a backend can count for without a lock.
pub const CELLS: usize = 16;

/// Of so many tallies one gives way when there is no room for another.
const ONE_IN: usize = 16;

/// After room was made, none is made for so long. To make it takes a look at all tallies and all cells, while others wait for
/// the lock. Where sessions are many and each is used rarely, that would be for nothing, again and again.
const PAUSE_US: i64 = 100_000;

/// A cell, all zeros at first.
#[repr(C, align(64))]
pub struct Cell {
    counts: [AtomicU64; Counter::COUNT],
    /// Written by the cell's backend and read by others, both under the lock of the tallies.
    key: UnsafeCell<Key>,
}

/// The cells of a backend.
pub type Cells = [Cell; CELLS];

impl Cell {
    /// Whom it counts for. The caller holds the lock of the tallies, or is the cell's own backend.
    pub fn key(&self) -> Key {
        // SAFETY: the key is written under the lock of the tallies, by the cell's own backend.
        unsafe { *self.key.get() }
    }

    /// Makes it count for another key. Its backend calls this, and holds the lock of the tallies.
    pub fn set_key(&self, key: Key) {
        // SAFETY: nobody reads the key meanwhile, see above.
        unsafe { *self.key.get() = key };
    }

    /// Adds to the counter of a number.
    pub fn add(&self, number: usize, more: u64) {
        self.counts[number].fetch_add(more, Relaxed);
    }
}

/// The tallies. They are reached under a lock.
pub struct Tallies {
    table: SharedHash<Tally>,
    most: usize,
    cells: &'static [Cells],
    /// When room was made last.
    made_room_at: i64,
}

impl Tallies {
    /// A table without a tally.
    pub fn new(table: SharedHash<Tally>, most: usize, cells: &'static [Cells]) -> Tallies {
        Tallies { table, most, cells, made_room_at: i64::MIN }
    }

    /// All tallies that are wanted, with what the cells have counted.
    pub fn all(&mut self, is_wanted: impl Fn(&Key) -> bool) -> Vec<Tally> {
        self.move_from_all(pg::now_us());
        let mut all = Vec::new();
        self.table.for_each(|tally| {
            if is_wanted(&tally.key) {
                all.push(*tally);
            }
        });
        all
    }

    /// Takes back tallies that were saved. If there is less room than there was, those that were used last keep a tally of
    /// their own.
    pub fn take_back(&mut self, mut saved: Vec<Tally>) {
        saved.sort_unstable_by_key(|tally| (!tally.key.is_others(), std::cmp::Reverse(tally.used)));
        for tally in saved.into_iter().filter(|tally| tally.key.database != 0) {
            if let Some(kept) = self.tally_or_others(tally.key, tally.since) {
                kept.add(&tally);
            }
        }
    }

    /// Has the tallies of a database begin anew.
    pub fn reset(&mut self, database: u32, now_us: i64) {
        self.move_from_all(now_us);
        self.table.for_each(|tally| {
            if tally.key.database == database {
                tally.begin(now_us);
            }
        });
    }

    /// Has a tally count for a key, and gives the tally's key. If the key has no tally, makes one, and room for it if need be.
    /// Where room was made just now, the tally for others counts.
    pub fn tally(&mut self, key: Key, now_us: i64) -> Key {
        if let Some(tally) = self.table.find(&key) {
            tally.used = now_us;
            return key;
        }
        if self.table.entries() >= self.most {
            // The clock may have been set back.
            if (0..PAUSE_US).contains(&now_us.saturating_sub(self.made_room_at)) {
                return Key::of_others(key.database);
            }
            self.move_from_all(now_us);
            self.make_room();
            self.made_room_at = now_us;
        }
        self.enter(key, now_us);
        key
    }

    /// The tally of a key. If there is none, and no room for another, that for others of its database, which is always
    /// found or made.
    fn tally_or_others(&mut self, key: Key, now_us: i64) -> Option<&mut Tally> {
        if self.table.entries() < self.most || self.table.find(&key).is_some() {
            return self.enter(key, now_us);
        }
        let others = Key::of_others(key.database);
        if self.table.find(&others).is_none() {
            self.make_room();
        }
        self.enter(others, now_us)
    }

    fn enter(&mut self, key: Key, now_us: i64) -> Option<&mut Tally> {
        let (tally, found) = self.table.enter(&key)?;
        if !found {
            tally.begin(now_us);
        }
        Some(tally)
    }

    /// Removes the tallies that were used longest ago, until there is room for two at least: the one that is wanted, and the
    /// one for others. Tallies for others are removed last, and what they have counted is lost. That happens only if there
    /// are about as many databases as tallies.
    fn make_room(&mut self) {
        let goal = self.most - (self.most / ONE_IN).max(2);
        // A tally that goes may leave one for others in its place. So the first time may free none, and the second does.
        while let excess @ 1.. = self.table.entries().saturating_sub(goal) {
            let mut oldest = Vec::with_capacity(self.table.entries());
            self.table.for_each(|tally| oldest.push((tally.key.is_others(), tally.used, tally.key)));
            oldest.select_nth_unstable_by_key(excess - 1, |(is_others, used, _)| (*is_others, *used));
            oldest.truncate(excess);
            for (is_others, _, key) in oldest {
                let Some(tally) = self.table.find(&key).map(|tally| *tally) else { continue };
                self.table.remove(&key);
                if !is_others && let Some(others) = self.enter(Key::of_others(key.database), tally.since) {
                    others.add(&tally);
                }
            }
        }
    }

    fn move_from_all(&mut self, now_us: i64) {
        self.cells.iter().flatten().for_each(|cell| self.move_from(cell, now_us));
    }

    /// Moves what a cell has counted to its tally. If the tally has given way, and there is no room for another, that is
    /// the tally of others.
    pub fn move_from(&mut self, cell: &Cell, now_us: i64) {
        let key = cell.key();
        if key.database == 0 || cell.counts.iter().all(|count| count.load(Relaxed) == 0) {
            return;
        }
        let Some(tally) = self.tally_or_others(key, now_us) else { return };
        tally.used = now_us;
        for (count, more) in tally.counts.iter_mut().zip(&cell.counts) {
            *count = count.saturating_add(more.swap(0, Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StandingSession;
    use std::rc::Rc;

    #[test]
    fn keys_of_sessions_roles_and_others_differ() {
        let session = StandingSession { id: [1; 16], ..StandingSession::default() };
        let standing = Key::of(&Session::Standing(Rc::new(session)), 5);
        let others = Key::of_others(5);
        let clients = Key { role: 10, ..others };
        assert!(standing != clients && clients != others && standing != others);
        assert!(others.is_others() && !standing.is_others() && !clients.is_others());
    }

    #[test]
    fn a_line_takes_over_what_another_has_counted() {
        let mut tally = Tally { key: Key::default(), since: 20, used: 20, counts: [1; Counter::COUNT] };
        tally.add(&Tally { key: Key::default(), since: 10, used: 30, counts: [2; Counter::COUNT] });
        assert_eq!((tally.since, tally.used, tally.counts), (10, 30, [3; Counter::COUNT]));
    }
}
