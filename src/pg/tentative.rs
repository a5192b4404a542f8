//! Statements on tables of users that are given up, and undone, if they take too long.
//!
//! Such a statement may wait on another server, and a trigger of the table may do anything. So an alarm bounds all of it. It
//! may be early by what the statement does besides waiting. A wait for a lock of this server is bounded by `lock_timeout`
//! beside that, which counts nothing else.

use super::clock::Alarm;
use super::subtransaction::Subtransaction;
use crate::error::Error;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};
use std::ffi::{CString, c_int};
use std::panic::AssertUnwindSafe;

/// A statement takes a while without any wait, on another server too. No alarm goes off sooner.
const ALARM_US_MIN: i64 = 100_000;

/// What ends the statements of a caller who waits no longer.
struct Bound {
    _alarm: Alarm,
    lock_timeout: Option<LockTimeout>,
}

impl Bound {
    fn set(wait_us: i64) -> Bound {
        Bound { lock_timeout: LockTimeout::set(wait_us), _alarm: Alarm::set(wait_us.max(ALARM_US_MIN)) }
    }

    /// Ends it. An error ends `lock_timeout` with its (sub)transaction.
    fn end(self) {
        if let Some(lock_timeout) = self.lock_timeout {
            lock_timeout.end();
        }
    }
}

/// `lock_timeout`, set for a while as a function sets it that has a setting of its own. Triggers that set it too do not see
/// to it that ours stays.
struct LockTimeout {
    level: c_int,
}

impl LockTimeout {
    /// Sets it, unless the user's own is as short or shorter.
    fn set(wait_us: i64) -> Option<LockTimeout> {
        let ms = i32::try_from(wait_us.div_euclid(1000).max(1)).unwrap_or(i32::MAX);
        // SAFETY: a variable of this backend, which has one thread.
        let callers = unsafe { pg_sys::LockTimeout };
        if callers > 0 && callers <= ms {
            return None;
        }
        let value = CString::new(ms.to_string()).unwrap_or_default();
        // SAFETY: the strings are terminated. The level is ended by end(), or with the (sub)transaction.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"lock_timeout".as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            Some(LockTimeout { level })
        }
    }

    fn end(self) {
        // SAFETY: the level is the innermost one, since statements leave none of their own open.
        unsafe { pg_sys::AtEOXact_GUC(true, self.level) }
    }
}

/// Runs `work`. By then a cancel that is due is reported.
fn in_time<T>(wait_us: Option<i64>, work: impl FnOnce() -> T) -> T {
    let bound = wait_us.map(Bound::set);
    let done = work();
    if let Some(bound) = bound {
        bound.end();
    }
    pg_sys::check_for_interrupts!();
    done
}

/// Whether an error says that a bound of ours has ended the work. A `lock_timeout` of the user's is not ours.
fn ran_out(error: &CaughtError, users_ms: i32, wait_us: Option<i64>) -> bool {
    let code = match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report.sql_error_code(),
        CaughtError::RustPanic { .. } => return false,
    };
    match code {
        PgSqlErrorCode::ERRCODE_QUERY_CANCELED => Alarm::rang(),
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE => {
            wait_us.is_some_and(|wait_us| users_ms <= 0 || i64::from(users_ms) * 1000 > wait_us.max(1000))
        }
        _ => false,
    }
}

/// The user's own `lock_timeout`; 0: there is none.
fn users_lock_timeout() -> i32 {
    // SAFETY: a variable of this backend.
    unsafe { pg_sys::LockTimeout }
}

/// Runs `work` in a subtransaction. If it takes longer than `wait_us` (`None`: no bound of ours), or if `keep` does not want
/// what it gives, rolls back all that it did. Gives `None` in the first case. If the user's own `lock_timeout` is shorter,
/// its end is an error.
pub fn tentatively<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, keep: impl FnOnce(&T) -> bool) -> Option<T> {
    let users_ms = users_lock_timeout();
    let subtransaction = Subtransaction::begin();
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| work.take().map(|work| in_time(wait_us, work)));
    let done = PgTryBuilder::new(run)
        .catch_others(|error| {
            subtransaction.roll_back();
            if ran_out(&error, users_ms, wait_us) { None } else { error.rethrow() }
        })
        .execute();
    match &done {
        Some(done) if keep(done) => subtransaction.commit(),
        Some(_) => subtransaction.roll_back(),
        None => {}
    }
    done
}

/// Runs `work`. If it takes longer than `wait_us` (`None`: no bound of ours), raises the error that `timed_out` makes. It
/// needs no subtransaction, since it swallows no error.
pub fn in_time_or_error<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, timed_out: impl FnOnce() -> Error) -> T {
    let users_ms = users_lock_timeout();
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| work.take().map(|work| in_time(wait_us, work)));
    let done = PgTryBuilder::new(run)
        .catch_others(|error| if ran_out(&error, users_ms, wait_us) { None } else { error.rethrow() })
        .execute();
    done.unwrap_or_else(|| timed_out().raise())
}

/// Runs `work` in a subtransaction. If it raises an error, or takes longer than `at_most_us`, rolls back all that it did, and
/// gives the error's message; `None`: it took too long. A cancel by anybody else, or a termination, goes on as an error.
pub fn undone_on_error<T>(at_most_us: i64, work: impl FnOnce() -> T) -> Result<T, Option<String>> {
    let users_ms = users_lock_timeout();
    let subtransaction = Subtransaction::begin();
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| work.take().map(|work| in_time(Some(at_most_us), work)).ok_or(None));
    let done = PgTryBuilder::new(run)
        .catch_others(|error| {
            subtransaction.roll_back();
            match &error {
                error if ran_out(error, users_ms, Some(at_most_us)) => Err(None),
                CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)
                    if !ENDS.contains(&report.sql_error_code()) =>
                {
                    Err(Some(report.message().to_owned()))
                }
                _ => error.rethrow(),
            }
        })
        .execute();
    if done.is_ok() {
        subtransaction.commit();
    }
    done
}

/// Errors that end more than the work at hand.
const ENDS: [PgSqlErrorCode; 4] = [
    PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
    PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN,
    PgSqlErrorCode::ERRCODE_CRASH_SHUTDOWN,
    PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
];
