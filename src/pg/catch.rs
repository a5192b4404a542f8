//! Catches errors of this extension and of PostgreSQL. Users' errors have to stay as they are, see `attempt.rs`.
//!
//! While pgrx unwinds an error of PostgreSQL, the error stays on PostgreSQL's error stack, so that it can be raised again
//! with everything that it says. The stack has five places. So an error is either raised again unchanged or flushed, and the
//! functions here decide which: they lend the error to a closure and return only what the closure makes of it.

use crate::error::Error;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// Runs `work`. If it raises an error, returns what `takes` makes of it, and flushes the error; where `takes` returns
/// nothing, the error is raised again. Nothing is rolled back here: either `takes` does it, or the caller raises another
/// error.
pub(super) fn caught<T, E>(work: impl FnOnce() -> T, takes: impl Fn(&CaughtError) -> Option<E>) -> Result<T, E> {
    let takes = &AssertUnwindSafe(takes);
    PgTryBuilder::new(AssertUnwindSafe(|| Ok(work())))
        .catch_others(move |error| {
            let takes: &AssertUnwindSafe<_> = takes;
            takes.0(&error).map_or_else(|| error.rethrow(), Err)
        })
        .execute()
}

/// Runs `work` in a subtransaction. On an error, and where `keep` does not want what it gives, all that it did is rolled
/// back. Of an error the caller gets what `takes` makes of it, as in [`caught`].
///
/// An ERROR may be swallowed only by rolling back a subtransaction. An error that goes on rolls it back, too: whatever
/// catches that error (an exception block of PL/pgSQL, for example) rolls back the innermost subtransaction, which has to be
/// its own. It is entered and left as PL/pgSQL does it for an exception block: the memory context and the resource owner stay
/// those of the caller.
pub(super) fn in_subtransaction<T, E>(
    work: impl FnOnce() -> T,
    keep: impl FnOnce(&T) -> bool,
    takes: impl Fn(&CaughtError) -> Option<E>,
) -> Result<T, E> {
    // SAFETY: variables of the backend.
    let (context, owner) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) };
    // SAFETY: the context and the owner were current before the subtransaction began, and outlive it.
    let back_to_caller = || unsafe {
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
    };
    // At the time of a rollback pgrx has copied the error, which stays on PostgreSQL's error stack. Nothing that runs during
    // the rollback may flush the stack.
    let roll_back = || {
        back_to_caller();
        // SAFETY: ours is the innermost subtransaction, since `work` leaves none of its own open.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() }
        back_to_caller();
    };
    // SAFETY: called inside a transaction.
    unsafe {
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
    }
    let work = || {
        let done = work();
        let kept = keep(&done);
        if kept {
            // SAFETY: ours is the innermost subtransaction. The release may raise an error: that of a foreign data wrapper
            // goes to its server.
            unsafe { pg_sys::ReleaseCurrentSubTransaction() }
            back_to_caller();
        }
        (done, kept)
    };
    let (done, kept) = caught(work, |error| {
        roll_back();
        takes(error)
    })?;
    if !kept {
        roll_back();
    }
    Ok(done)
}

/// Runs `work` in a subtransaction. If it raises an error with this code, rolls back all that it did, and gives `None`.
pub fn rolled_back_on<T>(code: PgSqlErrorCode, work: impl FnOnce() -> T) -> Option<T> {
    in_subtransaction(work, |_| true, |error| (report_of(error).sql_error_code() == code).then_some(())).ok()
}

/// What an error says.
pub(super) fn report_of(error: &CaughtError) -> &ErrorReportWithLevel {
    match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report,
        CaughtError::RustPanic { ereport, .. } => ereport,
    }
}

/// Runs `work`. If it raises an error of PostgreSQL with this code, returns what `replacement` makes of it, and flushes the
/// error; where `replacement` returns nothing, the error is raised again. Nothing was rolled back, so the caller raises the
/// replacement. Unlike `caught` this costs nothing where there is no error.
pub fn replaced<T, E>(
    code: PgSqlErrorCode,
    work: impl FnOnce() -> T,
    replacement: impl FnOnce(&ErrorReportWithLevel) -> Option<E>,
) -> Result<T, E> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let error = payload.downcast::<CaughtError>().unwrap_or_else(|other| std::panic::resume_unwind(other));
        let replaced = match &*error {
            CaughtError::PostgresError(report) if report.sql_error_code() == code => replacement(report),
            _ => None,
        };
        let replaced = replaced.unwrap_or_else(|| error.rethrow());
        // SAFETY: the error was copied from PostgreSQL's error stack, and is not raised again.
        unsafe { pg_sys::FlushErrorState() };
        replaced
    })
}

/// As [`replaced`], and raises the replacement.
pub fn replacing_error<T>(
    code: PgSqlErrorCode,
    work: impl FnOnce() -> T,
    replacement: impl FnOnce(&ErrorReportWithLevel) -> Option<Error>,
) -> T {
    replaced(code, work, replacement).unwrap_or_else(|error| error.raise())
}

/// An error that has ended a transaction of the worker's.
pub struct Failure {
    /// The error's SQLSTATE.
    pub code: PgSqlErrorCode,
    /// The error's message and detail.
    pub said: String,
}

/// Runs `work` in a transaction of a worker, and rolls it back on an error. `pg_stat_activity` shows `activity` meanwhile.
pub fn in_transaction<T>(activity: &CStr, work: impl FnOnce() -> T) -> Result<T, Failure> {
    // SAFETY: this process is connected (the launcher to the shared catalogs only) and outside of any transaction. An error
    // on the way is caught below.
    let run = || unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let done = work();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        done
    };
    let done = caught(run, |error| {
        // SAFETY: the transaction that was started above is open, or was just being committed. An error in the rollback of a
        // subtransaction has left that open too. pgrx has copied the error, which stays on PostgreSQL's error stack.
        unsafe { pg_sys::AbortOutOfAnyTransaction() };
        let report = report_of(error);
        let detail = report.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        Some(Failure { code: report.sql_error_code(), said: format!("{}{detail}", report.message()) })
    });
    // SAFETY: the process is connected.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()) };
    done
}
