//! Makes our transaction callback the first one at the end of a transaction.
//!
//! Modules that act on other servers have transaction callbacks too: in its own, postgres_fdw commits its remote
//! transactions before the local commit. So our check for unrecorded requests must come before theirs. PostgreSQL calls
//! callbacks in the reverse order of their registration, and such a module may register its callback as late as the
//! first time that a connection uses it. So our callback is registered anew when a transaction begins its first
//! request. While a request is open, or a coordinator is to be asked for a two-phase commit, the statement that the
//! commit follows registers it once more. That statement is COMMIT or PREPARE TRANSACTION in a transaction block, and
//! any statement outside of a block.

use super::coordinator;
use crate::open;
use crate::pg;
use crate::store::written;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Whether the callbacks before the commit have begun to run.
    static ENDING: Cell<bool> = const { Cell::new(false) };
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
    pg::call_after_statements(come_first_if_commit_follows);
}

/// Puts our callback in front of all others.
///
/// This must not happen while the callbacks run, since PostgreSQL would go on with an entry that is gone. Once our own
/// callback has run, `ENDING` says so. While a callback before ours runs, there is no portal. Only the COMMIT of a
/// procedure has one. There a callback before ours would have to execute a statement to reach this place, which no
/// module is known to do.
pub fn come_first() {
    if !pg::is_in_portal() || ENDING.get() {
        return;
    }
    // SAFETY: no callback is being run, see above.
    unsafe {
        UnregisterXactCallback(OURS, std::ptr::null_mut());
        RegisterXactCallback(OURS, std::ptr::null_mut());
    }
}

/// Notes whether the callbacks before the commit have begun to run.
pub fn set_ending(ending: bool) {
    ENDING.set(ending);
}

/// Called after each statement. `is_of_transaction` tells whether it was a transaction command, such as COMMIT.
fn come_first_if_commit_follows(is_of_transaction: bool) {
    let has_reason = open::has_open() || written::here() || written::elsewhere();
    if has_reason && (is_of_transaction || !pg::is_in_block()) && (open::has_open() || coordinator::is_to_be_asked()) {
        come_first();
    }
}
