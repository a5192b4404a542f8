//! A visit: a process that connects to one database, takes the steps of the sweep there, and ends.
//!
//! A visit lasts for a second at most, and ends at once when it is told to. DROP DATABASE and CREATE DATABASE
//! … TEMPLATE wait no longer than five seconds until nobody else is connected, and a server that is to stop waits
//! for all of its processes. The next visit begins with the step that this one had no time for.
//!
//! A step that fails, or meets a locked table, is reported, and the next step is taken.

use crate::board::{self, Ended, Report, Text};
use crate::error::{Error, legible, or_raise};
use crate::pg::{self, Failure};
use crate::store::{catalog, locked, sql};
use crate::sweep::{self, Step};
use pgrx::prelude::*;
use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

/// How long a visit may last once it is connected.
const STAY: Duration = Duration::from_secs(1);

/// Settings that hold for a visit whatever is set for the database or the role. `lock_timeout` is short, since
/// others may queue behind a visit that waits for a lock.
const SETTINGS: [(&CStr, &CStr); 10] = [
    (c"application_name", c"idempotence"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"lock_timeout", c"200ms"),
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
    // Statements of a millisecond are worth no parallel workers and no compiler.
    (c"max_parallel_workers_per_gather", c"0"),
    (c"jit", c"off"),
];

/// The main function of a visit's process.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idempotence_visit(database: pg_sys::Datum) {
    // SIGTERM ends the process at the next safe point, even within a statement.
    pg::let_signals_in(pg::die);
    let database = pg_sys::Oid::from(database.value() as u32);
    // SAFETY: called once, in a worker registered with access to databases.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0) };
    for (name, value) in SETTINGS {
        pg::set_for_process(name, value);
    }
    pg::plan_alone_without_timeout();

    pg::cancel_worker_after(STAY.as_millis() as i32);
    let first = board::open().report.step;
    let mut visit =
        Visit { start: Instant::now(), advanced: false, extension: None, failed: None, delayed: Vec::new() };
    let (ended, step) = visit.sweep(first);
    let (ended, said) = match visit.failed {
        Some(_) if visit.was_dropped() => (Ended::NotInstalled, String::new()),
        Some(said) if ended == Ended::OtherVersion => (ended, said),
        Some(said) => (Ended::Failed, said),
        None => (ended, visit.delayed.join("; ")),
    };
    let mut board = board::open();
    board.report = Report { database: database.to_u32(), ended, step, said: Text::of(&said) };
}

struct Visit {
    start: Instant,
    /// Whether a transaction of a step has committed.
    advanced: bool,
    /// The extension that the visit has found.
    extension: Option<pg_sys::Oid>,
    /// The message of the first failure.
    failed: Option<String>,
    /// What could not be done yet, and who is in the way, in words.
    delayed: Vec<String>,
}

impl Visit {
    /// Takes all steps in turn, beginning with number `first`, until the time is up. Returns how the visit ended,
    /// and the number of the step that the next visit is to begin with.
    fn sweep(&mut self, first: usize) -> (Ended, usize) {
        let look = || {
            extension().map(|extension| {
                catalog::check_version();
                (extension, pg::current_database_name())
            })
        };
        let database = match pg::in_transaction(c"idempotence: look for the extension", look) {
            Ok(Some((extension, database))) => {
                self.extension = Some(extension);
                database
            }
            Ok(None) => return (Ended::NotInstalled, 0),
            Err(Failure { code, said }) => {
                self.failed = Some(said);
                let is_other = code == PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
                return (if is_other { Ended::OtherVersion } else { Ended::Failed }, 0);
            }
        };
        let mut all_done = true;
        for nth in 0..Step::ALL.len() {
            let place = (first + nth) % Step::ALL.len();
            let step = Step::ALL[place];
            match self.take(&database, step) {
                Ok(done) => all_done &= done,
                Err(Ended::Cut) if nth == 0 && !self.advanced => {
                    // The step had all the time of the visit. The next visit begins with the step after it.
                    self.failed.get_or_insert(format!("step \"{}\" takes longer than a visit may last", step.name));
                    return (Ended::Failed, place + 1);
                }
                Err(Ended::Cut) if all_done => return (Ended::Cut, place),
                Err(Ended::Cut) => return (Ended::Delayed, place),
                Err(ended) => return (ended, 0),
            }
        }
        (if all_done { Ended::Swept } else { Ended::Delayed }, 0)
    }

    /// Takes a step to its end, transaction by transaction. Gives whether all is done that was due in it, and not if a table's
    /// lock could not be had, or there was an error; or how the whole visit has to end.
    fn take(&mut self, database: &str, step: Step) -> Result<bool, Ended> {
        let activity = CString::new(format!("idempotence: {}", step.name)).unwrap_or_default();
        loop {
            if self.start.elapsed() >= STAY {
                return Err(Ended::Cut);
            }
            match pg::in_transaction(&activity, || or_raise(sweep::take(step))) {
                // Somebody sweeps by hand, or restores.
                Ok(None) => {
                    let who = pg::in_transaction(c"idempotence: look who is in the way", || or_raise(sweeping(step)));
                    self.delayed.extend(who.ok().flatten());
                    return Err(Ended::Delayed);
                }
                Ok(Some(swept)) => {
                    // The ring turns once in days, so its steps are logged; the others are routine.
                    let level = if step.is_of_ring() { PgLogLevel::LOG } else { PgLogLevel::DEBUG1 };
                    for line in &swept.done {
                        let message = legible(&format!("idempotence, database \"{database}\": {line}"));
                        pgrx::ereport!(level, PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message);
                    }
                    self.delayed.extend(swept.delayed);
                    self.advanced = true;
                    if !swept.more {
                        return Ok(true);
                    }
                }
                // The visit's time is up.
                Err(Failure { code: PgSqlErrorCode::ERRCODE_QUERY_CANCELED, .. }) => return Err(Ended::Cut),
                Err(Failure { code: PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, .. }) => {
                    let locked = pg::in_transaction(c"idempotence: look who is in the way", || or_raise(locked::by()));
                    if let Ok(Some(locked)) = locked
                        && !self.delayed.contains(&locked)
                    {
                        self.delayed.push(locked);
                    }
                    return Ok(false);
                }
                Err(Failure { said, .. }) => {
                    self.failed.get_or_insert(said);
                    return Ok(false);
                }
            }
        }
    }

    /// Whether the extension was dropped during the visit. What failed for that is nobody's concern, even where the
    /// extension was created again.
    fn was_dropped(&self) -> bool {
        self.extension.is_some()
            && pg::in_transaction(c"idempotence: look for the extension", extension)
                .is_ok_and(|now| now != self.extension)
    }
}

/// Says who holds the lock of a step.
fn sweeping(step: Step) -> Result<Option<String>, Error> {
    sql::first(&format!(
        "SELECT pg_catalog.concat('a sweep by hand, or a restore, is at work: held by ', h.holders)
         FROM (SELECT idempotence.advisory_holders({})) h (holders) WHERE h.holders IS NOT NULL",
        step.lock() as u16
    ))
}

/// The extension in this database, if it is there.
fn extension() -> Option<pg_sys::Oid> {
    // SAFETY: called in a transaction; the string is static.
    let oid = unsafe { pg_sys::get_extension_oid(c"idempotence".as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}
