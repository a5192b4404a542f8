//! Which of three tables are known to have no page: `checkpoint`, `lease` and `outcome_long`. Every begin asks them, and
//! need not open what is not used.
//!
//! For each table there are words in shared memory. The number of a database says which word is its own. A word's lowest bit
//! says that the table is known to have no page in the database whose number stands in the word; the rest counts writes.
//!
//! * A *reader* notes the word, opens the table, and if that has no page sets bit and number, provided that the word is
//!   still the one that it has noted.
//! * A *writer* inserts its row, and then counts one more write and clears bit and number. It does so before its commit.
//!
//! So the bit is not set over a row that may be committed. A reader that noted the word before the write was counted cannot
//! set the bit any more, or has set it before and the writer clears it. A reader that notes the word after that finds the
//! writer's page. Whoever looks for what another transaction has committed comes after that transaction's count: it waited
//! for the request's lock, or its snapshot sees the commit. Databases that share a word only look more often than they had
//! to.
//!
//! Nothing is known on a standby, where rows come without a writer, nor where the library is not preloaded. A crash of the
//! server forgets all. So does CREATE DATABASE, whose database may get the number of a dropped one, and rows of a template.
//! A restore writes by SQL: its trigger makes the commit count (see [`note_foreign_rows`]).

use crate::pg::{self, Shared};
use crate::store::catalog::Table;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The number of words for each table.
const WORDS: usize = 1024;

const KNOWN: u64 = 1;
const ONE_WRITE: u64 = 2;
/// The part that counts. Above it stands the database.
const COUNT: u64 = (1 << 32) - ONE_WRITE;

/// The tables.
const TABLES: [Table; 3] = [Table::Checkpoint, Table::Lease, Table::OutcomeLong];

static ALL: Shared<[[AtomicU64; WORDS]; TABLES.len()]> = Shared::new();

thread_local! {
    /// Whether this transaction writes rows by statements of others.
    static FOREIGN_ROWS: Cell<bool> = const { Cell::new(false) };
}

/// Reserves the memory. Called while the postmaster preloads the library.
pub fn init() {
    ALL.want(c"idempotence blank tables", || {});
}

/// The word of a table of this database, and the database; `None`: nothing is known of the table.
fn word(table: Table) -> Option<(&'static AtomicU64, u32)> {
    let number = TABLES.iter().position(|of| *of == table)?;
    let database = pg::current_database().to_u32();
    // A process that is not connected yet has no database.
    let words = ALL.get().filter(|_| database != 0)?;
    Some((&words[number][database as usize % WORDS], database))
}

/// What a word is where its table is known to have no page in the database.
fn known(value: u64, database: u32) -> u64 {
    u64::from(database) << 32 | value & COUNT | KNOWN
}

/// What a reader has noted before it opened a table.
pub struct Noted(Option<(&'static AtomicU64, u32, u64)>);

/// Notes the word of a table. `None`: the table is known to have no page, and need not be opened.
pub fn note(table: Table) -> Option<Noted> {
    let noted = word(table).map(|(word, database)| (word, database, word.load(SeqCst)));
    if noted.is_some_and(|(_, database, value)| value == known(value, database)) {
        return None;
    }
    // A standby may be promoted during the look, so it is asked for before.
    Some(Noted(noted.filter(|_| !pg::in_recovery())))
}

impl Noted {
    /// The table was opened and has no page, also for others.
    pub fn is_blank(self) {
        if let Some((word, database, value)) = self.0 {
            // If somebody has written meanwhile, nothing is known.
            let _ = word.compare_exchange(value, known(value, database), SeqCst, SeqCst);
        }
    }
}

/// A row was inserted into a table, of these or any other, and may be committed from now on.
pub fn written(table: Table) {
    if let Some((word, _)) = word(table) {
        count(word);
    }
}

/// Something has happened to one of our tables that no writer of ours has done.
pub fn forget() {
    TABLES.into_iter().for_each(written);
}

/// A database is being made. Nobody is connected to it until its transaction has committed.
pub fn forget_all() {
    if let Some(words) = ALL.get() {
        words.iter().flatten().for_each(count);
    }
}

fn count(word: &AtomicU64) {
    word.update(SeqCst, SeqCst, |value| value.wrapping_add(ONE_WRITE) & COUNT);
}

/// A statement that is not the extension's own is about to insert rows, as a restore's. They are counted at the end of the
/// transaction, when all of them are there.
pub fn note_foreign_rows() {
    FOREIGN_ROWS.set(true);
}

/// The transaction is about to be committed or prepared.
pub fn before_commit() {
    if FOREIGN_ROWS.replace(false) {
        forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_counts_for_one_database_and_until_somebody_writes() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let is_known = |database| WORD.load(SeqCst) == known(WORD.load(SeqCst), database);
        let note = |database| Noted(Some((&WORD, database, WORD.load(SeqCst))));
        assert!(!is_known(5));
        note(5).is_blank();
        assert!(is_known(5) && !is_known(5 + WORDS as u32));
        // Another database of the same word finds out for itself.
        let late = note(5);
        note(5 + WORDS as u32).is_blank();
        assert!(!is_known(5) && is_known(5 + WORDS as u32));
        late.is_blank();
        assert!(!is_known(5));
        // A write in between keeps a reader from knowing, also where the count begins anew.
        for before in [0, COUNT, u64::MAX] {
            WORD.store(before, SeqCst);
            let late = note(7);
            count(&WORD);
            late.is_blank();
            assert!(!is_known(7), "{before}");
            note(7).is_blank();
            assert!(is_known(7), "{before}");
        }
    }
}
