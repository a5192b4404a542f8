//! Which rows a scan sees.

use crate::pg::raw;
use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    /// The snapshot of [`Snapshot::WithInserted`], which notes with each row who is inserting or changing it.
    static DIRTY: Cell<*mut pg_sys::SnapshotData> = const { Cell::new(std::ptr::null_mut()) };
}

/// Which rows a scan sees.
#[derive(Clone, Copy)]
pub enum Snapshot {
    /// `SnapshotSelf`: all rows that are committed at this moment, and this transaction's own. It can miss a row that
    /// is being updated. So it is for rows that are never updated, or that are updated only under a lock that the
    /// caller holds. It takes no predicate locks. With an MVCC snapshot, two SERIALIZABLE transactions with different
    /// new keys on one index page would abort each other.
    Itself,
    /// A fresh MVCC snapshot, for rows that another transaction may be updating. The scan fetches every version of a
    /// row and then compares it with the snapshot, so that this takes no predicate locks either.
    LatestMvcc,
    /// As `Itself`, and also the rows that another transaction is inserting; `row_state` tells them.
    WithInserted,
}

/// What a dirty snapshot tells of a row.
#[derive(Clone, Copy)]
pub(super) enum RowState {
    /// This transaction, which is another one, is inserting it. It may still roll back.
    BeingInserted(pg_sys::TransactionId),
    /// It is committed or this transaction's own. `changing`: another transaction that is updating or deleting it.
    Committed { changing: Option<pg_sys::TransactionId> },
}

/// Of the row that a scan with the snapshot of [`Snapshot::WithInserted`] is at.
pub(super) fn row_state() -> RowState {
    let some = |id: pg_sys::TransactionId| Some(id).filter(|id| *id != pg_sys::InvalidTransactionId);
    // SAFETY: the scan has such a snapshot, which was made once and for all.
    let (inserter, changer) = unsafe { ((*DIRTY.get()).xmin, (*DIRTY.get()).xmax) };
    some(inserter).map_or(RowState::Committed { changing: some(changer) }, RowState::BeingInserted)
}

/// # Safety
/// Called within a guard.
pub(super) unsafe fn dirty() -> pg_sys::Snapshot {
    if DIRTY.get().is_null() {
        // SAFETY: a snapshot of zeros and of this type is what InitDirtySnapshot() makes.
        unsafe {
            let size = size_of::<pg_sys::SnapshotData>();
            let snapshot: pg_sys::Snapshot = raw::MemoryContextAllocZero(pg_sys::TopMemoryContext, size).cast();
            (*snapshot).snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
            DIRTY.set(snapshot);
        }
    }
    DIRTY.get()
}

impl Snapshot {
    /// The snapshot for the scan, and the snapshot that each fetched row is compared with. The latter has to be ended
    /// after the scan.
    ///
    /// # Safety
    /// Called within a guard.
    pub unsafe fn begin(self) -> (pg_sys::Snapshot, Option<pg_sys::Snapshot>) {
        // SAFETY: SnapshotSelf and SnapshotAny are static. The latest snapshot is registered until end().
        unsafe {
            match self {
                Snapshot::Itself => (&raw mut pg_sys::SnapshotSelfData, None),
                Snapshot::WithInserted => (dirty(), None),
                Snapshot::LatestMvcc => {
                    (&raw mut pg_sys::SnapshotAnyData, Some(raw::RegisterSnapshot(raw::GetLatestSnapshot())))
                }
            }
        }
    }

    /// # Safety
    /// Called within a guard. [`Snapshot::begin`] gave the snapshot, which is not used any more.
    pub(super) unsafe fn end(latest: Option<pg_sys::Snapshot>) {
        if let Some(latest) = latest {
            // SAFETY: as the caller warrants.
            unsafe { raw::UnregisterSnapshot(latest) }
        }
    }
}
