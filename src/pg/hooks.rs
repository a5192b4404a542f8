//! Being called after each statement.
//!
//! What executes statements here also lets users' errors through. So these functions have no guard of pgrx, which
//! would take the SQLSTATE from those errors, and own nothing that an error would leave behind.

use pgrx::pg_sys;

// SAFETY: as PostgreSQL declares them. They have no guard, see above.
unsafe extern "C-unwind" {
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

/// What our hooks call: what PostgreSQL would have called without us.
static mut NEXT_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut NEXT_UTILITY: pg_sys::ProcessUtility_hook_type = None;

/// What is called after each statement.
static mut FINISHED: fn(bool) = |_| {};

/// Has `callback` called after each statement that was executed without an error, once a backend. It is told
/// whether that was a command of the transaction, such as COMMIT. It must raise no error.
pub fn call_after_statements(callback: fn(bool)) {
    // SAFETY: a process that loads a library has one thread, and executes no statement by these hooks meanwhile.
    unsafe {
        FINISHED = callback;
        NEXT_RUN = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(executor_run);
        NEXT_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

fn finished(is_of_transaction: bool) {
    // SAFETY: set once, when the library was loaded.
    unsafe { FINISHED(is_of_transaction) }
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
    finished(false);
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
    finished(false);
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
    finished(is_of_transaction);
}
