//! A scan of a table, through one of its indexes or without one.

use crate::pg::raw;
use crate::store::cache;
use crate::store::catalog::Index;
use crate::store::snapshot::Snapshot;
use pgrx::pg_sys;

/// A scan that is at a row, or at its end. A panic leaves it as it is: the abort that follows ends it.
pub(super) struct Scan {
    rel: pg_sys::Relation,
    scan: pg_sys::SysScanDesc,
    /// What each row is compared with, if not with the scan's own snapshot.
    latest: Option<pg_sys::Snapshot>,
    /// Whether rows come from the end of the index.
    is_backward: bool,
    /// The row that comes next, fetched with the same guard as what was done before.
    ahead: Option<pg_sys::HeapTuple>,
}

impl Scan {
    /// Begins a scan for the rows that match the keys and that the snapshot sees.
    /// `rel` is an open table of ours.
    pub fn begin(
        rel: pg_sys::Relation,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
    ) -> Scan {
        let index_oid = index.map_or(pg_sys::InvalidOid, cache::index_oid);
        let newest_first = index.is_some_and(Index::is_of_rewritten);
        let (count, keys) = (keys.len() as i32, keys.as_mut_ptr());
        // SAFETY: relation, index and keys belong together. The snapshots are static, or registered during the scan. On
        // an error the abort closes the scan. The closure has nothing to drop and does not panic.
        unsafe {
            raw::guarded(|| {
                let (shown, latest) = snapshot.begin();
                let scan = raw::systable_beginscan(rel, index_oid, index.is_some(), shown, count, keys);
                // Among equal keys an index keeps the entries of later places last. On a server that was started with -P
                // the scan does not use the index.
                let is_backward = newest_first && !(*scan).irel.is_null();
                let mut scan = Scan { rel, scan, latest, is_backward, ahead: None };
                scan.ahead = Some(scan.fetch());
                scan
            })
        }
    }

    /// The next row, which is valid until the scan goes on.
    pub fn next(&mut self) -> Option<pg_sys::HeapTuple> {
        let tuple = match self.ahead.take() {
            Some(tuple) => tuple,
            // SAFETY: the scan has begun. The closure has nothing to drop and does not panic.
            None => unsafe { raw::guarded(|| self.fetch()) },
        };
        (!tuple.is_null()).then_some(tuple)
    }

    /// The scan, begun again with other values of its keys. On a server that was started with -P the scan uses no index. Then it
    /// is ended.
    pub fn again(mut self, keys: &mut [pg_sys::ScanKeyData]) -> Option<Scan> {
        // SAFETY: the scan has begun, with as many keys. They are the first columns of the table and of the index, so they are
        // the same for both.
        unsafe {
            let entries = (*self.scan).iscan;
            if entries.is_null() {
                self.end();
                return None;
            }
            pg_sys::index_rescan(entries, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0);
        }
        self.ahead = None;
        Some(self)
    }

    /// # Safety
    /// Called within a guard.
    unsafe fn fetch(&self) -> pg_sys::HeapTuple {
        // SAFETY: the scan has begun, and has a slot that holds the row.
        unsafe {
            loop {
                let tuple = if self.is_backward {
                    raw::systable_getnext_ordered(self.scan, pg_sys::ScanDirection::BackwardScanDirection)
                } else {
                    raw::systable_getnext(self.scan)
                };
                if tuple.is_null() || self.latest.is_none_or(|latest| self.sees(latest)) {
                    return tuple;
                }
            }
        }
    }

    /// # Safety
    /// As for [`Scan::fetch`], and the scan is at a row.
    unsafe fn sees(&self, snapshot: pg_sys::Snapshot) -> bool {
        // SAFETY: the table is open, and so its access method is there.
        unsafe {
            let method = (*(*self.rel).rd_tableam).tuple_satisfies_snapshot;
            method.is_none_or(|sees| sees(self.rel, (*self.scan).slot, snapshot))
        }
    }

    /// Ends the scan.
    pub fn end(self) {
        // SAFETY: the scan has begun, and is ended once. The closure has nothing to drop and does not panic.
        unsafe {
            raw::guarded(|| {
                raw::systable_endscan(self.scan);
                Snapshot::end(self.latest);
            })
        }
    }
}
