//! Catching errors of ours and of PostgreSQL. Users' errors have to stay as they are, see `attempt.rs`.

use crate::error::Error;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;

/// Runs `work`. Gives what `takes` makes of an error; where that is nothing, the error goes on. Whatever is not rolled back
/// by `takes` is rolled back by nobody, so the caller has to raise an error then.
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
    // By the time of a rollback pgrx has copied the error out of ErrorContext and has cleared PostgreSQL's error state.
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

/// Runs `work`. If it raises an error of PostgreSQL with this code, `replacement` is given the error and may make another
/// one, which is raised instead.
pub fn replacing_error<T>(
    code: PgSqlErrorCode,
    work: impl FnOnce() -> T,
    replacement: impl FnOnce(&ErrorReportWithLevel) -> Option<Error>,
) -> T {
    caught_of_server(code, work).unwrap_or_else(|error| match replacement(&error) {
        Some(other) => other.raise(),
        None => CaughtError::PostgresError(*error).rethrow(),
    })
}

/// Runs `work`; gives its error if that is one of PostgreSQL's with this code. The caller has to raise an error. Where there
/// is none this costs nothing, unlike a `PgTryBuilder`.
pub fn caught_of_server<T>(code: PgSqlErrorCode, work: impl FnOnce() -> T) -> Result<T, Box<ErrorReportWithLevel>> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        match payload.downcast::<CaughtError>().map(|caught| *caught) {
            Ok(CaughtError::PostgresError(error)) if error.sql_error_code() == code => Box::new(error),
            Ok(other) => other.rethrow(),
            Err(payload) => std::panic::resume_unwind(payload),
        }
    })
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
        // subtransaction has left that open too. pgrx has taken the error out of PostgreSQL's error state.
        unsafe { pg_sys::AbortOutOfAnyTransaction() };
        let report = report_of(error);
        let detail = report.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        Some(Failure { code: report.sql_error_code(), said: format!("{}{detail}", report.message()) })
    });
    // SAFETY: the process is connected.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()) };
    done
}
