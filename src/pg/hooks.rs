//! A callback after each statement.
//!
//! The hooks execute statements, so users' errors pass through them. They have no guard of pgrx, which would cost something
//! in every statement of the server and copy every error. An error skips their destructors, so they own nothing that needs
//! one.

use super::trusted::{is_planned, may_call_users_code};
use pgrx::pg_sys;

// SAFETY: declared as PostgreSQL declares them. They have no guard, see above.
unsafe extern "C-unwind" {
    fn standard_ExecutorRun(
        query: *mut pg_sys::QueryDesc,
        direction: pg_sys::ScanDirection::Type,
        count: u64,
        #[cfg(before_pg18)] once: bool,
    );
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

/// The functions that PostgreSQL would have called without our hooks. Our hooks call them.
static mut NEXT_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut NEXT_UTILITY: pg_sys::ProcessUtility_hook_type = None;

/// What kind of statement has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// BEGIN or START TRANSACTION.
    Begin,
    /// Another transaction command, such as COMMIT.
    OfTransaction,
    /// CREATE DATABASE, which is not committed yet.
    CreateDatabase,
    /// Any other.
    Other,
}

/// The callback.
static mut FINISHED: fn(Ended) = |_| {};

/// Installs the hooks, once a backend. `callback` is then called after each statement that ended without an error. It must
/// raise no error.
pub fn call_after_statements(callback: fn(Ended)) {
    // SAFETY: the process has one thread, and no statement passes through these hooks while it loads the library.
    unsafe {
        FINISHED = callback;
        NEXT_RUN = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(executor_run);
        NEXT_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    #[cfg(before_pg18)] once: bool,
) {
    // SAFETY: passes its arguments on to the function that PostgreSQL would have called without us. The callback was set when
    // the library was loaded.
    unsafe {
        is_planned(query);
        let next = NEXT_RUN.unwrap_or(standard_ExecutorRun);
        // PostgreSQL launches no parallel workers for a query that was executed before. Older minor versions launch none for
        // one that may be executed again.
        let may_be_parallel = may_call_users_code();
        (*query).already_executed |= !may_be_parallel;
        #[cfg(before_pg18)]
        next(query, direction, count, once && may_be_parallel);
        #[cfg(not(before_pg18))]
        next(query, direction, count);
        FINISHED(Ended::Other);
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
    // SAFETY: as above. A utility statement is a node with a tag. The tag is read first, since the execution may free
    // the node.
    unsafe {
        let node = (*statement).utilityStmt;
        let ended = match (*node).type_ {
            pg_sys::NodeTag::T_TransactionStmt => match (*node.cast::<pg_sys::TransactionStmt>()).kind {
                pg_sys::TransactionStmtKind::TRANS_STMT_BEGIN | pg_sys::TransactionStmtKind::TRANS_STMT_START => {
                    Ended::Begin
                }
                _ => Ended::OfTransaction,
            },
            pg_sys::NodeTag::T_CreatedbStmt => Ended::CreateDatabase,
            _ => Ended::Other,
        };
        let next = NEXT_UTILITY.unwrap_or(standard_ProcessUtility);
        next(statement, text, read_only_tree, context, parameters, environment, destination, completion);
        FINISHED(ended);
    }
}
