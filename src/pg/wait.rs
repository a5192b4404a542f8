//! Bounded waits. Where the user's own `lock_timeout` is shorter than a bound of ours, it ends the wait, with PostgreSQL's
//! own error.

use super::catch::{caught, in_subtransaction, report_of};
use super::clock::{Alarm, Ends, WaitsSince};
use super::server::now_us;
use crate::error::Error;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_sys};

/// Our bound on each wait of this backend for a heavyweight lock. Dropping it restores the caller's bound, which it has.
struct LockTimeoutMs(i32);

impl LockTimeoutMs {
    /// What is in force now; 0 is no bound.
    fn of_caller() -> i32 {
        // SAFETY: a variable of this backend, which has one thread.
        unsafe { pg_sys::LockTimeout }
    }

    fn set(ms: i32) -> LockTimeoutMs {
        let callers = LockTimeoutMs::of_caller();
        // SAFETY: likewise. Only waits for locks read it.
        unsafe { pg_sys::LockTimeout = ms };
        LockTimeoutMs(callers)
    }
}

impl Drop for LockTimeoutMs {
    fn drop(&mut self) {
        // SAFETY: as in set(). It only writes a variable, so it may run while an error unwinds.
        unsafe { pg_sys::LockTimeout = self.0 }
    }
}

/// Runs `work`, which goes on with a wait for a lock that began at `since`. The caller's own `lock_timeout`, if there is one,
/// counts from then on, and `pg_locks` tells of it that it waits since then.
pub fn waiting_since<T>(since: i64, work: impl FnOnce() -> T) -> T {
    let callers = LockTimeoutMs::of_caller();
    let waited_ms = i32::try_from((now_us() - since) / 1000).unwrap_or(i32::MAX);
    let _bound = (callers > 0).then(|| LockTimeoutMs::set(callers.saturating_sub(waited_ms).max(1)));
    let _shown = WaitsSince::show(since);
    work()
}

/// Runs `work` in a subtransaction, with its waits for locks together bounded by `wait_us` (`None`: no bound of ours).
/// Gives `None` if the time ran out; all that `work` did is then rolled back.
///
/// An alarm bounds them, not `lock_timeout`: where that runs out in the moment in which somebody cancels the statement,
/// PostgreSQL tells of the timeout alone, and the cancel would be lost with the error.
pub fn bounded<T>(wait_us: Option<i64>, work: impl FnOnce() -> T) -> Option<T> {
    match wait_us {
        Some(us) => in_subtransaction(|| in_time(Alarm::set(us, Ends::Locks), work), |_| true, rang).ok(),
        None => Some(work()),
    }
}

/// Runs `work`, with each of its waits for locks bounded by `wait_us` (`None`: no bound of ours). If a wait runs out,
/// raises the error that `timed_out` makes.
///
/// Unlike [`bounded`] it replaces the error of the lock manager and does not swallow it. So it needs no subtransaction,
/// nor a transaction id for one. A cancel that comes in the moment of the timeout ends the call by this error.
pub fn bounded_or_error<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, timed_out: impl FnOnce() -> Error) -> T {
    let ms = wait_us.map(|us| i32::try_from(us.div_euclid(1000).max(1)).unwrap_or(i32::MAX));
    let Some(ms) = ms.filter(|ms| !(1..=*ms).contains(&LockTimeoutMs::of_caller())) else { return work() };
    let bound = LockTimeoutMs::set(ms);
    let ran_out = |error: &CaughtError| {
        (report_of(error).sql_error_code() == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE).then_some(())
    };
    caught(|| in_time(bound, work), ran_out).unwrap_or_else(|()| timed_out().raise())
}

/// Runs `work`, which `bound` bounds, and then lets a timeout be reported. The time may run out just as a lock is granted,
/// and PostgreSQL reports that at the next occasion. That has to be here, where the error is caught.
fn in_time<B, T>(bound: B, work: impl FnOnce() -> T) -> T {
    let done = work();
    drop(bound);
    pg_sys::check_for_interrupts!();
    done
}

/// Runs `work` in a subtransaction. If all of it waits longer than `wait_us` (`None`: no bound of ours), or if `keep` does
/// not want what it gives, rolls back all that it did. Gives `None` in the first case. If the user's own `lock_timeout` is
/// shorter, its end is an error.
///
/// This is for statements on tables of users. Such a statement may wait on another server, where `lock_timeout` does not
/// reach. And each of several waits in a row would have the whole time. So an alarm bounds them together. It ends no
/// statement that is slow without a wait.
pub fn tentatively<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, keep: impl FnOnce(&T) -> bool) -> Option<T> {
    in_subtransaction(|| in_time(alarm(wait_us), work), keep, rang).ok()
}

/// As [`tentatively`], but raises the error that `timed_out` makes if the wait is over. It needs no subtransaction, since it
/// swallows no error.
pub fn in_time_or_error<T>(wait_us: Option<i64>, work: impl FnOnce() -> T, timed_out: impl FnOnce() -> Error) -> T {
    caught(|| in_time(alarm(wait_us), work), rang).unwrap_or_else(|()| timed_out().raise())
}

fn alarm(wait_us: Option<i64>) -> Option<Alarm> {
    wait_us.map(|us| Alarm::set(us, Ends::Waits))
}

/// Takes the error by which an alarm of ours has ended the work.
fn rang(error: &CaughtError) -> Option<()> {
    (report_of(error).sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED && Alarm::rang()).then_some(())
}

/// Runs `work` in a subtransaction. If it raises an error, or takes longer than `at_most_us`, rolls back all that it did, and
/// gives the error's message; `None`: it took too long. A cancel by anybody else, or a termination, goes on as an error.
pub fn undone_on_error<T>(at_most_us: i64, work: impl FnOnce() -> T) -> Result<T, Option<String>> {
    let work = || in_time(Alarm::set(at_most_us, Ends::All), work);
    let takes = |error: &CaughtError| match error {
        error if rang(error).is_some() => Some(None),
        CaughtError::RustPanic { .. } => None,
        error if ENDS.contains(&report_of(error).sql_error_code()) => None,
        error => Some(Some(report_of(error).message().to_owned())),
    };
    in_subtransaction(work, |_| true, takes)
}

/// Errors that end more than the work at hand.
const ENDS: [PgSqlErrorCode; 4] = [
    PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
    PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN,
    PgSqlErrorCode::ERRCODE_CRASH_SHUTDOWN,
    PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
];

/// The transaction that a transaction in progress is a part of; itself, if it is no subtransaction.
pub fn top_transaction(xid: pg_sys::TransactionId) -> pg_sys::TransactionId {
    // SAFETY: it looks up the parents that are noted of a transaction which no snapshot of this backend sees as over.
    unsafe { pg_sys::SubTransGetTopmostTransaction(xid) }
}

/// Waits until the transaction `xid` has ended.
pub fn wait_for_transaction(xid: pg_sys::TransactionId) {
    // SAFETY: without a relation, the wait's error context has nothing to describe.
    unsafe { pg_sys::XactLockTableWait(xid, std::ptr::null_mut(), std::ptr::null_mut(), pg_sys::XLTW_Oper::XLTW_None) }
}

/// The moment at which all waits of one call end; `None` is never.
#[derive(Clone, Copy)]
pub struct Deadline(Option<i64>);

impl Deadline {
    /// The deadline `wait_us` from now; `None` is never.
    pub fn after(wait_us: Option<i64>) -> Deadline {
        Deadline(wait_us.map(|wait_us| super::server::now_us().saturating_add(wait_us)))
    }

    /// The time that is left, at least 0; `None` is for ever.
    pub fn left_us(self) -> Option<i64> {
        self.0.map(|until| (until - super::server::now_us()).max(0))
    }
}

/// A transaction, perhaps a prepared one, that holds a lock.
#[derive(PartialEq, Eq)]
pub struct Holder {
    /// The place of its backend.
    place: i32,
    /// Its number there.
    number: u32,
}

impl Holder {
    /// The transaction that `pg_locks` shows as this `virtualtransaction`; `None` if that is no such name.
    pub fn named(name: &str) -> Option<Holder> {
        let (place, number) = name.split_once('/')?;
        Some(Holder { place: place.parse().ok()?, number: number.parse().ok()? })
    }

    fn of(id: &pg_sys::VirtualTransactionId) -> Holder {
        #[cfg(not(before_pg17))]
        let place = id.procNumber;
        #[cfg(before_pg17)]
        let place = id.backendId;
        Holder { place, number: id.localTransactionId }
    }

    /// Its process; `None` for a prepared transaction, and for one that has just ended. A prepared transaction keeps the
    /// place of the backend that prepared it. That backend goes on with other transactions.
    pub fn pid(&self) -> Option<i32> {
        // SAFETY: declared as PostgreSQL declares it. It gives the process in that place, or null if the place is free.
        unsafe {
            #[cfg(not(before_pg17))]
            let process = pg_sys::ProcNumberGetProc(self.place);
            #[cfg(before_pg17)]
            let process = {
                unsafe extern "C-unwind" {
                    fn BackendIdGetProc(backend: std::ffi::c_int) -> *mut pg_sys::PGPROC;
                }
                BackendIdGetProc(self.place)
            };
            #[cfg(not(before_pg17))]
            let transaction = |process: &pg_sys::PGPROC| process.vxid.lxid;
            #[cfg(before_pg17)]
            let transaction = |process: &pg_sys::PGPROC| process.lxid;
            let at_work = process.as_ref().filter(|process| transaction(process) == self.number);
            at_work.map(|process| process.pid).filter(|pid| *pid != 0)
        }
    }

    /// Waits for the end of the transaction.
    pub fn wait(&self) {
        #[cfg(not(before_pg17))]
        let id = pg_sys::VirtualTransactionId { procNumber: self.place, localTransactionId: self.number };
        #[cfg(before_pg17)]
        let id = pg_sys::VirtualTransactionId { backendId: self.place, localTransactionId: self.number };
        // SAFETY: it returns at once if the transaction has ended meanwhile.
        unsafe { pg_sys::VirtualXactLock(id, true) };
    }
}

/// The other transactions that hold the lock in a mode that conflicts with `mode`.
pub fn lock_holders(tag: &pg_sys::LOCKTAG, mode: i32) -> Vec<Holder> {
    let mut count = 0;
    // SAFETY: the tag is valid. The list has as many elements as `count` says, and is freed with the memory context.
    unsafe {
        let holders = pg_sys::GetLockConflicts(tag, mode, &mut count);
        std::slice::from_raw_parts(holders, count.unsigned_abs() as usize).iter().map(Holder::of).collect()
    }
}

/// Whether this backend holds the lock in this mode.
pub fn lock_is_held(tag: &pg_sys::LOCKTAG, mode: i32) -> bool {
    // SAFETY: the tag is valid. The call looks only into the backend's own table of locks.
    unsafe {
        #[cfg(not(before_pg17))]
        return pg_sys::LockHeldByMe(tag, mode, false);
        #[cfg(before_pg17)]
        return pg_sys::LockHeldByMe(tag, mode);
    }
}

/// Calls `attempt` again and again until it gives true, up to `wait_us` (`None`: for ever); gives whether it did.
/// `attempt` is told how long it may take. That time and the pauses between the attempts grow. If the user's own
/// `lock_timeout` is shorter and runs out, raises PostgreSQL's error.
pub fn retry(wait_us: Option<i64>, mut attempt: impl FnMut(i64) -> bool) -> bool {
    let patience = Patience::of(wait_us);
    let mut attempt_us = ATTEMPT_US_MIN;
    loop {
        if attempt(attempt_us.min(patience.deadline.left_us().unwrap_or(i64::MAX))) {
            return true;
        }
        match patience.left_us() {
            Some(left_us) => nap(attempt_us.min(left_us)),
            None => return false,
        }
        attempt_us = (attempt_us * 2).min(ATTEMPT_US_MAX);
    }
}

/// How long a wait that is not one for a lock may last: up to a bound of ours, or up to the user's own `lock_timeout` if
/// that is shorter.
pub struct Patience {
    deadline: Deadline,
    is_callers: bool,
}

impl Patience {
    /// A wait of `wait_us` from now (`None`: for ever).
    pub fn of(wait_us: Option<i64>) -> Patience {
        let callers_ms = Some(LockTimeoutMs::of_caller()).filter(|ms| *ms != 0);
        let callers_us = callers_ms.map(|ms| i64::from(ms) * 1000);
        let is_callers = callers_us.is_some_and(|callers| wait_us.is_none_or(|wait| callers < wait));
        Patience { deadline: Deadline::after(if is_callers { callers_us } else { wait_us }), is_callers }
    }

    /// The time that is left; `None`: our bound has come. If the user's own `lock_timeout` has come, raises PostgreSQL's
    /// error.
    pub fn left_us(&self) -> Option<i64> {
        match self.deadline.left_us() {
            Some(0) if self.is_callers => lock_timeout(),
            Some(0) => None,
            left_us => Some(left_us.unwrap_or(i64::MAX)),
        }
    }
}

/// Raises the error that PostgreSQL raises when the user's own `lock_timeout` has passed.
fn lock_timeout() -> ! {
    let message = "canceling statement due to lock timeout";
    ErrorReport::new(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, message, function_name!()).report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}

/// The time for the first attempt.
const ATTEMPT_US_MIN: i64 = 20_000;

/// The longest time for an attempt. It is longer than `deadlock_timeout` usually is, so that a wait without an end
/// finds a deadlock.
const ATTEMPT_US_MAX: i64 = 2_000_000;

/// Sleeps. A cancel, a termination or the end of the postmaster interrupts the sleep at once.
pub fn nap(us: i64) {
    let ms = us.div_euclid(1000).max(1);
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: the backend's own latch, which is set to interrupt it.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        pg_sys::check_for_interrupts!();
    }
}

/// Asks `done` again and again until it says yes, or the deadline has passed; gives whether it has said yes.
pub fn poll(deadline: Deadline, mut done: impl FnMut() -> bool) -> bool {
    let mut nap_us = 1_000;
    while !done() {
        match deadline.left_us() {
            Some(0) => return false,
            left_us => nap(nap_us.min(left_us.unwrap_or(i64::MAX))),
        }
        nap_us = (nap_us * 2).min(20_000);
    }
    true
}
