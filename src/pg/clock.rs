//! Clocks that cancel what takes too long, wherever it waits.

use super::server::now_us;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

// SAFETY: as PostgreSQL declares them. pgrx hides them.
unsafe extern "C-unwind" {
    fn RegisterTimeout(id: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
    fn enable_timeout_after(id: c_int, ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

/// The clock of `statement_timeout`, as PostgreSQL numbers it in all supported versions.
const STATEMENT_TIMEOUT: c_int = 3;
/// The first clock that belongs to no part of PostgreSQL.
const USER_TIMEOUT: c_int = if cfg!(any(feature = "pg15", feature = "pg16")) { 12 } else { 13 };

/// Has this process cancel what it executes after this time. Only for a worker, which nobody gives a `statement_timeout`.
pub fn cancel_worker_after(ms: i32) {
    // SAFETY: connecting to a database has registered the clock's handler. It signals this process, and a worker that is
    // connected takes the signal for a request to cancel.
    unsafe { enable_timeout_after(STATEMENT_TIMEOUT, ms) }
}

/// Whether an alarm has gone off that nobody has taken notice of.
static RANG: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// PostgreSQL's number for the alarm's clock, once this backend has one.
    static CLOCK: Cell<Option<c_int>> = const { Cell::new(None) };
    /// When the alarm goes off that is set; `None`: none is.
    static SET_FOR: Cell<Option<i64>> = const { Cell::new(None) };
}

/// An alarm that is set. When it goes off, what this backend executes is cancelled, and [`Alarm::rang`] tells so. The clock
/// of `lock_timeout` would not do: it runs only while this backend itself waits for a lock.
pub struct Alarm {
    /// When the one goes off that was set before.
    former: Option<i64>,
}

impl Alarm {
    /// Sets an alarm. One that was set before stays in force if it goes off sooner.
    pub fn set(after_us: i64) -> Alarm {
        let former = SET_FOR.get();
        let at = now_us().saturating_add(after_us);
        RANG.store(false, Ordering::Relaxed);
        start(former.map_or(at, |former| former.min(at)));
        Alarm { former }
    }

    /// Whether an alarm has gone off since it was set, and nobody was told.
    pub fn rang() -> bool {
        RANG.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Alarm {
    /// Also while an error unwinds: nothing here raises one.
    fn drop(&mut self) {
        stop();
        SET_FOR.set(self.former);
        if let Some(former) = self.former {
            start(former);
        }
    }
}

fn start(at: i64) {
    SET_FOR.set(Some(at));
    let ms = i32::try_from((at - now_us()).div_euclid(1000).max(1)).unwrap_or(i32::MAX);
    // SAFETY: the clock is registered with a handler that is made for signals. To start it raises no error.
    unsafe { enable_timeout_after(clock(), ms) }
}

fn stop() {
    // SAFETY: as in start().
    unsafe { disable_timeout(clock(), false) }
}

fn clock() -> c_int {
    CLOCK.get().unwrap_or_else(|| {
        // SAFETY: once in a backend. The handler stays, as the library does.
        let clock = unsafe { RegisterTimeout(USER_TIMEOUT, ring) };
        CLOCK.set(Some(clock));
        clock
    })
}

/// Runs in a signal handler. So it does no more than PostgreSQL's own handlers of timeouts do.
unsafe extern "C-unwind" fn ring() {
    RANG.store(true, Ordering::Relaxed);
    // SAFETY: the signal for a request to cancel, to this process.
    unsafe { libc::kill(pg_sys::MyProcPid, libc::SIGINT) };
}
