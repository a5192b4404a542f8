//! The cells, in which backends count, and the tallies, to which the counters are moved. `counters.rs` says what they are for.

use crate::monitor::tally::{Counter, Key, Tally};
use crate::pg::{self, SharedHash};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
