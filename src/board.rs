//! The board: what the launcher, visits and backends tell each other in shared memory.
//!
//! One lock guards the board. It is held only to copy a few values, and nothing is done under it that could fail.
//! When any process crashes, the server makes the board anew. There is a board only where the library is preloaded.

use crate::domain::moments::Moments;
use crate::pg::{self, Exclusive, Shared, SharedText};
use std::collections::BTreeMap;

/// The number of databases whose last visit is remembered. One more replaces the database that was visited longest
/// ago, which then looks as if it had never been visited.
const DATABASES_MAX: usize = 4096;

/// The number of databases whose failure is remembered. One more replaces the failure that is the oldest.
const FAILURES_MAX: usize = 32;

/// The number of databases that can be announced at once. Others wait for their usual visit.
const ANNOUNCED_MAX: usize = 256;

/// A text on the board.
pub type Text = SharedText<1000>;

/// How a visit ended.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Ended {
    /// It has reported nothing: it could not connect, or was killed.
    #[default]
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

/// How far back events are counted, in microseconds: an hour.
const LATELY_US: i64 = 3_600_000_000;

/// What the launcher, visits and backends tell each other; zeros at first.
pub struct Board {
    /// The launcher's process id, 0 when there is none.
    pub launcher: i32,
    /// The report of the present or last visit. The launcher runs one visit at a time.
    pub report: Report,
    /// Databases, and when each was swept last; (0, 0) is a free place.
    visited: [(u32, i64); DATABASES_MAX],
    /// The databases whose last visit failed, when that was, and the error; zeros are a free place.
    failures: [(u32, i64, Text); FAILURES_MAX],
    /// Databases in which a backend has just found the extension; 0 is a free place.
    announced: [u32; ANNOUNCED_MAX],
    /// How often the launcher was started, and the last moments at which it was started anew.
    starts: (u64, Moments<64>),
    /// When a wait for a lock of ours ended in a deadlock, by the database.
    deadlocks: Moments<1024>,
    /// When the clock has jumped last, and by how much; (0, 0): it has not.
    jump: (i64, i64),
}

static BOARD: Shared<Board> = Shared::new();

/// Reserves the board. Called while the postmaster preloads the library.
pub fn init() {
    BOARD.want(c"idempotence worker", || {});
}

/// The board, for the launcher and visits.
pub fn open() -> Exclusive<'static, Board> {
    BOARD.lock().expect("the worker runs only where the library is preloaded")
}

/// The launcher's process id; 0 when it does not run, `None` when the library is not preloaded.
pub fn launcher_pid() -> Option<i32> {
    Some(BOARD.lock()?.launcher)
}

/// When a database was swept last; and when the last visit failed, and with what error, if it did.
type Visited = (Option<i64>, Option<(i64, String)>);

/// The databases that were swept, or could not be swept, since the server came up.
pub fn visits() -> BTreeMap<u32, Visited> {
    let mut all: BTreeMap<u32, Visited> = BTreeMap::new();
    let Some((swept, failures)) = BOARD.lock().map(|board| (board.visited, board.failures)) else { return all };
    for (database, at) in swept {
        all.entry(database).or_default().0 = Some(at);
    }
    for (database, at, said) in failures {
        all.entry(database).or_default().1 = Some((at, said.get()));
    }
    // That were the free places.
    all.remove(&0);
    all
}

/// Notes that a database was swept now, or could not be, and the error.
pub fn note_visit(database: u32, swept: bool, failed: Option<Text>) {
    let now_us = pg::now_us();
    let mut board = open();
    // The database's own entry, or else a free one, or else the oldest.
    if let Some(place) = board.failures.iter_mut().min_by_key(|(of, at, _)| (*of != database, *at)) {
        match failed {
            Some(said) => *place = (database, now_us, said),
            None if place.0 == database => *place = (0, 0, Text::EMPTY),
            None => {}
        }
    }
    if swept && let Some(place) = board.visited.iter_mut().min_by_key(|(of, at)| (*of != database, *at)) {
        *place = (database, now_us);
    }
}

/// Tells the launcher that the extension is in this database. The launcher may still believe that it is not.
pub fn announce() {
    if pg::in_recovery() {
        return;
    }
    let database = pg::current_database().to_u32();
    let Some(mut board) = BOARD.lock() else { return };
    // Those that were announced stand before the free places.
    if let Some(place) = board.announced.iter_mut().find(|place| [0, database].contains(place)) {
        *place = database;
    }
}

/// Takes the databases that were announced.
pub fn take_announced() -> [u32; ANNOUNCED_MAX] {
    std::mem::replace(&mut open().announced, [0; ANNOUNCED_MAX])
}

/// Notes that this process, the launcher, was started. The first start since the server came up is none anew.
pub fn note_start() {
    let (now_us, pid) = (pg::now_us(), pg::process_id());
    let mut board = open();
    board.launcher = pid;
    if board.starts.0 > 0 {
        board.starts.1.note(0, now_us);
    }
    board.starts.0 += 1;
}

/// How often the launcher was started anew since the server came up, and within the last hour; `None` when the library
/// is not preloaded.
pub fn restarts() -> Option<(u64, usize)> {
    let now_us = pg::now_us();
    let (starts, anew) = BOARD.lock()?.starts;
    Some((starts.saturating_sub(1), anew.count(0, now_us - LATELY_US, now_us)))
}

/// Notes that PostgreSQL has ended a wait for a lock of ours because of a deadlock.
pub fn note_deadlock() {
    let (database, now_us) = (pg::current_database().to_u32(), pg::now_us());
    if let Some(mut board) = BOARD.lock() {
        board.deadlocks.note(database, now_us);
    }
}

/// How many waits for locks of ours have ended in a deadlock within the last hour in this database; `None` when the
/// library is not preloaded.
pub fn deadlocks() -> Option<usize> {
    let (database, now_us) = (pg::current_database().to_u32(), pg::now_us());
    Some(BOARD.lock()?.deadlocks.count(database, now_us - LATELY_US, now_us))
}

/// Notes that the clock has jumped.
pub fn note_jump(by_us: i64) {
    let now_us = pg::now_us();
    open().jump = (now_us, by_us);
}

/// When the clock has jumped last since the server came up, by the clock as it was set then, and by how much; `None`
/// also when the library is not preloaded.
pub fn jump() -> Option<(i64, i64)> {
    Some(BOARD.lock()?.jump).filter(|(at_us, _)| *at_us != 0)
}
