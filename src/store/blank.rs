//! Which of two tables are known to have no page: `checkpoint` and `lease`. Every begin asks both, and where neither
//! checkpoints nor leases are used it need not open them.
//!
//! For each database and table there is a word in shared memory. Its lowest bit says that the table is known to have no
//! page; the rest counts writes.
//!
//! * A *reader* notes the word, opens the table, and if that has no page sets the bit, provided that the word is still the
//!   one that it has noted.
//! * A *writer* inserts its row, and then counts one more write and clears the bit. It does so before its commit.
//!
//! So the bit is not set over a row that may be committed. A reader that noted the word before the write was counted cannot
//! set the bit any more, or has set it before and the writer clears it. A reader that notes the word after that finds the
//! writer's page. Whoever looks for what another transaction has committed comes after that transaction's count: it waited
//! for the request's lock, or its snapshot sees the commit.
//!
//! Nothing is known on a standby, where rows come without a writer, nor where the library is not preloaded. A crash of the
//! server forgets all. A restore writes by SQL: its trigger makes the commit count (see [`note_foreign_rows`]).

use crate::pg;
use crate::store::catalog::Table;
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, pg_shmem_init};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The number of databases that something is known of. Others always look.
const DATABASES: usize = 128;

const KNOWN: u64 = 1;
const ONE_WRITE: u64 = 2;

/// The words of a database.
struct Words {
    /// The database; 0: the place is free.
    database: AtomicU32,
    checkpoint: AtomicU64,
    lease: AtomicU64,
}

struct AllWords([Words; DATABASES]);

// SAFETY: atomics, which may be read and written at any time.
unsafe impl PGRXSharedMemory for AllWords {}

impl Default for AllWords {
    fn default() -> AllWords {
        let none = || Words { database: AtomicU32::new(0), checkpoint: AtomicU64::new(0), lease: AtomicU64::new(0) };
        AllWords(std::array::from_fn(|_| none()))
    }
}

// SAFETY: nothing else in this server's shared memory has this name.
static WORDS: PgAtomic<AllWords> = unsafe { PgAtomic::new(c"idempotence blank tables") };

/// Whether there is shared memory, see [`crate::board`].
static PRELOADED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The place of this backend's database, once it is known.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    /// Whether this transaction writes rows by statements of others.
    static FOREIGN_ROWS: Cell<bool> = const { Cell::new(false) };
}

/// Reserves the memory. Called while the postmaster preloads the library.
pub fn init() {
    pg_shmem_init!(WORDS);
    PRELOADED.store(true, Relaxed);
}

fn words() -> Option<&'static Words> {
    if !PRELOADED.load(Relaxed) {
        return None;
    }
    let all: &'static AllWords = WORDS.get();
    if let Some(place) = PLACE.get() {
        return all.0.get(place);
    }
    let database = pg::current_database().to_u32();
    if database == 0 {
        // The process is not connected yet.
        return None;
    }
    let is_ours = |words: &Words| {
        let taken = words.database.compare_exchange(0, database, SeqCst, SeqCst);
        taken.is_ok() || taken == Err(database)
    };
    let place = all.0.iter().position(is_ours);
    // Without a place, a number that is none stands for that.
    PLACE.set(Some(place.unwrap_or(DATABASES)));
    all.0.get(place?)
}

fn word(table: Table) -> Option<&'static AtomicU64> {
    let words = words()?;
    match table {
        Table::Checkpoint => Some(&words.checkpoint),
        Table::Lease => Some(&words.lease),
        _ => None,
    }
}

/// What a reader has noted before it opened a table.
pub struct Noted(Option<(&'static AtomicU64, u64)>);

/// Notes the word of a table. `None`: the table is known to have no page, and need not be opened.
pub fn note(table: Table) -> Option<Noted> {
    let noted = word(table).map(|word| (word, word.load(SeqCst)));
    if noted.is_some_and(|(_, value)| value & KNOWN == KNOWN) {
        return None;
    }
    // A standby may be promoted during the look, so it is asked for before.
    Some(Noted(noted.filter(|_| !pg::in_recovery())))
}

impl Noted {
    /// The table was opened and has no page, also for others.
    pub fn is_blank(self) {
        if let Some((word, value)) = self.0 {
            // If somebody has written meanwhile, nothing is known.
            let _ = word.compare_exchange(value, value | KNOWN, SeqCst, SeqCst);
        }
    }
}

/// A row was inserted into the table, and may be committed from now on.
pub fn written(table: Table) {
    if let Some(word) = word(table) {
        count(word);
    }
}

/// Something has happened to one of our tables that no writer of ours has done.
pub fn forget() {
    if let Some(words) = words() {
        count(&words.checkpoint);
        count(&words.lease);
    }
}

fn count(word: &AtomicU64) {
    word.update(SeqCst, SeqCst, |value| (value & !KNOWN).wrapping_add(ONE_WRITE));
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
