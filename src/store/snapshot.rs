//! Which rows a scan sees.

use crate::pg::raw;
use pgrx::pg_sys::{self, SnapshotData, SnapshotType};

/// The snapshot of [`Snapshot::WithInserted`], which notes with each row who is inserting or changing it.
//
// SAFETY: a snapshot of zeros and of this type is what InitDirtySnapshot() makes.
static mut DIRTY: SnapshotData =
    SnapshotData { snapshot_type: SnapshotType::SNAPSHOT_DIRTY, ..unsafe { std::mem::zeroed() } };

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
    // SAFETY: a backend has one thread.
    let (inserter, changer) = unsafe { (DIRTY.xmin, DIRTY.xmax) };
    some(inserter).map_or(RowState::Committed { changing: some(changer) }, RowState::BeingInserted)
}

impl Snapshot {
    /// The snapshot for the scan, and the snapshot that each fetched row is compared with. The latter has to be ended
    /// after the scan.
    ///
    /// # Safety
    /// Called within a guard.
    pub unsafe fn begin(self) -> (pg_sys::Snapshot, Option<pg_sys::Snapshot>) {
        // SAFETY: all but the latest snapshot are static. The latest snapshot is registered until end().
        unsafe {
            match self {
                Snapshot::Itself => (&raw mut pg_sys::SnapshotSelfData, None),
                Snapshot::WithInserted => (&raw mut DIRTY, None),
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
