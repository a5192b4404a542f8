//! The cells, in which backends count, and the lines, to which the counters are moved. `counters.rs` says what they are for.

use crate::monitor::line::{Counter, Key, Line};
use crate::pg::{self, SharedHash};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of sessions that a backend can count for without a lock.
pub const CELLS: usize = 16;

/// Of so many lines one gives way when there is no room for another.
const ONE_IN: usize = 16;

/// After room was made, none is made for so long. To make it takes a look at all lines and all cells, while others wait for
/// the lock. Where sessions are many and each is used rarely, that would be for nothing, again and again.
const PAUSE_US: i64 = 100_000;

/// A cell, all zeros at first.
#[repr(C, align(64))]
pub struct Cell {
    counts: [AtomicU64; Counter::COUNT],
    /// Written by the cell's backend and read by others, both under the lock of the lines.
    key: UnsafeCell<Key>,
}

/// The cells of a backend.
pub type Cells = [Cell; CELLS];

impl Cell {
    /// Whom it counts for. The caller holds the lock of the lines, or is the cell's own backend.
    pub fn key(&self) -> Key {
        // SAFETY: the key is written under the lock of the lines, by the cell's own backend.
        unsafe { *self.key.get() }
    }

    /// Makes it count for another key. Its backend calls this, and holds the lock of the lines.
    pub fn set_key(&self, key: Key) {
        // SAFETY: nobody reads the key meanwhile, see above.
        unsafe { *self.key.get() = key };
    }

    /// Adds to the counter of a number.
    pub fn add(&self, number: usize, more: u64) {
        self.counts[number].fetch_add(more, Relaxed);
    }
}

/// The lines. They are reached under a lock.
pub struct Lines {
    table: SharedHash<Line>,
    most: usize,
    /// When room was made last.
    made_room_at: i64,
}

impl Lines {
    /// A table without a line.
    pub fn new(table: SharedHash<Line>, most: usize) -> Lines {
        Lines { table, most, made_room_at: i64::MIN }
    }

    /// All lines that are wanted, with what the cells have counted.
    pub fn all(&mut self, cells: &[Cells], is_wanted: impl Fn(&Key) -> bool) -> Vec<Line> {
        self.move_from_all(cells, pg::now_us());
        let mut all = Vec::new();
        self.table.for_each(|line| {
            if is_wanted(&line.key) {
                all.push(*line);
            }
        });
        all
    }

    /// Takes back lines that were saved. If there is less room than there was, those that were used last keep a line of
    /// their own.
    pub fn take_back(&mut self, mut saved: Vec<Line>) {
        saved.sort_unstable_by_key(|line| (!line.key.is_others(), std::cmp::Reverse(line.used)));
        for line in saved.into_iter().filter(|line| line.key.database != 0) {
            if let Some(kept) = self.line_or_others(line.key, line.since) {
                kept.add(&line);
                kept.used = kept.used.max(line.used);
            }
        }
    }

    pub fn for_each_of(&mut self, database: u32, mut work: impl FnMut(&mut Line)) {
        self.table.for_each(|line| {
            if line.key.database == database {
                work(line);
            }
        });
    }

    /// Has a line count for a key, and gives the line's key. If the key has no line, makes one, and room for it if need be.
    /// Where room was made just now, the line for others counts.
    pub fn line(&mut self, key: Key, now_us: i64, cells: &[Cells]) -> Key {
        if let Some(line) = self.table.find(&key) {
            line.used = now_us;
            return key;
        }
        if self.table.entries() >= self.most {
            // The clock may have been set back.
            if (0..PAUSE_US).contains(&now_us.saturating_sub(self.made_room_at)) {
                return Key::of_others(key.database);
            }
            self.move_from_all(cells, now_us);
            self.make_room();
            self.made_room_at = now_us;
        }
        self.enter(key, now_us);
        key
    }

    /// The line of a key. If there is none, and no room for another, that for others of its database, which is always
    /// found or made.
    fn line_or_others(&mut self, key: Key, now_us: i64) -> Option<&mut Line> {
        if self.table.entries() < self.most || self.table.find(&key).is_some() {
            return self.enter(key, now_us);
        }
        let others = Key::of_others(key.database);
        if self.table.find(&others).is_none() {
            self.make_room();
        }
        self.enter(others, now_us)
    }

    fn enter(&mut self, key: Key, now_us: i64) -> Option<&mut Line> {
        let (line, found) = self.table.enter(&key)?;
        if !found {
            line.begin(now_us);
        }
        Some(line)
    }

    /// Removes the lines that were used longest ago, until there is room for two at least: the one that is wanted, and the
    /// one for others. Lines for others are removed last, and what they have counted is lost. That happens only if there
    /// are about as many databases as lines.
    fn make_room(&mut self) {
        let goal = self.most - (self.most / ONE_IN).max(2);
        // A line that goes may leave one for others in its place. So the first time may free none, and the second does.
        while let excess @ 1.. = self.table.entries().saturating_sub(goal) {
            let mut oldest = Vec::with_capacity(self.table.entries());
            self.table.for_each(|line| oldest.push((line.key.is_others(), line.used, line.key)));
            oldest.select_nth_unstable_by_key(excess - 1, |(is_others, used, _)| (*is_others, *used));
            oldest.truncate(excess);
            for (is_others, _, key) in oldest {
                let Some(line) = self.table.find(&key).map(|line| *line) else { continue };
                self.table.remove(&key);
                if !is_others && let Some(others) = self.enter(Key::of_others(key.database), line.since) {
                    others.add(&line);
                    others.used = others.used.max(line.used);
                }
            }
        }
    }

    pub fn move_from_all(&mut self, cells: &[Cells], now_us: i64) {
        cells.iter().flatten().for_each(|cell| self.move_from(cell, now_us));
    }

    /// Moves what a cell has counted to its line. If the line has given way, and there is no room for another, that is
    /// the line of others.
    pub fn move_from(&mut self, cell: &Cell, now_us: i64) {
        let key = cell.key();
        if key.database == 0 || cell.counts.iter().all(|count| count.load(Relaxed) == 0) {
            return;
        }
        let Some(line) = self.line_or_others(key, now_us) else { return };
        line.used = now_us;
        for (count, more) in line.counts.iter_mut().zip(&cell.counts) {
            *count = count.saturating_add(more.swap(0, Relaxed));
        }
    }
}
