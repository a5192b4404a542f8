//! The counters.
//!
//! A backend counts in its cells. A cell counts for one session, whose key stands in it. If the backend comes to a
//! session that none of its cells counts for, it takes the cell that has been counting for another session longest, moves
//! what that has counted to the session's tally, and writes the new key. Whoever reads or resets the counters does the same
//! for all cells. So a tally has what its session has counted, as of that moment, and nothing that was counted is lost
//! with a rollback or with a backend.
//!
//! If there are as many tallies as the setting allows, the tallies that were used longest ago give way. What they had counted
//! goes to one tally of their database, so that sums over all tallies only grow. Tallies give way ten times a second at most. A
//! session that comes in between and has no tally is counted in that one tally too.

use crate::model::Session;
use crate::monitor::area::{Area, area};
use crate::monitor::tallies::{CELLS, Cell, Cells, Counter, Key, Tally};
use crate::pg::{self, Own};

static MINE: Own<Option<Mine>> = Own::new();

/// A session that finds no room for a tally is counted with others so many times before it asks again.
const COUNTED_WITH_OTHERS: u32 = 32;

/// This backend's cells.
struct Mine {
    cells: &'static Cells,
    /// The session that was counted last, and the cell that counted for it: its own, or that for others.
    asked: Key,
    last: usize,
    /// How often the cell for others may still count for that session before the session asks for a tally again.
    left: u32,
    /// The cell that is taken next.
    next: usize,
}

impl Mine {
    fn attach(area: &'static Area) -> Option<Mine> {
        let cells = &area.cells[pg::backend_place()?];
        // A backend that has ended may have left counters in them. They stay what they are.
        Some(Mine { cells, asked: cells[0].key(), last: 0, left: 0, next: 0 })
    }

    fn cell(&mut self, key: Key, area: &Area) -> &Cell {
        if self.asked != key {
            (self.asked, self.left) = (key, 0);
        } else if self.cells[self.last].key() == key {
            return &self.cells[self.last];
        }
        self.last = match self.cells.iter().position(|cell| cell.key() == key) {
            Some(cell) => cell,
            None if self.left > 0 => self.last,
            None => self.take(key, area),
        };
        self.left = self.left.saturating_sub(1);
        &self.cells[self.last]
    }

    /// Makes a cell count for another session.
    #[cold]
    fn take(&mut self, key: Key, area: &Area) -> usize {
        let now_us = pg::now_us();
        let mut tallies = area.tallies.lock();
        let counting = tallies.tally(key, now_us);
        if counting != key {
            self.left = COUNTED_WITH_OTHERS;
            if let Some(cell) = self.cells.iter().position(|cell| cell.key() == counting) {
                return cell;
            }
        }
        let number = self.next;
        self.next = (number + 1) % CELLS;
        tallies.move_from(&self.cells[number], now_us);
        self.cells[number].set_key(counting);
        number
    }
}

/// Counts one more for a session.
pub fn count(session: &Session, counter: Counter) {
    add(session, counter, 1);
}

/// Adds to a counter of a session.
pub fn add(session: &Session, counter: Counter, more: u64) {
    add_at(|database| Key::of(session, database), counter as usize, more);
}

/// Counts an error of this database: 0 is ID001.
pub fn count_error(number: usize) {
    add_at(Key::of_others, Counter::Errors as usize + number, 1);
}

fn add_at(key: impl FnOnce(u32) -> Key, counter: usize, more: u64) {
    let Some(area) = area() else { return };
    let key = key(pg::current_database().to_u32());
    MINE.with(|mine| {
        if mine.is_none() {
            *mine = Mine::attach(area);
        }
        if let Some(mine) = mine {
            mine.cell(key, area).add(counter, more);
        }
    });
}

/// The tallies of this database.
pub fn read() -> Vec<Tally> {
    let Some(area) = area() else { return Vec::new() };
    let database = pg::current_database().to_u32();
    area.tallies.lock().all(|key| key.database == database)
}

/// Sets the counters of this database to 0. Gives the moment from which they count.
pub fn reset() -> i64 {
    let (database, now_us) = (pg::current_database().to_u32(), pg::now_us());
    if let Some(area) = area() {
        area.tallies.lock().reset(database, now_us);
    }
    now_us
}
