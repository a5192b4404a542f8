//! Clocks that cancel what takes too long, wherever it waits, and one that tells since when this backend waits.

use super::server::now_us;
use pgrx::pg_sys;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

// SAFETY: as PostgreSQL declares them. pgrx hides them.
unsafe extern "C-unwind" {
    fn RegisterTimeout(id: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
    fn enable_timeout_after(id: c_int, ms: c_int);
    fn enable_timeout_every(id: c_int, at: pg_sys::TimestampTz, ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

/// The clock of `statement_timeout`, as PostgreSQL numbers it in all supported versions.
const STATEMENT_TIMEOUT: c_int = 3;
/// The first clock that belongs to no part of PostgreSQL.
const USER_TIMEOUT: c_int = if cfg!(before_pg17) { 12 } else { 13 };

/// Has this process cancel what it executes after this time. Only for a worker, which nobody gives a `statement_timeout`.
pub fn cancel_worker_after(ms: i32) {
    // SAFETY: connecting to a database has registered the clock's handler. It signals this process, and a worker that is
    // connected takes the signal for a request to cancel.
    unsafe { enable_timeout_after(STATEMENT_TIMEOUT, ms) }
}

/// A wait for another server has this time at least: a statement takes a while there without any wait.
const ELSEWHERE_US_MIN: i64 = 100_000;

/// How often an alarm that is due looks whether this backend waits.
const LOOK_AGAIN_MS: c_int = 2;

/// Whether an alarm has gone off that nobody has taken notice of.
static RANG: AtomicBool = AtomicBool::new(false);
/// How many requests to cancel have come to this process, and how many of them before the alarm was set.
static CANCELS: AtomicU32 = AtomicU32::new(0);
static CANCELS_BEFORE: AtomicU32 = AtomicU32::new(0);
/// PostgreSQL's handler of such a request, as a number.
static CANCEL: AtomicUsize = AtomicUsize::new(0);
/// From when on the alarm ends waits for locks; waits for another server; whatever is executed.
static DUE: [AtomicI64; 3] = [const { AtomicI64::new(NEVER) }; 3];

const NEVER: i64 = i64::MAX;

/// What an alarm ends when it goes off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// A wait for a lock.
    Locks,
    /// A wait: for a lock, or for another server. What takes long without a wait goes on.
    Waits,
    /// Whatever this backend executes.
    All,
}

/// An alarm that is set. When it goes off, what this backend executes is cancelled, and [`Alarm::rang`] tells so.
/// It has what was due when before it was set.
pub struct Alarm([i64; 3]);

impl Alarm {
    /// Sets an alarm. One that was set before stays in force where it goes off sooner.
    pub fn set(after_us: i64, ends: Ends) -> Alarm {
        CANCELS_BEFORE.store(CANCELS.load(Ordering::Relaxed), Ordering::Relaxed);
        // A cancel that came before is not counted any more. It ends the work here.
        pg_sys::check_for_interrupts!();
        let at = |us: i64| now_us().saturating_add(us);
        let due = match ends {
            Ends::Locks => [at(after_us), NEVER, NEVER],
            Ends::Waits => [at(after_us), at(after_us.max(ELSEWHERE_US_MIN)), NEVER],
            Ends::All => [NEVER, NEVER, at(after_us)],
        };
        let alarm = Alarm(std::array::from_fn(|n| DUE[n].fetch_min(due[n], Ordering::Relaxed)));
        RANG.store(false, Ordering::Relaxed);
        start();
        alarm
    }

    /// Whether an alarm has gone off since it was set, and nobody was told. A request to cancel that came as well is more
    /// than that: it must not be taken for the alarm.
    pub fn rang() -> bool {
        RANG.swap(false, Ordering::Relaxed) && CANCELS.load(Ordering::Relaxed) == CANCELS_BEFORE.load(Ordering::Relaxed)
    }
}

impl Drop for Alarm {
    /// Also while an error unwinds: nothing here raises one.
    fn drop(&mut self) {
        // SAFETY: the clock is registered. To stop it raises no error.
        unsafe { disable_timeout(clock(), false) }
        (0..3).for_each(|n| DUE[n].store(self.0[n], Ordering::Relaxed));
        start();
    }
}

/// Starts the clock, if anything is to be ended.
fn start() {
    let first = DUE.iter().map(|due| due.load(Ordering::Relaxed)).min().unwrap_or(NEVER);
    if first != NEVER {
        let at = first.max(now_us() + 1000);
        // SAFETY: the clock is registered with a handler that is made for signals. To start it raises no error.
        unsafe { enable_timeout_every(clock(), at, LOOK_AGAIN_MS) }
    }
}

/// PostgreSQL's number for the alarm's clock.
fn clock() -> c_int {
    static CLOCK: OnceLock<c_int> = OnceLock::new();
    *CLOCK.get_or_init(|| {
        count_cancels();
        // SAFETY: once in a backend. The handler stays, as the library does.
        unsafe { RegisterTimeout(USER_TIMEOUT, ring) }
    })
}

/// Counts the requests to cancel from now on, before PostgreSQL's handler receives them.
fn count_cancels() {
    /// PostgreSQL installs its handlers with SA_SIGINFO from version 19 on, and without it before.
    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    extern "C" fn count(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        CANCELS.fetch_add(1, Ordering::Relaxed);
        let handler = CANCEL.load(Ordering::Relaxed);
        if handler > libc::SIG_IGN {
            // SAFETY: PostgreSQL's handler, which was installed before this one. A handler that was installed without
            // SA_SIGINFO ignores the other two arguments. The kernel and the C calling conventions of all supported
            // platforms pass them in registers, so that they may be passed on unread.
            unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) }
        }
    }

    // SAFETY: the former action is written before it is read. The new one differs from it only in the function, and keeps
    // its flags. A signal between the two calls is received by the former handler.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        if libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action) == 0 {
            CANCEL.store(action.sa_sigaction, Ordering::Relaxed);
            action.sa_sigaction = count as *const () as usize;
            libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Runs in a signal handler. So it does no more than PostgreSQL's own handlers of timeouts do.
unsafe extern "C-unwind" fn ring() {
    /// Classes of what a backend waits for, as `pg_stat_activity` names them.
    const LOCK: u32 = 0x0300_0000;
    const CLIENT: u32 = 0x0600_0000;
    const EXTENSION: u32 = 0x0700_0000;

    // SAFETY: the variable tells where this backend notes what it waits for.
    let waits_for = unsafe { pg_sys::my_wait_event_info.read_volatile() } & 0xFF00_0000;
    let now_us = now_us();
    let is_due = |n: usize| DUE[n].load(Ordering::Relaxed) <= now_us;
    let ends = waits_for == LOCK && is_due(0) || matches!(waits_for, CLIENT | EXTENSION) && is_due(1) || is_due(2);
    if ends && !RANG.swap(true, Ordering::Relaxed) {
        // SAFETY: what PostgreSQL's handler of a request to cancel does.
        unsafe {
            (&raw mut pg_sys::QueryCancelPending).write_volatile(1);
            (&raw mut pg_sys::InterruptPending).write_volatile(1);
            pg_sys::SetLatch(pg_sys::MyLatch);
        }
    }
}

/// Since when this backend has waited for a lock, while it goes on with a wait that was cut.
static WAITS_SINCE: AtomicI64 = AtomicI64::new(NEVER);

/// While it lives, `pg_locks` shows a wait for a lock as one that began at a former moment. PostgreSQL notes the moment
/// itself when the wait is in the queue, so a clock writes the former one over it, a little later.
pub struct WaitsSince(c_int);

impl WaitsSince {
    /// Shows waits as if they had begun then.
    pub fn show(since: i64) -> WaitsSince {
        /// When the wait is in the queue, mostly; and how often the clock looks again.
        const QUEUED_US: i64 = 20_000;
        const AGAIN_MS: c_int = 1000;
        static CLOCK: OnceLock<c_int> = OnceLock::new();

        WAITS_SINCE.store(since, Ordering::Relaxed);
        // SAFETY: as in clock().
        let clock = *CLOCK.get_or_init(|| unsafe { RegisterTimeout(USER_TIMEOUT, tell_since) });
        // SAFETY: as in start().
        unsafe { enable_timeout_every(clock, now_us() + QUEUED_US, AGAIN_MS) }
        WaitsSince(clock)
    }
}

impl Drop for WaitsSince {
    /// Also while an error unwinds: nothing here raises one.
    fn drop(&mut self) {
        // SAFETY: as in the Drop of an alarm.
        unsafe { disable_timeout(self.0, false) }
    }
}

/// Runs in a signal handler, and only writes a number.
unsafe extern "C-unwind" fn tell_since() {
    // SAFETY: a backend's own entry is there as long as the clock goes. PostgreSQL reads and writes the number as an atomic
    // one, too. 0 means that this backend does not wait any more.
    unsafe {
        let shown = AtomicU64::from_ptr((&raw mut (*pg_sys::MyProc).waitStart.value).cast());
        let noted = shown.load(Ordering::Relaxed);
        if noted != 0 {
            let since = WAITS_SINCE.load(Ordering::Relaxed) as u64;
            let _ = shown.compare_exchange(noted, since, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
