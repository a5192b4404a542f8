//! An open table of ours, its locks and its scans. What is written goes through `write.rs`.
//!
//! Whoever writes a row opens the table to write first, and finds the row after that.

use crate::lock;
use crate::pg;
use crate::store::cache;
use crate::store::catalog::{Index, Table};
use crate::store::invalidation;
use crate::store::tuple::Tuple;
use pgrx::pg_sys;

/// How a table is opened, and what happens to its lock when it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read: the lock goes when the table is closed, so that a replay leaves none.
    Read,
    /// To write: the lock stays to the end of the transaction.
    Write,
}

/// An open table.
pub struct Rel {
    pub(super) rel: pg_sys::Relation,
    pub(super) table: Table,
    pub(super) access: Access,
}

impl Rel {
    /// Opens a table. Taking its lock also takes in what others have changed about it.
    pub fn open(table: Table, access: Access) -> Rel {
        loop {
            let oid = cache::oid(table);
            let rel = match access {
                // SAFETY: the oid is that of our table, or of none if that was dropped meanwhile.
                Access::Read => unsafe { pg_sys::try_table_open(oid, pg_sys::AccessShareLock as i32) },
                Access::Write => open_to_write(oid),
            };
            if !rel.is_null() {
                return Rel { rel, table, access };
            }
            // Asking for the lock took in the message that the table is gone; so the next look tells
            // where the new one is, or that there is none.
            invalidation::forget();
        }
    }

    /// Takes the lock to write a table, to the end of the transaction, if nobody is in the way.
    pub fn try_lock(table: Table) -> bool {
        lock::as_transaction(|| try_lock(cache::oid(table), pg_sys::RowExclusiveLock))
    }

    /// Whether it has no page, and so no row: cheaper to ask than to search its index.
    pub fn is_empty(&self) -> bool {
        self.pages() == 0
    }

    /// How many pages it has.
    pub fn pages(&self) -> u32 {
        // SAFETY: the relation is open.
        unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.rel, pg_sys::ForkNumber::MAIN_FORKNUM) }
    }

    /// The file that it is in: another one after each rewrite.
    pub fn file(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { pg::file_of(self.rel) }
    }

    /// Runs `visit` on each row that matches the keys under the snapshot, until it gives something.
    pub fn find<'rel, const N: usize, T>(
        &'rel self,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
        mut visit: impl FnMut(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<T> {
        let index_oid = index.map_or(pg_sys::InvalidOid, cache::index_oid);
        let newest_first = index.is_some_and(Index::is_of_rewritten);
        // SAFETY: relation, index and keys belong together; the snapshots are registered or static for the
        // time of the scan; the tuple is used before the scan goes on. On an error the abort closes it.
        unsafe {
            let (shown, latest) = snapshot.begin();
            let scan = pg_sys::systable_beginscan(
                self.rel,
                index_oid,
                index.is_some(),
                shown,
                keys.len() as i32,
                keys.as_mut_ptr(),
            );
            let mut found = None;
            while found.is_none() {
                // Of equal keys an index keeps those of later places last. Where it is not used (a server
                // started with -P), the scan has none.
                let tuple = if newest_first && !(*scan).irel.is_null() {
                    pg_sys::systable_getnext_ordered(scan, pg_sys::ScanDirection::BackwardScanDirection)
                } else {
                    pg_sys::systable_getnext(scan)
                };
                if tuple.is_null() {
                    break;
                }
                if latest.is_some_and(|latest| !pg_sys::table_tuple_satisfies_snapshot(self.rel, (*scan).slot, latest))
                {
                    continue;
                }
                found = visit(&Tuple::read(tuple, (*self.rel).rd_att));
            }
            pg_sys::systable_endscan(scan);
            Snapshot::end(latest);
            found
        }
    }

    /// Runs `visit` on the rows that match the keys under the snapshot, from the end of an index of rewritten
    /// rows; whether it came to their beginning. Else it met a former version of the row just visited, and
    /// there may be any number of those: the caller goes on below that row's key, which takes it past them.
    pub fn visit_back<'rel, const N: usize>(
        &'rel self,
        index: Index,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
        mut visit: impl FnMut(&Tuple<'rel, N>),
    ) -> bool {
        let mut again = keys.to_vec();
        let (index_oid, mut is_visited) = (cache::index_oid(index), false);
        // SAFETY: as in find(). The scan stays at an index entry until all versions behind it were looked at.
        let end = unsafe {
            let (shown, latest) = snapshot.begin();
            let (count, keys) = (keys.len() as i32, keys.as_mut_ptr());
            let scan = pg_sys::systable_beginscan(self.rel, index_oid, true, shown, count, keys);
            let (entries, slot) = ((*scan).iscan, (*scan).slot);
            let backward = pg_sys::ScanDirection::BackwardScanDirection;
            let end = loop {
                // Without its index (a server started with -P) there is no order to go by.
                if entries.is_null() {
                    break None;
                }
                let is_next_entry = !(*entries).xs_heap_continue;
                if is_next_entry && pg_sys::index_getnext_tid(entries, backward).is_null() {
                    break Some(true);
                }
                if pg_sys::index_fetch_heap(entries, slot)
                    && latest.is_none_or(|latest| pg_sys::table_tuple_satisfies_snapshot(self.rel, slot, latest))
                {
                    // What a heap gives is a slot of this sort.
                    let tuple = (*slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple;
                    visit(&Tuple::read(tuple, (*self.rel).rd_att));
                    is_visited = true;
                } else if is_visited && is_next_entry {
                    break Some(false);
                }
            };
            pg_sys::systable_endscan(scan);
            Snapshot::end(latest);
            end
        };
        end.unwrap_or_else(|| {
            self.find(Some(index), &mut again, snapshot, |row| {
                visit(row);
                None::<()>
            });
            true
        })
    }

    /// As [`Rel::find`], for rows that may change under one's eyes: what the cheaper snapshot misses is
    /// looked for again with the other, since it may be just being updated.
    pub fn find_changing<'rel, const N: usize, T>(
        &'rel self,
        index: Index,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<T> {
        // A scan writes in its keys.
        let mut again = keys.to_vec();
        self.find(Some(index), keys, Snapshot::Itself, &mut visit)
            .or_else(|| self.find(Some(index), &mut again, Snapshot::LatestMvcc, &mut visit))
    }

    /// The role that owns the table, and with it the extension.
    pub fn owner(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.rel).rd_rel).relowner }
    }

    /// Whether a row matches that is committed or that a transaction is at work on; then that one's id.
    pub fn find_dirty(&self, index: Index, keys: &mut [pg_sys::ScanKeyData]) -> Dirty {
        // SAFETY: as in find(). Such a snapshot tells in its xmin who is inserting the row just fetched,
        // and in its xmax who is updating or deleting it; it is only used through this pointer.
        unsafe {
            let mut snapshot = std::mem::zeroed::<pg_sys::SnapshotData>();
            snapshot.snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
            let shown = &raw mut snapshot;
            let scan = pg_sys::systable_beginscan(
                self.rel,
                cache::index_oid(index),
                true,
                shown,
                keys.len() as i32,
                keys.as_mut_ptr(),
            );
            let tuple = pg_sys::systable_getnext(scan);
            let found = match (tuple.is_null(), (*shown).xmin, (*shown).xmax) {
                (true, _, _) => Dirty::Nothing,
                (false, pg_sys::InvalidTransactionId, pg_sys::InvalidTransactionId) => Dirty::Committed,
                (false, pg_sys::InvalidTransactionId, updater) => Dirty::InProgress(updater),
                (false, inserter, _) => Dirty::InProgress(inserter),
            };
            pg_sys::systable_endscan(scan);
            found
        }
    }
}

impl Drop for Rel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The abort that follows closes it.
            return;
        }
        let release = match self.access {
            Access::Read => pg_sys::AccessShareLock,
            Access::Write => pg_sys::NoLock,
        };
        // SAFETY: opened in open(), closed once.
        unsafe { pg_sys::table_close(self.rel, release as i32) }
    }
}

/// Opens a table with the lock to write it, which belongs to the transaction: with the running portal as
/// its owner, a cursor that fails inside a savepoint would take the lock away, while what was written
/// before it stands. `null`: the table is gone.
fn open_to_write(oid: pg_sys::Oid) -> pg_sys::Relation {
    let mode = pg_sys::RowExclusiveLock as i32;
    // SAFETY: a lock may be asked for by any oid; the table is opened under it.
    unsafe {
        lock::as_transaction(|| pg_sys::LockRelationOid(oid, mode));
        let rel = pg_sys::try_table_open(oid, pg_sys::NoLock as i32);
        if rel.is_null() {
            lock::as_transaction(|| pg_sys::UnlockRelationOid(oid, mode));
        }
        rel
    }
}

/// Takes a lock on a table or an index, to the end of the transaction, if nobody is in the way.
pub fn try_lock(relation: pg_sys::Oid, mode: u32) -> bool {
    // SAFETY: asks for a lock without waiting; of a relation that is gone it is had, and does no harm.
    unsafe { pg_sys::ConditionalLockRelationOid(relation, mode as i32) }
}

/// Gives back what [`try_lock`] gave.
pub fn unlock(relation: pg_sys::Oid, mode: u32) {
    // SAFETY: the caller took it just now.
    unsafe { pg_sys::UnlockRelationOid(relation, mode as i32) }
}

/// A table's indexes. The caller has locked it.
pub(super) fn indexes_of(table: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: the table is locked, so it is there and stays as it is; the list has so many oids.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let list = pg_sys::RelationGetIndexList(rel);
        let count = if list.is_null() { 0 } else { (*list).length };
        let indexes = (0..count).map(|n| pg_sys::list_nth_oid(list, n)).collect();
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        indexes
    }
}

/// A table's TOAST table. The caller has locked the table.
pub(super) fn toast_of(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: as above.
    let toast = unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let toast = (*(*rel).rd_rel).reltoastrelid;
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        toast
    };
    (toast != pg_sys::InvalidOid).then_some(toast)
}

/// What a dirty look found.
pub enum Dirty {
    /// No row.
    Nothing,
    /// A row that stands.
    Committed,
    /// A row that the transaction given is inserting, updating or deleting, which may yet roll back.
    InProgress(pg_sys::TransactionId),
}

/// Which rows a scan sees.
#[derive(Clone, Copy)]
pub enum Snapshot {
    /// `SnapshotSelf`: all that is committed at this moment, and our own. For rows that are not
    /// updated, or only under a lock that the caller holds: it can miss one that is being updated.
    /// Takes no predicate locks: with an MVCC snapshot two SERIALIZABLE transactions with different new
    /// keys on one index page would abort each other.
    Itself,
    /// A fresh MVCC snapshot, for rows that may change under one's eyes. Every version of a row is
    /// fetched and then held against the snapshot, so that this too takes no predicate locks.
    LatestMvcc,
}

impl Snapshot {
    /// What the scan shows, and what each row shown is held against, to be ended after the scan.
    fn begin(self) -> (pg_sys::Snapshot, Option<pg_sys::Snapshot>) {
        // SAFETY: the first two are static; the third is registered until end().
        unsafe {
            match self {
                Snapshot::Itself => (&raw mut pg_sys::SnapshotSelfData, None),
                Snapshot::LatestMvcc => {
                    (&raw mut pg_sys::SnapshotAnyData, Some(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot())))
                }
            }
        }
    }

    fn end(latest: Option<pg_sys::Snapshot>) {
        if let Some(latest) = latest {
            // SAFETY: registered in begin(), and no longer used.
            unsafe { pg_sys::UnregisterSnapshot(latest) }
        }
    }
}
