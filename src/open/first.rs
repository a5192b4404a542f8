//! Our check comes first at the end of a transaction.
//!
//! Modules that act elsewhere do so in a transaction callback too: postgres_fdw commits its remote
//! transactions before the local commit. Callbacks run in the reverse order of their registration, and such
//! a module may register its own when it is used for the first time in a connection. So ours is registered
//! anew when a transaction begins a request, and, while one is open, by the statement that the commit
//! follows: COMMIT or PREPARE TRANSACTION in a transaction block, any statement outside of one.
//!
//! What runs statements here also runs users' errors through. So these functions have no guard of pgrx,
//! which would take the SQLSTATE from those errors, and own nothing that an error would leave behind.

use super::OPEN;
use super::list::List;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    /// Whether the callbacks before the commit have begun to run.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: as PostgreSQL declares them. Without the guard that pgrx puts around its own: registering finds
// the memory that taking the old entry off has just given back, so it raises no error; of the executor's an
// error passes through, see above.
unsafe extern "C-unwind" {
    fn RegisterXactCallback(callback: pg_sys::XactCallback, arg: *mut c_void);
    fn UnregisterXactCallback(callback: pg_sys::XactCallback, arg: *mut c_void);
    #[cfg(not(feature = "pg18"))]
    fn standard_ExecutorRun(query: *mut pg_sys::QueryDesc, direction: Direction, count: u64, once: bool);
    #[cfg(feature = "pg18")]
    fn standard_ExecutorRun(query: *mut pg_sys::QueryDesc, direction: Direction, count: u64);
    fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        text: *const std::ffi::c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        destination: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

type Direction = pg_sys::ScanDirection::Type;

/// Whom to call from our hooks.
static mut NEXT_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut NEXT_UTILITY: pg_sys::ProcessUtility_hook_type = None;

/// Registers the callback and the hooks, once a backend.
pub fn init() {
    // SAFETY: a process that loads a library has one thread, and runs no statement of these hooks meanwhile.
    unsafe {
        RegisterXactCallback(Some(super::transaction_event), std::ptr::null_mut());
        NEXT_RUN = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(executor_run);
        NEXT_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

/// Puts our callback in front of all others.
///
/// Not while the callbacks run, which would go on with an entry that is gone. Ours tells when they have
/// begun; for one that runs before ours there is no portal then, a COMMIT inside a procedure aside.
pub fn come_first() {
    // SAFETY: reads a variable of the backend; no callback is being run, see above.
    unsafe {
        if pg_sys::ActivePortal.is_null() || ENDING.get() {
            return;
        }
        UnregisterXactCallback(Some(super::transaction_event), std::ptr::null_mut());
        RegisterXactCallback(Some(super::transaction_event), std::ptr::null_mut());
    }
}

/// Notes whether the callbacks before the commit have begun to run.
pub fn set_ending(ending: bool) {
    ENDING.set(ending);
}

/// Whether the end of the transaction follows the statement that has just been executed.
fn commit_follows(is_command_of_transaction: bool) -> bool {
    // SAFETY: reads the transaction state.
    is_command_of_transaction || !unsafe { pg_sys::IsTransactionBlock() }
}

fn come_first_if_open() {
    let open = OPEN.try_with(|list| list.try_borrow().is_ok_and(|list| List::has_open(&list)));
    if open == Ok(true) {
        come_first();
    }
}

#[cfg(not(feature = "pg18"))]
unsafe extern "C-unwind" fn executor_run(query: *mut pg_sys::QueryDesc, direction: Direction, count: u64, once: bool) {
    // SAFETY: passes on what it was called with, to whom PostgreSQL would have called without us.
    unsafe {
        match NEXT_RUN {
            Some(next) => next(query, direction, count, once),
            None => standard_ExecutorRun(query, direction, count, once),
        }
    }
    if commit_follows(false) {
        come_first_if_open();
    }
}

#[cfg(feature = "pg18")]
unsafe extern "C-unwind" fn executor_run(query: *mut pg_sys::QueryDesc, direction: Direction, count: u64) {
    // SAFETY: as above.
    unsafe {
        match NEXT_RUN {
            Some(next) => next(query, direction, count),
            None => standard_ExecutorRun(query, direction, count),
        }
    }
    if commit_follows(false) {
        come_first_if_open();
    }
}

#[allow(clippy::too_many_arguments, reason = "PostgreSQL declares it so")]
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    text: *const std::ffi::c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: as above; a utility statement is a node, whose tag is looked at before it is executed, for
    // that may free it.
    let is_of_transaction = unsafe {
        let is_of_transaction = (*(*statement).utilityStmt).type_ == pg_sys::NodeTag::T_TransactionStmt;
        let next = NEXT_UTILITY.unwrap_or(standard_ProcessUtility);
        next(statement, text, read_only_tree, context, parameters, environment, destination, completion);
        is_of_transaction
    };
    if commit_follows(is_of_transaction) {
        come_first_if_open();
    }
}
