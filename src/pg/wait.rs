//! Waits for locks that end: with our own `lock_timeout`, unless the user's is shorter.

use crate::error::Error;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport, ErrorReportWithLevel};
use pgrx::{PgLogLevel, PgSqlErrorCode, PgTryBuilder, function_name, pg_sys};
use std::cell::Cell;

/// Our bound on the heavyweight lock waits of this backend, lifted when dropped.
struct LockTimeoutMs {
    callers: i32,
}

impl LockTimeoutMs {
    /// Sets it, unless the user's own `lock_timeout` is as short: then that one rules, with its own error.
    fn bounded_by(wait_us: i64) -> Option<LockTimeoutMs> {
        let ms = i32::try_from(wait_us.div_euclid(1000).max(1)).unwrap_or(i32::MAX);
        // SAFETY: a variable of this backend, which is single-threaded; only waits for locks read it.
        unsafe {
            let callers = pg_sys::LockTimeout;
            if callers > 0 && callers <= ms {
                return None;
            }
            pg_sys::LockTimeout = ms;
            Some(LockTimeoutMs { callers })
        }
    }
}

impl Drop for LockTimeoutMs {
    fn drop(&mut self) {
        // SAFETY: as in bounded_by(). Also right while unwinding: it only writes a variable.
        unsafe { pg_sys::LockTimeout = self.callers }
    }
}

/// Runs `work`, whose waits for locks end after `wait_us` each (`None`: never), in a subtransaction;
/// `None` when one of them ran out, with all that `work` did rolled back.
///
/// A timeout is an ERROR, and an ERROR may be swallowed only by rolling a subtransaction back. Every
/// other error has to roll it back too, before it goes on: whoever catches it (an exception block of
/// PL/pgSQL, say) rolls back the innermost subtransaction and takes that for its own.
pub fn bounded<T>(wait_us: Option<i64>, work: impl FnOnce() -> T) -> Option<T> {
    let Some(bound) = wait_us.and_then(LockTimeoutMs::bounded_by) else {
        return Some(work());
    };
    let subtransaction = Subtransaction::begin();
    let mut work = Some(work);
    let run = std::panic::AssertUnwindSafe(|| work.take().map(|work| in_time(work)));
    let done = PgTryBuilder::new(run)
        .catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, |_| {
            subtransaction.roll_back();
            None
        })
        .catch_others(|error| {
            subtransaction.roll_back();
            error.rethrow()
        })
        .execute();
    drop(bound);
    if done.is_some() {
        subtransaction.commit();
    }
    done
}

/// Runs `work` to the end of its waits. The time may run out just when a lock is had: PostgreSQL then
/// reports it at the next occasion, which must be here, and not when nobody expects it any more.
fn in_time<T>(work: impl FnOnce() -> T) -> T {
    let done = work();
    pg_sys::check_for_interrupts!();
    done
}

/// An internal subtransaction, entered and left as PL/pgSQL's exception blocks do: memory context and
/// resource owner are those of the caller all along.
struct Subtransaction {
    context: pg_sys::MemoryContext,
    owner: pg_sys::ResourceOwner,
}

impl Subtransaction {
    fn begin() -> Subtransaction {
        // SAFETY: called inside a transaction; both outlive the subtransaction.
        unsafe {
            let callers = Subtransaction { context: pg_sys::CurrentMemoryContext, owner: pg_sys::CurrentResourceOwner };
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            pg_sys::MemoryContextSwitchTo(callers.context);
            callers
        }
    }

    fn commit(&self) {
        // SAFETY: ours is the innermost subtransaction.
        unsafe { pg_sys::ReleaseCurrentSubTransaction() }
        self.back_to_caller();
    }

    /// pgrx has copied the error out of ErrorContext and cleared PostgreSQL's error state by now.
    fn roll_back(&self) {
        self.back_to_caller();
        // SAFETY: ours is the innermost subtransaction: `work` leaves none of its own open.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() }
        self.back_to_caller();
    }

    fn back_to_caller(&self) {
        // SAFETY: both were current before the subtransaction began, and still exist.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.context);
            pg_sys::CurrentResourceOwner = self.owner;
        }
    }
}

/// Runs `work`, whose waits for locks end after `wait_us` each (`None`: never) with `timed_out`.
///
/// Unlike [`bounded`] it needs no subtransaction, and so no transaction id for one: the error of the
/// lock manager is replaced by another error, not swallowed.
pub fn bounded_or_error<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, timed_out: impl FnOnce() -> Error) -> T {
    let Some(bound) = wait_us.and_then(LockTimeoutMs::bounded_by) else {
        return work();
    };
    let mut work = Some(work);
    let run = std::panic::AssertUnwindSafe(|| work.take().map(|work| in_time(work)));
    let done = PgTryBuilder::new(run).catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, |_| None).execute();
    drop(bound);
    done.unwrap_or_else(|| timed_out().raise())
}

/// Runs `work`; an error of its with this code is replaced, if `replacement` makes another of its message.
pub fn replacing<T>(
    code: PgSqlErrorCode,
    work: impl FnOnce() -> T,
    replacement: impl FnOnce(&str) -> Option<Error>,
) -> T {
    let mut work = Some(work);
    let run = std::panic::AssertUnwindSafe(|| work.take().map(|work| work()));
    let replacement = std::panic::AssertUnwindSafe(Cell::new(Some(replacement)));
    let replacement = &replacement;
    let done = PgTryBuilder::new(run)
        .catch_when(code, |error| {
            if let CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) = &error
                && let Some(other) = replacement.take().and_then(|replacement| replacement(report.message()))
            {
                other.raise();
            }
            error.rethrow()
        })
        .execute();
    done.expect("work runs once")
}

/// Runs `work`; gives PostgreSQL's own error if it is that of memory or shared memory that is used up. The
/// caller has to raise an error in its place: nothing is rolled back here.
pub fn or_out_of_memory<T>(work: impl FnOnce() -> T) -> Result<T, Box<ErrorReportWithLevel>> {
    // Costs nothing where there is no error, which a `PgTryBuilder` would.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|payload| {
        match payload.downcast::<CaughtError>().map(|caught| *caught) {
            Ok(CaughtError::PostgresError(error))
                if error.sql_error_code() == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY =>
            {
                Box::new(error)
            }
            Ok(other) => other.rethrow(),
            Err(payload) => std::panic::resume_unwind(payload),
        }
    })
}

/// Waits until the transaction `xid`, which is inserting a row, has ended.
pub fn wait_for_transaction(xid: pg_sys::TransactionId) {
    // SAFETY: without a relation there is nothing to describe in the wait's error context.
    unsafe { pg_sys::XactLockTableWait(xid, std::ptr::null_mut(), std::ptr::null_mut(), pg_sys::XLTW_Oper::XLTW_None) }
}

/// Until when to wait, in all the waits of one call.
#[derive(Clone, Copy)]
pub struct Deadline(Option<i64>);

impl Deadline {
    /// So long from now; `None` is for ever.
    pub fn after(wait_us: Option<i64>) -> Deadline {
        Deadline(wait_us.map(|wait_us| super::server::now_us().saturating_add(wait_us)))
    }

    /// What is left of it.
    pub fn left_us(self) -> Option<i64> {
        self.0.map(|until| (until - super::server::now_us()).max(0))
    }
}

/// A transaction that has a lock, a prepared one too.
pub struct Holder(pg_sys::VirtualTransactionId);

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        self.parts() == other.parts()
    }
}

impl Holder {
    fn parts(&self) -> (i32, u32) {
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return (self.0.procNumber, self.0.localTransactionId);
        #[cfg(not(any(feature = "pg17", feature = "pg18")))]
        return (self.0.backendId, self.0.localTransactionId);
    }

    /// Waits for the end of the transaction.
    pub fn wait(&self) {
        // SAFETY: of a transaction that has ended meanwhile it says so at once.
        unsafe { pg_sys::VirtualXactLock(self.0, true) };
    }
}

/// The other transactions that have the lock in a mode that keeps this one from being had.
pub fn lock_holders(tag: &pg_sys::LOCKTAG, mode: i32) -> Vec<Holder> {
    let mut count = 0;
    // SAFETY: the tag is valid; the list has as many elements as were counted, and is freed with the memory
    // context.
    unsafe {
        let holders = pg_sys::GetLockConflicts(tag, mode, &mut count);
        std::slice::from_raw_parts(holders, count.unsigned_abs() as usize).iter().map(|vxid| Holder(*vxid)).collect()
    }
}

/// Whether this backend has the lock in this mode.
pub fn lock_is_held(tag: &pg_sys::LOCKTAG, mode: i32) -> bool {
    // SAFETY: the tag is valid. It looks into the backend's own table of locks.
    unsafe {
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return pg_sys::LockHeldByMe(tag, mode, false);
        #[cfg(not(any(feature = "pg17", feature = "pg18")))]
        return pg_sys::LockHeldByMe(tag, mode);
    }
}

/// Calls `attempt` until it says yes, up to `wait_us` (`None`: for ever), with pauses between that grow, as
/// does what it is told: how long it may take. A shorter `lock_timeout` of the user's bounds it too.
/// Whether it said yes.
pub fn retry(wait_us: Option<i64>, mut attempt: impl FnMut(i64) -> bool) -> bool {
    // SAFETY: a variable of this backend.
    let callers_us = match unsafe { pg_sys::LockTimeout } {
        0 => None,
        ms => Some(i64::from(ms) * 1000),
    };
    let callers_rules = callers_us.is_some_and(|callers| wait_us.is_none_or(|wait| callers < wait));
    let deadline = Deadline::after(if callers_rules { callers_us } else { wait_us });
    let mut attempt_us = ATTEMPT_US_MIN;
    loop {
        let left_us = deadline.left_us().unwrap_or(i64::MAX);
        if attempt(attempt_us.min(left_us)) {
            return true;
        }
        match deadline.left_us() {
            Some(0) if callers_rules => lock_timeout(),
            Some(0) => return false,
            left_us => nap(attempt_us.min(left_us.unwrap_or(i64::MAX))),
        }
        attempt_us = (attempt_us * 2).min(ATTEMPT_US_MAX);
    }
}

/// As PostgreSQL says it when the user's own `lock_timeout` has passed.
fn lock_timeout() -> ! {
    let message = "canceling statement due to lock timeout";
    ErrorReport::new(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, message, function_name!()).report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}

const ATTEMPT_US_MIN: i64 = 20_000;
/// Longer than `deadlock_timeout` mostly is, so that a deadlock is found by one who waits for ever.
const ATTEMPT_US_MAX: i64 = 2_000_000;

/// Sleeps, but is there at once for a cancel, a termination or the end of the postmaster.
pub fn nap(us: i64) {
    let ms = us.div_euclid(1000).max(1);
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the backend's own latch, which others set to interrupt it.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pg_sys::check_for_interrupts!();
    }
}
