//! A visit: one process, one database, all steps of the sweep, and gone again.
//!
//! It stays for a second at most, and ends at once when it is told to: DROP DATABASE and CREATE DATABASE
//! … TEMPLATE wait for five seconds until nobody else is connected, and a server that is to stop waits
//! for all of its processes. What there was no time for the next visit begins with.
//!
//! No step keeps the others from being taken: one that fails, or meets a locked table, is reported.

use super::process::{self, Failure};
use crate::board::{BOARD, Ended, Report, Text};
use crate::error::{Error, or_raise};
use crate::pg::{self, OnTerminate};
use crate::store::{catalog, sql};
use crate::sweep::progress::Progress;
use crate::sweep::{self, Step};
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_int};
use std::time::{Duration, Instant};

const STAY: Duration = Duration::from_secs(1);

/// What database and role may not change. The wait for another's lock is short: others may queue behind us.
const SETTINGS: [(&CStr, &CStr); 10] = [
    (c"application_name", c"idempotence"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"lock_timeout", c"200ms"),
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
    // One process, and no compiler for statements of a millisecond.
    (c"max_parallel_workers_per_gather", c"0"),
    (c"jit", c"off"),
];

/// The process.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idempotence_visit(database: pg_sys::Datum) {
    pg::let_signals_in(OnTerminate::Die);
    let database = pg_sys::Oid::from(database.value() as u32);
    // SAFETY: once, in a worker registered with access to databases.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0) };
    for (name, value) in SETTINGS {
        pg::set_for_process(name, value);
    }
    pg::plan_alone_without_timeout();

    cancel_after(STAY);
    let first = BOARD.share().report.step;
    let mut visit = Visit { start: Instant::now(), failed: None, delayed: Vec::new() };
    let (ended, step) = visit.sweep(first);
    let (ended, said) = match visit.failed {
        Some(said) if ended == Ended::OtherVersion => (ended, said),
        Some(said) => (Ended::Failed, said),
        None => (ended, visit.delayed.join("; ")),
    };
    let mut board = BOARD.exclusive();
    board.report = Report { database: database.to_u32(), ended, step, said: Text::of(&said) };
}

struct Visit {
    start: Instant,
    /// What the first failure said.
    failed: Option<String>,
    /// What could not be done, and who is in the way.
    delayed: Vec<String>,
}

/// How a step ended.
enum Taken {
    Done,
    /// Somebody sweeps by hand, or restores.
    Elsewhere,
    /// The time was up; whether anything of the step was done in it.
    Cut {
        moved: bool,
    },
    /// With a lock that was not had, or with an error.
    Not,
}

impl Visit {
    /// Takes the steps in turn, beginning with that at `first`, until the time is up; how that ended, and
    /// which step is to be the first of the next visit.
    fn sweep(&mut self, first: usize) -> (Ended, usize) {
        let look = || {
            is_installed().then(|| {
                catalog::check_version();
                pg::current_database_name()
            })
        };
        let database = match process::transaction(c"idempotence: look for the extension", look) {
            Ok(Some(database)) => database,
            Ok(None) => return (Ended::NotInstalled, 0),
            Err(failure) if failure.code == PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE => {
                self.failed = Some(failure.said);
                return (Ended::OtherVersion, 0);
            }
            Err(failure) => {
                self.failed = Some(failure.said);
                return (Ended::Failed, 0);
            }
        };
        let mut whole = true;
        for turn in 0..Step::ALL.len() {
            let place = (first + turn) % Step::ALL.len();
            let step = Step::ALL[place];
            match self.take(&database, step) {
                Taken::Done => {}
                Taken::Elsewhere => {
                    let who = process::transaction(c"idempotence: look who is in the way", || or_raise(sweeping()));
                    self.delayed.extend(who.ok().flatten());
                    return (Ended::Delayed, 0);
                }
                Taken::Not => whole = false,
                Taken::Cut { moved: false } if turn == 0 => {
                    // It had all the time there is.
                    self.failed.get_or_insert(format!("step \"{}\" takes longer than a visit may last", step.name()));
                    return (Ended::Failed, place + 1);
                }
                Taken::Cut { .. } => return (Ended::Cut, place),
            }
        }
        (if whole { Ended::Swept } else { Ended::Delayed }, 0)
    }

    fn take(&mut self, database: &str, step: Step) -> Taken {
        let activity = CString::new(format!("idempotence: {}", step.name())).unwrap_or_default();
        let mut moved = false;
        loop {
            if self.start.elapsed() >= STAY {
                return Taken::Cut { moved };
            }
            match process::transaction(&activity, || or_raise(sweep::take(step))) {
                Ok(None) => return Taken::Elsewhere,
                Ok(Some(swept)) => {
                    log(database, step, &swept);
                    self.delayed.extend(swept.delayed);
                    moved = true;
                    if !swept.more {
                        return Taken::Done;
                    }
                }
                Err(failure) => return self.not_taken(failure, moved),
            }
        }
    }

    fn not_taken(&mut self, failure: Failure, moved: bool) -> Taken {
        match failure.code {
            PgSqlErrorCode::ERRCODE_QUERY_CANCELED => return Taken::Cut { moved },
            PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE => {
                let locked = process::transaction(c"idempotence: look who is in the way", || or_raise(locked()));
                if let Ok(Some(locked)) = locked
                    && !self.delayed.contains(&locked)
                {
                    self.delayed.push(locked);
                }
            }
            _ => _ = self.failed.get_or_insert(failure.said),
        }
        Taken::Not
    }
}

/// Which of our tables are locked against those who write them, and by whom.
fn locked() -> Result<Option<String>, Error> {
    sql::first(
        "SELECT pg_catalog.string_agg(pg_catalog.format('table %s is locked: held by %s', c.oid::pg_catalog.regclass, h.holders), '; ' ORDER BY c.relname)
         FROM pg_catalog.pg_class c
         CROSS JOIN LATERAL (SELECT idempotence.holders(ARRAY[c.oid], '{ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}')) h (holders)
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'idempotence'::pg_catalog.regnamespace AND c.relkind OPERATOR(pg_catalog.=) 'r'
           AND h.holders IS NOT NULL",
    )
}

/// Who has the sweep's lock.
fn sweeping() -> Result<Option<String>, Error> {
    sql::first(
        "SELECT pg_catalog.concat('a sweep by hand, or a restore, is at work: held by ', h.holders)
         FROM (SELECT idempotence.advisory_holders(7659)) h (holders) WHERE h.holders IS NOT NULL",
    )
}

fn is_installed() -> bool {
    // SAFETY: in a transaction; the string is static.
    unsafe { pg_sys::get_extension_oid(c"idempotence".as_ptr(), true) != pg_sys::InvalidOid }
}

/// The ring moves once in days; all else is routine.
fn log(database: &str, step: Step, swept: &Progress) {
    let level = match step {
        Step::Empty | Step::Turn | Step::Close => PgLogLevel::LOG,
        _ => PgLogLevel::DEBUG1,
    };
    for line in &swept.done {
        let message = format!("idempotence, database \"{database}\": {line}");
        pgrx::ereport!(level, PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message);
    }
}

unsafe extern "C-unwind" {
    /// Declared here because pgrx hides it: has a timer go off.
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
}

/// STATEMENT_TIMEOUT of `TimeoutId`: cancels what runs.
const STATEMENT_TIMEOUT: c_int = 3;

fn cancel_after(time: Duration) {
    // SAFETY: connecting has registered this timeout's handler; SIGINT, which that sends to this process,
    // cancels in a worker that is connected to a database.
    unsafe { enable_timeout_after(STATEMENT_TIMEOUT, time.as_millis() as c_int) }
}
