//! Transactions whose errors are caught, for the launcher and for visits.

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};
use std::cell::Cell;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// An error that was caught. Its transaction was rolled back.
pub(super) struct Failure {
    /// The error's SQLSTATE.
    pub code: PgSqlErrorCode,
    /// The error's message and detail.
    pub said: String,
}

/// Runs `work` in a transaction. `pg_stat_activity` shows `activity` meanwhile.
pub(super) fn transaction<T>(activity: &CStr, work: impl FnOnce() -> T) -> Result<T, Failure> {
    let failure = AssertUnwindSafe(Cell::new(None));
    let mut work = Some(work);
    let run = AssertUnwindSafe(|| {
        // SAFETY: this process is connected (the launcher to the shared catalogs only) and outside of any
        // transaction. An error on the way is caught below.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let done = work.take().map(|work| work());
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            done
        }
    });
    let caught = &failure;
    let done = PgTryBuilder::new(run)
        .catch_others(|error| {
            // SAFETY: the transaction that was started above is open, or was just being committed. pgrx has
            // taken the error out of PostgreSQL's error state.
            unsafe { pg_sys::AbortCurrentTransaction() };
            caught.replace(Some(describe(&error)));
            None
        })
        .execute();
    // SAFETY: the process is connected.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()) };
    done.ok_or_else(|| {
        let nothing = || Failure { code: PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, said: "no error was caught".into() };
        failure.take().unwrap_or_else(nothing)
    })
}

fn describe(error: &CaughtError) -> Failure {
    let report = match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report,
        CaughtError::RustPanic { ereport, .. } => ereport,
    };
    let detail = report.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    Failure { code: report.sql_error_code(), said: format!("{}{detail}", report.message()) }
}
