//! The counters.
//!
//! A backend counts in its cells. A cell counts for one session, whose key stands in it. If the backend comes to a
//! session that none of its cells counts for, it takes the cell that has been counting for another session longest, moves
//! what that has counted to the session's line, and writes the new key. Whoever reads or resets the counters does the same
//! for all cells. So a line has what its session has counted, as of that moment, and nothing that was counted is lost
//! with a rollback or with a backend.
//!
//! If there are as many lines as the setting allows, the lines that were used longest ago give way. What they had counted
//! goes to one line of their database, so that sums over all lines only grow.

use crate::model::Session;
use crate::monitor::area::{Area, area};
use crate::monitor::line::{Counter, Key, Line};
use crate::pg::{self, SharedHash};
use std::cell::{RefCell, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of sessions that a backend can count for without a lock.
pub const CELLS: usize = 16;

/// Of so many lines one gives way when there is no room for another.
const ONE_IN: usize = 16;

/// A cell, all zeros at first.
#[repr(C, align(64))]
pub struct Cell {
    counts: [AtomicU64; Counter::COUNT],
    /// Written by the cell's backend and read by others, both under the lock of the lines.
    key: UnsafeCell<Key>,
}

impl Cell {
    fn key(&self) -> Key {
        // SAFETY: the caller holds the lock of the lines, or is the cell's own backend.
        unsafe { *self.key.get() }
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

/// This backend's cells.
struct Mine {
    cells: &'static [Cell; CELLS],
    /// The keys of the cells.
    keys: [Key; CELLS],
    /// The cell that counted last.
    last: usize,
    /// The cell that is taken next.
    next: usize,
}

impl Mine {
    fn attach(area: &'static Area) -> Option<Mine> {
        let cells = area.cells(pg::backend_place()?);
        // A backend that has ended may have left counters in them. They stay what they are.
        let keys = std::array::from_fn(|cell| cells[cell].key());
        Some(Mine { cells, keys, last: 0, next: 0 })
    }

    fn cell(&mut self, key: Key, area: &Area) -> &Cell {
        if self.keys[self.last] != key {
            self.last = match self.keys.iter().position(|other| *other == key) {
                Some(cell) => cell,
                None => self.take(key, area),
            };
        }
        &self.cells[self.last]
    }

    /// Makes a cell count for another session.
    #[cold]
    fn take(&mut self, key: Key, area: &Area) -> usize {
        let number = self.next;
        self.next = (number + 1) % CELLS;
        let now_us = pg::now_us();
        let mut lines = area.lines.lock();
        lines.move_from(&self.cells[number], now_us);
        lines.line(key, now_us, area);
        // SAFETY: the lock of the lines is held.
        unsafe { *self.cells[number].key.get() = key };
        self.keys[number] = key;
        number
    }
}

/// Counts one more for a session.
pub fn count(session: &Session, counter: Counter) {
    add(session, counter, 1);
}

/// Adds to a counter of a session.
pub fn add(session: &Session, counter: Counter, more: u64) {
    if area().is_some() {
        add_to(Key::of(session, pg::current_database()), counter, more);
    }
}

/// Adds to a counter of a line.
pub fn add_to(key: Key, counter: Counter, more: u64) {
    let Some(area) = area() else { return };
    MINE.with_borrow_mut(|mine| {
        if mine.is_none() {
            *mine = Mine::attach(area);
        }
        if let Some(mine) = mine {
            mine.cell(key, area).counts[counter as usize].fetch_add(more, Relaxed);
        }
    });
}

/// The lines of this database.
pub fn read() -> Vec<Line> {
    let Some(area) = area() else { return Vec::new() };
    let database = pg::current_database().to_u32();
    area.lines.lock().all(area, |key| key.database == database)
}

/// Sets the counters of this database to 0. Gives the moment from which they count.
pub fn reset() -> i64 {
    let (database, now_us) = (pg::current_database().to_u32(), pg::now_us());
    let Some(area) = area() else { return now_us };
    let mut lines = area.lines.lock();
    lines.move_from_all(area, now_us);
    lines.for_each_of(database, |line| line.begin(now_us));
    now_us
}

/// The lines. They are reached under a lock.
pub struct Lines {
    table: SharedHash<Line>,
    most: usize,
}

impl Lines {
    /// A table without a line.
    pub fn new(table: SharedHash<Line>, most: usize) -> Lines {
        Lines { table, most }
    }

    /// All lines that are wanted, with what the cells have counted.
    pub fn all(&mut self, area: &Area, is_wanted: impl Fn(&Key) -> bool) -> Vec<Line> {
        self.move_from_all(area, pg::now_us());
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

    fn for_each_of(&mut self, database: u32, mut work: impl FnMut(&mut Line)) {
        self.table.for_each(|line| {
            if line.key.database == database {
                work(line);
            }
        });
    }

    /// The line of a key. If there is none, makes one, and room for it if need be.
    fn line(&mut self, key: Key, now_us: i64, area: &Area) {
        if let Some(line) = self.table.find(&key) {
            line.used = now_us;
            return;
        }
        if self.table.entries() >= self.most {
            self.move_from_all(area, now_us);
            self.make_room();
        }
        self.enter(key, now_us);
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
        while self.table.entries() > goal {
            let mut oldest = Vec::with_capacity(self.table.entries());
            self.table.for_each(|line| oldest.push((line.key.is_others(), line.used, line.key)));
            oldest.sort_unstable_by_key(|(is_others, used, _)| (*is_others, *used));
            for (is_others, _, key) in oldest {
                if self.table.entries() <= goal {
                    return;
                }
                let Some(line) = self.table.find(&key).map(|line| *line) else { continue };
                self.table.remove(&key);
                if !is_others && let Some(others) = self.enter(Key::of_others(key.database), line.since) {
                    others.add(&line);
                    others.used = others.used.max(line.used);
                }
            }
        }
    }

    fn move_from_all(&mut self, area: &Area, now_us: i64) {
        for backend in 0..area.backends() {
            area.cells(backend).iter().for_each(|cell| self.move_from(cell, now_us));
        }
    }

    /// Moves what a cell has counted to its line. If the line has given way, and there is no room for another, that is
    /// the line of others.
    fn move_from(&mut self, cell: &Cell, now_us: i64) {
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
