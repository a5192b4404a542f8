//! The board: what the launcher, visits and backends tell each other in shared memory.
//!
//! One lock guards the board. It is held only to copy a few values, and nothing is done under it that could fail.
//! When any process crashes, the server makes the board anew. There is a board only where the library is preloaded.

use crate::pg;
use pgrx::prelude::*;
use pgrx::{PGRXSharedMemory, PgAtomic, PgLwLock, pg_shmem_init, pg_sys};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// The number of databases whose last visit is remembered. One more replaces the database that was visited longest
/// ago, which then looks as if it had never been visited.
pub const DATABASES_MAX: usize = 4096;

/// The number of databases that can be announced at once. Others wait for their usual visit.
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

    /// The beginning of a text, as much of it as there is room for.
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
    /// It has reported nothing: it could not connect, or was killed.
    Unknown,
    /// The extension is not in this database.
    NotInstalled,
    /// The version of the extension in this database is not the version of this library.
    OtherVersion,
    /// All that was due is done.
    Swept,
    /// All that was due is done, except a step that another transaction's lock did not allow.
    Delayed,
    /// The time was up before all that was due was done.
    Cut,
    /// It ended with an error.
    Failed,
}

/// What a visit tells the launcher.
#[derive(Clone, Copy)]
pub struct Report {
    /// The database.
    pub database: u32,
    /// How the visit ended.
    pub ended: Ended,
    /// The launcher writes the step that the visit is to begin with. The visit writes the step that the next visit is
    /// to begin with.
    pub step: usize,
    /// The error, or what the sweep could not do yet and why.
    pub said: Text,
}

/// What the launcher, visits and backends tell each other.
pub struct Board {
    /// The report of the present or last visit. The launcher runs one visit at a time.
    pub report: Report,
    /// Databases, and when each was swept last; (0, 0) is a free place.
    pub visited: [(u32, i64); DATABASES_MAX],
    /// Databases in which a backend has just found the extension.
    pub announced: [u32; ANNOUNCED_MAX],
    /// The number of announced databases.
    pub announced_count: usize,
}

// SAFETY: plain values, which are read and written only under the lock.
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

/// The board.
// SAFETY: no other lock of this server has this name.
pub static BOARD: PgLwLock<Board> = unsafe { PgLwLock::new(c"idempotence worker") };

/// The launcher's process id, 0 when there is none. It needs no lock, so the launcher can clear it when it exits.
// SAFETY: nothing else in this server's shared memory has this name.
pub static LAUNCHER: PgAtomic<AtomicI32> = unsafe { PgAtomic::new(c"idempotence launcher") };

/// Whether there is a board. A backend inherits this from the postmaster if that preloaded the library. In a backend
/// that loads the library by itself it stays false.
static PRELOADED: AtomicBool = AtomicBool::new(false);

/// Reserves the board. Called while the postmaster preloads the library.
pub fn init() {
    pg_shmem_init!(BOARD);
    pg_shmem_init!(LAUNCHER);
    PRELOADED.store(true, Relaxed);
}

fn preloaded() -> bool {
    PRELOADED.load(Relaxed)
}

/// The launcher's process id; 0 when it does not run, `None` when the library is not preloaded.
pub fn launcher_pid() -> Option<i32> {
    preloaded().then(|| LAUNCHER.get().load(Relaxed))
}

/// When the worker swept a database last; `None` where that is not known.
pub fn last_visit(database: pg_sys::Oid) -> Option<i64> {
    if !preloaded() {
        return None;
    }
    let board = BOARD.share();
    board.visited.iter().find(|(visited, _)| *visited == database.to_u32()).map(|(_, at)| *at)
}

/// Tells the launcher that the extension is in this database. The launcher may still believe that it is not.
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
    debug_assert!(board.announced_count <= ANNOUNCED_MAX);
    let count = board.announced_count;
    if count < ANNOUNCED_MAX && !known(&board) {
        board.announced[count] = database;
        board.announced_count += 1;
    }
}
