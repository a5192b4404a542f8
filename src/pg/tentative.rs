//! Statements on tables of users that are given up, and undone, if they wait or take too long.
//!
//! Such a statement may wait on another server, where `lock_timeout` does not reach. And each of several waits in a row would
//! have the whole time. So an alarm bounds them together. It ends no statement that is slow without a wait.

use super::clock::{Alarm, Ends};
use super::subtransaction::Subtransaction;
use crate::error::Error;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};
use std::panic::AssertUnwindSafe;

/// Runs `work`. By then a cancel that is due is reported.
fn in_time<T>(alarm_us: Option<i64>, ends: Ends, work: impl FnOnce() -> T) -> T {
    let alarm = alarm_us.map(|us| Alarm::set(us, ends));
    let done = work();
    drop(alarm);
    pg_sys::check_for_interrupts!();
    done
}

/// Whether an error says that an alarm of ours has ended the work.
fn ran_out(error: &CaughtError) -> bool {
    match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => {
            report.sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED && Alarm::rang()
        }
        CaughtError::RustPanic { .. } => false,
    }
}

/// Runs `work` in a subtransaction. If it waits longer than `wait_us` (`None`: no bound of ours), or if `keep` does not want
/// what it gives, rolls back all that it did. Gives `None` in the first case. If the user's own `lock_timeout` is shorter,
/// its end is an error.
pub fn tentatively<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, keep: impl FnOnce(&T) -> bool) -> Option<T> {
    let subtransaction = Subtransaction::begin();
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| work.take().map(|work| in_time(wait_us, Ends::Waits, work)));
    let done = PgTryBuilder::new(run)
        .catch_others(|error| {
            subtransaction.roll_back();
            if ran_out(&error) { None } else { error.rethrow() }
        })
        .execute();
    match &done {
        Some(done) if keep(done) => subtransaction.commit(),
        Some(_) => subtransaction.roll_back(),
        None => {}
    }
    done
}

/// Runs `work`. If it waits longer than `wait_us` (`None`: no bound of ours), raises the error that `timed_out` makes. It
/// needs no subtransaction, since it swallows no error.
pub fn in_time_or_error<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, timed_out: impl FnOnce() -> Error) -> T {
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| work.take().map(|work| in_time(wait_us, Ends::Waits, work)));
    let done =
        PgTryBuilder::new(run).catch_others(|error| if ran_out(&error) { None } else { error.rethrow() }).execute();
    done.unwrap_or_else(|| timed_out().raise())
}

/// Runs `work` in a subtransaction. If it raises an error, or takes longer than `at_most_us`, rolls back all that it did, and
/// gives the error's message; `None`: it took too long. A cancel by anybody else, or a termination, goes on as an error.
pub fn undone_on_error<T>(at_most_us: i64, work: impl FnOnce() -> T) -> Result<T, Option<String>> {
    let subtransaction = Subtransaction::begin();
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| work.take().map(|work| in_time(Some(at_most_us), Ends::All, work)).ok_or(None));
    let done = PgTryBuilder::new(run)
        .catch_others(|error| {
            subtransaction.roll_back();
            match &error {
                error if ran_out(error) => Err(None),
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
