//! The state of the transaction.

use pgrx::pg_sys;

/// Whether nothing may be written here. Direct table access has no other check of it.
pub fn read_only() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactReadOnly || pg_sys::RecoveryInProgress() }
}

/// Whether the transaction keeps to one snapshot (REPEATABLE READ and SERIALIZABLE).
pub fn keeps_snapshot() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// Whether the transaction's snapshot sees what `xmin` wrote and committed. Under READ COMMITTED the
/// next statement's will.
pub fn snapshot_sees(xmin: pg_sys::TransactionId) -> bool {
    if !keeps_snapshot() {
        return true;
    }
    // SAFETY: under these levels GetTransactionSnapshot() gives the transaction's one snapshot, which
    // exists: a statement is running.
    unsafe {
        pg_sys::TransactionIdIsCurrentTransactionId(xmin)
            || !pg_sys::XidInMVCCSnapshot(xmin, pg_sys::GetTransactionSnapshot())
    }
}

/// Has the commit of this transaction wait for its flush, whatever `synchronous_commit` says.
pub fn force_sync_commit() {
    // SAFETY: sets a flag that the end of the transaction clears.
    unsafe { pg_sys::ForceSyncCommit() }
}

/// Makes this transaction's commit wait for the disk here at most, not for standbys.
pub fn commit_locally() {
    // SAFETY: the strings are static; the setting goes back with the end of the transaction.
    unsafe {
        if pg_sys::synchronous_commit > pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"local".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// Runs `work` with an active snapshot, which there is none of between the last statement and the commit:
/// whoever writes a table that can have out-of-line values must have one.
pub fn with_snapshot<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: in a transaction; popped once. On an error the abort drops it.
    unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = work();
        pg_sys::PopActiveSnapshot();
        result
    }
}

/// The nesting level of subtransactions; the transaction itself is 1.
pub fn nesting_level() -> i32 {
    // SAFETY: reads the transaction state.
    unsafe { pg_sys::GetCurrentTransactionNestLevel() }
}

/// Whether a statement is running, in a portal.
pub fn is_in_portal() -> bool {
    // SAFETY: reads a variable of the backend.
    !unsafe { pg_sys::ActivePortal }.is_null()
}

/// Whether the transaction goes on after the statement: it is in a block.
pub fn is_in_block() -> bool {
    // SAFETY: reads the transaction state.
    unsafe { pg_sys::IsTransactionBlock() }
}
