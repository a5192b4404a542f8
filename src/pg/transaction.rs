//! The state of the transaction.

use super::raw::harmless;
use super::role::set_for_now;
use pgrx::pg_sys;

/// Whether this transaction must not write. Direct table access has no other check for that.
pub fn read_only() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactReadOnly || harmless::RecoveryInProgress() }
}

/// Which process of a parallel query this is, as the first words of a sentence; `None` if no parallel query runs here.
pub fn parallel_process() -> Option<&'static str> {
    // SAFETY: reads variables of the backend.
    unsafe {
        match harmless::IsInParallelMode() {
            false => None,
            true if pg_sys::ParallelWorkerNumber >= 0 => Some("A parallel worker"),
            true => Some("The leader of a parallel query"),
        }
    }
}

/// Whether the transaction keeps one snapshot to its end (REPEATABLE READ and SERIALIZABLE).
pub fn keeps_snapshot() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// Whether the transaction's snapshot sees what the committed transaction `xmin` wrote. Always true under READ
/// COMMITTED, where the next statement's snapshot will see it.
pub fn snapshot_sees(xmin: pg_sys::TransactionId) -> bool {
    if !keeps_snapshot() {
        return true;
    }
    // SAFETY: under these levels GetTransactionSnapshot() returns the transaction's one snapshot. It exists, since a
    // statement is running.
    unsafe {
        harmless::TransactionIdIsCurrentTransactionId(xmin)
            || !pg_sys::XidInMVCCSnapshot(xmin, pg_sys::GetTransactionSnapshot())
    }
}

/// Whether rows may be written in a subtransaction of ours, so that nobody is worse off for it.
///
/// Not inside a savepoint: whoever waits for such a row would wait for the end of the whole transaction, also if there is a
/// rollback to that savepoint. And of the ids of a transaction's subtransactions 64 have a place where every snapshot finds
/// them at once. Half of these are left to the caller's savepoints.
pub fn may_write_in_subtransaction() -> bool {
    // SAFETY: reads the state of the transaction. This process has a place among the others from its start on, and is the
    // only one that writes its own ids there.
    let (level, ids) = unsafe { (pg_sys::GetCurrentTransactionNestLevel(), (*pg_sys::MyProc).subxidStatus) };
    level == 1 && !ids.overflowed && ids.count < 32
}

/// The full id of this transaction, which has one from now on. Full ids do not wrap around.
pub fn transaction_id() -> u64 {
    // SAFETY: called in a transaction.
    unsafe { pg_sys::GetTopFullTransactionId() }.value
}

/// Whether a transaction, given by its full id, has not ended, be it at work or prepared.
pub fn is_in_progress(transaction: u64) -> bool {
    // SAFETY: reads shared state.
    unsafe {
        // An older id would be taken for one of the future. A transaction does not last so long.
        let age = pg_sys::ReadNextFullTransactionId().value.saturating_sub(transaction);
        age < 1 << 31 && pg_sys::TransactionIdIsInProgress((transaction as u32).into())
    }
}

/// Whether this transaction has written, or may have.
pub fn has_written() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { harmless::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId }
}

/// Makes the commit of this transaction wait for its flush, whatever `synchronous_commit` says.
pub fn force_sync_commit() {
    // SAFETY: sets a flag of the backend, which the end of the transaction clears.
    unsafe { pg_sys::ForceSyncCommit() }
}

/// Makes the commit of this transaction wait for no standby, and at most for the local disk.
pub fn commit_locally() {
    // SAFETY: reads a variable. The end of the transaction restores the setting.
    unsafe {
        if pg_sys::synchronous_commit > pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 {
            set_for_now(c"synchronous_commit", c"local", pg_sys::GucAction::GUC_ACTION_LOCAL);
        }
    }
}

/// The nesting level of the current subtransaction; the transaction itself has level 1.
pub fn nesting_level() -> i32 {
    // SAFETY: reads the transaction state.
    unsafe { harmless::GetCurrentTransactionNestLevel() }
}

/// Whether a statement is running in a portal.
pub fn is_in_portal() -> bool {
    // SAFETY: reads a variable of the backend.
    !unsafe { pg_sys::ActivePortal }.is_null()
}

/// Whether a trigger is being executed.
pub fn is_in_trigger() -> bool {
    // SAFETY: the function takes no argument, and reads a variable of the backend.
    unsafe { pg_sys::pg_trigger_depth(std::ptr::null_mut()).value() as i32 > 0 }
}

/// Runs `work`. Its queries see what is committed now, whatever the transaction's isolation level is, and however long the
/// statement takes already. It assigns no transaction id.
///
/// Between the last statement and the commit this gives a snapshot where there is none: to write a table that has a TOAST table
/// takes an active one.
pub fn with_newest_snapshot<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: called in a transaction, and in no parallel worker, since none executes a function of ours that asks for this.
    // The snapshot is popped once. On an error the abort drops it, with its (sub)transaction.
    unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
        let result = work();
        pg_sys::PopActiveSnapshot();
        result
    }
}
