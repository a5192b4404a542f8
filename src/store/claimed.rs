//! The locks that the record of a request takes, taken by the begin that looks whether there is one: a lock that a transaction
//! has already is cheap to take again.
//!
//! They are only tried for. Where a command keeps writers away, a begin reads as anybody does, and the record waits.

use crate::lock;
use crate::pg::raw;
use pgrx::pg_sys;
use std::cell::Cell;

const MODE: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;

/// The lock of a writer on a table, and on the index that was searched. Both are given back with this value, unless they are
/// kept to the end of the transaction.
pub struct Claimed {
    table: pg_sys::Oid,
    index: Cell<pg_sys::Oid>,
}

impl Claimed {
    /// Opens a table with the lock of a writer, or of a reader where that is not to be had; null: there is no such table.
    pub(super) fn open(table: pg_sys::Oid) -> (pg_sys::Relation, Option<Claimed>) {
        // SAFETY: any oid may be locked. The table is opened under that lock, or with its own. The closure has nothing to drop
        // and does not panic.
        let (rel, is_claimed) = unsafe {
            raw::guarded(|| {
                let is_claimed = try_lock(table);
                let mode = if is_claimed { pg_sys::NoLock } else { pg_sys::AccessShareLock };
                (raw::try_table_open(table, mode as i32), is_claimed)
            })
        };
        (rel, is_claimed.then(|| Claimed { table, index: Cell::new(pg_sys::InvalidOid) }))
    }

    /// Whether the index is locked too, which is tried if no index is locked yet.
    ///
    /// # Safety
    ///
    /// Called within a guard.
    pub(super) unsafe fn try_index(&self, index: pg_sys::Oid) -> bool {
        // SAFETY: as the caller warrants.
        if self.index.get() == pg_sys::InvalidOid && unsafe { try_lock(index) } {
            self.index.set(index);
        }
        self.index.get() == index
    }

    /// Keeps the locks to the end of the transaction, as those of a writer.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The abort that follows gives the locks back.
            return;
        }
        let locked = [self.index.get(), self.table].into_iter().filter(|oid| *oid != pg_sys::InvalidOid);
        // SAFETY: the locks were taken for the same owner, in this mode, and are given back once.
        lock::as_transaction(|| locked.for_each(|oid| unsafe { raw::harmless::UnlockRelationOid(oid, MODE) }));
    }
}

/// The lock belongs to the transaction, as in `open_to_write` of `rel.rs`.
///
/// # Safety
///
/// Called within a guard.
unsafe fn try_lock(relation: pg_sys::Oid) -> bool {
    // SAFETY: takes a lock without waiting. The lock on a relation that is gone is granted, and does no harm.
    lock::as_transaction(|| unsafe { raw::ConditionalLockRelationOid(relation, MODE) })
}
