//! Our check comes first at the end of a transaction.
//!
//! Modules that act elsewhere do so in a transaction callback too: postgres_fdw commits its remote transactions
//! before the local commit. PostgreSQL calls callbacks in the reverse order of their registration, and such a module
//! may register its own when a connection uses it for the first time. So ours is registered anew when a transaction
//! begins a request. While a request is open, it is registered anew once more by the statement that the commit
//! follows: COMMIT or PREPARE TRANSACTION in a transaction block, any statement outside of a block.

use crate::open;
use crate::pg;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Whether the callbacks before the commit have begun to run.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: as PostgreSQL declares them. Without the guard that pgrx puts around its own: registering finds the
// memory that taking the old entry off has just given back, so it raises no error.
unsafe extern "C-unwind" {
    fn RegisterXactCallback(callback: pg_sys::XactCallback, arg: *mut c_void);
    fn UnregisterXactCallback(callback: pg_sys::XactCallback, arg: *mut c_void);
}

/// Our callback.
static mut OURS: pg_sys::XactCallback = None;

/// Registers the callback, once a backend.
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
/// This must not happen while callbacks run, since PostgreSQL would go on with an entry that is gone. Ours tells when
/// they have begun. Where another one runs before ours there is no portal then, except for a COMMIT inside a
/// procedure.
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

/// Called after each statement; `is_of_transaction` tells whether it was COMMIT or its like.
fn come_first_if_commit_follows(is_of_transaction: bool) {
    if (is_of_transaction || !pg::is_in_block()) && open::has_open() {
        come_first();
    }
}
