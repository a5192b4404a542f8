//! Makes our transaction callback the first one at the end of a transaction.
//!
//! Modules that act on other servers have transaction callbacks too: in its own, postgres_fdw commits its remote
//! transactions before the local commit. So our check for unrecorded requests must come before theirs. PostgreSQL calls
//! callbacks in the reverse order of their registration, and such a module may register its callback as late as the
//! first time that a connection uses it. So our callback is registered anew when a transaction begins its first
//! request. While a request is open, or a coordinator is to be asked for a two-phase commit, each statement that the
//! commit may follow registers it once more. In a block that BEGIN has made, that is COMMIT or PREPARE TRANSACTION, and
//! a statement of a trigger that fires at the commit. Everywhere else it is any statement: several that come in one
//! string, or in one pipeline, are in a block of the server's own, which ends without a statement.

use super::coordinator;
use crate::open;
use crate::pg::{self, Ended};
use crate::store::{blank, written};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Whether the callbacks before the commit have begun to run.
    static ENDING: Cell<bool> = const { Cell::new(false) };
    /// Whether BEGIN is known to have made the block, so that a transaction command ends it.
    static IN_MADE_BLOCK: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: as PostgreSQL declares them. They lack the guard that pgrx puts around its own declarations. They need none:
// registering again uses the memory that unregistering has just given back, so it raises no error.
unsafe extern "C-unwind" {
    fn RegisterXactCallback(callback: pg_sys::XactCallback, arg: *mut c_void);
    fn UnregisterXactCallback(callback: pg_sys::XactCallback, arg: *mut c_void);
}

/// Our callback.
static mut OURS: pg_sys::XactCallback = None;

/// Registers the callback, once in each backend.
pub fn init(callback: pg_sys::XactCallback) {
    // SAFETY: a process that loads a library has one thread.
    unsafe {
        OURS = callback;
        RegisterXactCallback(OURS, std::ptr::null_mut());
    }
    pg::call_after_statements(statement_has_ended);
}

/// Puts our callback in front of all others.
///
/// This must not happen while the callbacks run, since PostgreSQL would go on with an entry that is gone. Once our own
/// callback has run, `ENDING` says so. While a callback before ours runs, there is neither a portal nor a trigger. Only the
/// COMMIT of a procedure has a portal. There a callback before ours would have to execute a statement to reach this place,
/// which no module is known to do.
pub fn come_first() {
    if ENDING.get() || !pg::is_in_portal() && !pg::is_in_trigger() {
        return;
    }
    // SAFETY: no callback is being run, see above.
    unsafe {
        UnregisterXactCallback(OURS, std::ptr::null_mut());
        RegisterXactCallback(OURS, std::ptr::null_mut());
    }
}

/// Notes whether the callbacks before the commit have begun to run, or the transaction has ended.
pub fn set_ending(ending: bool) {
    ENDING.set(ending);
    if !ending {
        IN_MADE_BLOCK.set(false);
    }
}

/// Called after each statement.
fn statement_has_ended(statement: Ended) {
    match statement {
        Ended::CreateDatabase => blank::forget_all(),
        Ended::Begin => IN_MADE_BLOCK.set(true),
        Ended::OfTransaction | Ended::Other => {}
    }
    let written = written::so_far();
    let has_reason = open::has_open() || written.here || written.elsewhere;
    let commit_may_follow = || statement == Ended::OfTransaction || !IN_MADE_BLOCK.get() || !pg::is_in_portal();
    if has_reason && commit_may_follow() && (open::has_open() || coordinator::to_be_asked().is_some()) {
        come_first();
    }
}
