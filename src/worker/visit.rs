//! A visit: one process, one database, all steps of the sweep, and gone again.
//!
//! It stays for a second at most, and ends at once when it is told to: DROP DATABASE and CREATE DATABASE
//! … TEMPLATE wait for five seconds until nobody else is connected, and a server that is to stop waits
//! for all of its processes.

use super::process::{self, Failure, OnTerminate};
use super::{BOARD, Ended, Report, Text};
use crate::error::or_raise;
use crate::pg;
use crate::protocol::sweep::{self, Step, Swept};
use pgrx::prelude::*;
use std::ffi::{CStr, CString, c_int};
use std::time::{Duration, Instant};

const STAY: Duration = Duration::from_secs(1);

/// What database and role may not change. The pause of another's lock is short: others may queue behind us.
const SETTINGS: [(&CStr, &CStr); 8] = [
    (c"application_name", c"idempotence"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"lock_timeout", c"200ms"),
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
];

/// The process.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idempotence_visit(database: pg_sys::Datum) {
    process::let_signals_in(OnTerminate::Die);
    let database = pg_sys::Oid::from(database.value() as u32);
    // SAFETY: once, in a worker registered with access to databases.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0) };
    for (name, value) in SETTINGS {
        process::set(name, value);
    }
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    process::set(c"transaction_timeout", c"0");

    cancel_after(STAY);
    let (ended, said) = sweep_all(Instant::now());
    let mut board = BOARD.exclusive();
    board.report = Report { database: database.to_u32(), ended, said: Text::of(&said) };
}

/// Takes the steps, until all is done or the time is up.
fn sweep_all(start: Instant) -> (Ended, String) {
    let look = || is_installed().then(pg::current_database_name);
    let database = match process::transaction(c"idempotence: look for the extension", look) {
        Ok(Some(database)) => database,
        Ok(None) => return (Ended::NotInstalled, String::new()),
        Err(failure) => return failed(failure),
    };
    let mut delayed = Vec::new();
    for step in Step::ALL {
        let activity = CString::new(format!("idempotence: {}", step.name())).unwrap_or_default();
        loop {
            if start.elapsed() >= STAY {
                return (Ended::Swept, delayed.join("; "));
            }
            match process::transaction(&activity, || or_raise(sweep::take(step))) {
                // Somebody sweeps by hand.
                Ok(None) => return (Ended::Swept, String::new()),
                Ok(Some(swept)) => {
                    log(&database, step, &swept);
                    delayed.extend(swept.delayed);
                    if !swept.more {
                        break;
                    }
                }
                Err(failure) => return failed(failure),
            }
        }
    }
    (Ended::Swept, delayed.join("; "))
}

fn is_installed() -> bool {
    // SAFETY: in a transaction; the string is static.
    unsafe { pg_sys::get_extension_oid(c"idempotence".as_ptr(), true) != pg_sys::InvalidOid }
}

/// The end of the time, a cancel and a table that somebody has locked are no failures: another visit comes.
fn failed(failure: Failure) -> (Ended, String) {
    match failure.code {
        PgSqlErrorCode::ERRCODE_QUERY_CANCELED => (Ended::Swept, String::new()),
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE => (Ended::Swept, failure.said),
        _ => (Ended::Failed, failure.said),
    }
}

/// The ring moves once in days; all else is routine.
fn log(database: &str, step: Step, swept: &Swept) {
    let level = match step {
        Step::Empty | Step::Turn | Step::Close => PgLogLevel::LOG,
        Step::Restore | Step::End | Step::Delete | Step::Tidy => PgLogLevel::DEBUG1,
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
