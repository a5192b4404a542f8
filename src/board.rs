//! The board: what launcher, visits and backends tell each other in shared memory.
//!
//! One lock guards it. The lock is held for a few copies at a time, and nothing that could fail is done under it.
//! A crash of any process makes the board anew. There is a board only where the library is preloaded.

use crate::pg;
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, PgLwLock, pg_shmem_init, pg_sys};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// So many databases are remembered. With more, the one visited longest ago would look as if it never was.
pub const DATABASES_MAX: usize = 4096;

/// So many databases are announced at once; others wait for their usual visit.
const ANNOUNCED_MAX: usize = 256;

/// A text of limited length, in shared memory.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; Text::MAX],
    length: usize,
}

impl Text {
    const MAX: usize = 1000;
    /// The empty text.
    pub const EMPTY: Text = Text { bytes: [0; Text::MAX], length: 0 };

    /// As much of a text as there is room for.
    pub fn of(text: &str) -> Text {
        let length = text.floor_char_boundary(Text::MAX);
        let mut bytes = [0; Text::MAX];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Text { bytes, length }
    }

    /// The text.
    pub fn get(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.length]).into_owned()
    }
}

/// How a visit ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It has not said anything: it could not connect, or was killed.
    Unknown,
    /// The extension is not in this database.
    NotInstalled,
    /// The extension there is of another version than this library.
    OtherVersion,
    /// All that was due is done.
    Swept,
    /// The same but for a step that somebody's lock kept from being taken.
    Delayed,
    /// As much as there was time for is done.
    Cut,
    /// With an error.
    Failed,
}

/// What a visit tells the launcher.
#[derive(Clone, Copy)]
pub struct Report {
    /// The database.
    pub database: u32,
    /// How the visit ended.
    pub ended: Ended,
    /// Which step the next visit is to begin with; before a visit: it.
    pub step: usize,
    /// The error, or what the sweep could not do yet.
    pub said: Text,
}

/// What launcher, visits and backends tell each other.
pub struct Board {
    /// One visit at a time.
    pub report: Report,
    /// When databases were swept last.
    pub visited: [(u32, i64); DATABASES_MAX],
    /// Databases in which a backend has just found the extension.
    pub announced: [u32; ANNOUNCED_MAX],
    /// How many of them there are.
    pub announced_count: usize,
}

// SAFETY: plain values; who reads and writes them has the lock.
unsafe impl PGRXSharedMemory for Board {}

impl Default for Board {
    fn default() -> Board {
        Board {
            report: Report { database: 0, ended: Ended::Unknown, step: 0, said: Text::EMPTY },
            visited: [(0, 0); DATABASES_MAX],
            announced: [0; ANNOUNCED_MAX],
            announced_count: 0,
        }
    }
}

/// See [`Board`].
// SAFETY: no other lock of this server has this name.
pub static BOARD: PgLwLock<Board> = unsafe { PgLwLock::new(c"idempotence worker") };

/// The launcher's process, 0 when there is none. Without a lock, since it is written on the way out too.
// SAFETY: nothing else in this server's shared memory has this name.
pub static LAUNCHER: PgAtomic<AtomicI32> = unsafe { PgAtomic::new(c"idempotence launcher") };

/// Whether there is a board: backends inherit the postmaster's memory, those that load the library by
/// themselves do not find it set.
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Reserves the board, while the postmaster preloads the library.
pub fn init() {
    pg_shmem_init!(BOARD);
    pg_shmem_init!(LAUNCHER);
    PRELOADED.store(true, Relaxed);
}

fn preloaded() -> bool {
    PRELOADED.load(Relaxed)
}

/// The launcher's process, 0 when it does not run, `None` when the library is not preloaded.
pub fn launcher_pid() -> Option<i32> {
    preloaded().then(|| LAUNCHER.get().load(Relaxed))
}

/// When the worker swept a database last.
pub fn last_visit(database: pg_sys::Oid) -> Option<i64> {
    if !preloaded() {
        return None;
    }
    let board = BOARD.share();
    board.visited.iter().find(|(visited, _)| *visited == database.to_u32()).map(|(_, at)| *at)
}

/// Tells the launcher that the extension is in this database: it may take it for one without.
pub fn announce() {
    if !preloaded() || pg::in_recovery() {
        return;
    }
    let database = pg::current_database().to_u32();
    let known = |board: &Board| board.announced[..board.announced_count].contains(&database);
    if known(&BOARD.share()) {
        return;
    }
    let mut board = BOARD.exclusive();
    let count = board.announced_count;
    if count < ANNOUNCED_MAX && !known(&board) {
        board.announced[count] = database;
        board.announced_count += 1;
    }
}
