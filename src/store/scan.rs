//! A scan of a table, through one of its indexes or without one.

use crate::pg::raw;
use crate::store::cache;
use crate::store::catalog::Index;
use crate::store::entries::Entries;
use crate::store::rel::Rel;
use crate::store::snapshot::Snapshot;
use pgrx::pg_sys;

/// A scan that is at a row, or at its end. A panic leaves it as it is: the abort that follows ends it.
pub(super) struct Scan<'rel> {
    table: &'rel Rel,
    rows: Rows,
    /// What each row is compared with, if not with the scan's own snapshot.
    latest: Option<pg_sys::Snapshot>,
    /// The row that comes next, fetched with the same guard as what was done before.
    ahead: Option<pg_sys::HeapTuple>,
}

/// What a scan goes over.
enum Rows {
    Table(pg_sys::SysScanDesc),
    Index(Entries),
}

impl<'rel> Scan<'rel> {
    /// Begins a scan for the rows that match the keys and that the snapshot sees.
    pub fn begin(
        table: &'rel Rel,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
    ) -> Scan<'rel> {
        let index = Scan::looked_up(index);
        // SAFETY: table, index and keys belong together. The closure has nothing to drop and does not panic.
        unsafe { raw::guarded(|| Scan::start(table, index, keys, snapshot)) }
    }

    /// As [`Scan::begin`]; `None`: there is no row, and the scan has ended.
    pub fn at_first(
        table: &'rel Rel,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
    ) -> Option<Scan<'rel>> {
        let index = Scan::looked_up(index);
        // SAFETY: as in begin().
        unsafe {
            raw::guarded(|| {
                let scan = Scan::start(table, index, keys, snapshot);
                if scan.ahead.is_some_and(|tuple| tuple.is_null()) {
                    scan.finish();
                    return None;
                }
                Some(scan)
            })
        }
    }

    /// An index, and whether its newest entries come first. Among equal keys an index keeps the entries of later places last.
    fn looked_up(index: Option<Index>) -> Option<(pg_sys::Oid, bool)> {
        index.map(|index| (cache::index_oid(index), index.is_of_rewritten()))
    }

    /// # Safety
    /// Called within a guard. Table, index and keys belong together.
    unsafe fn start(
        table: &'rel Rel,
        index: Option<(pg_sys::Oid, bool)>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
    ) -> Scan<'rel> {
        // SAFETY: as the caller warrants. The snapshots are static, or registered during the scan. On an error the abort
        // closes the scan.
        unsafe {
            let (shown, latest) = snapshot.begin();
            let rows = match index {
                Some((oid, newest_first)) => {
                    Rows::Index(Entries::begin(table.rel, table.open_index(oid), keys, shown, newest_first))
                }
                None => {
                    let (count, keys) = (keys.len() as i32, keys.as_mut_ptr());
                    Rows::Table(raw::systable_beginscan(table.rel, pg_sys::InvalidOid, false, shown, count, keys))
                }
            };
            let mut scan = Scan { table, rows, latest, ahead: None };
            scan.ahead = Some(scan.fetch());
            scan
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

    /// Begins the scan of an index again with other values of its keys, whose columns are those of the index.
    pub fn again(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        if let Rows::Index(entries) = &mut self.rows {
            // SAFETY: the scan has begun, with as many keys. The closure has nothing to drop and does not panic.
            unsafe { raw::guarded(|| entries.again(keys)) }
        }
        self.ahead = None;
    }

    /// # Safety
    /// Called within a guard.
    unsafe fn fetch(&mut self) -> pg_sys::HeapTuple {
        // SAFETY: the scan has begun.
        unsafe {
            loop {
                let (tuple, slot) = match &mut self.rows {
                    Rows::Table(scan) => (raw::systable_getnext(*scan), (**scan).slot),
                    Rows::Index(entries) => (entries.next(), entries.slot()),
                };
                if tuple.is_null() || self.latest.is_none_or(|latest| self.table.sees(latest, slot)) {
                    return tuple;
                }
            }
        }
    }

    /// Ends the scan.
    pub fn end(self) {
        // SAFETY: the scan has begun, and is ended once. The closure has nothing to drop and does not panic.
        unsafe { raw::guarded(|| self.finish()) }
    }

    /// # Safety
    /// Called within a guard, once.
    unsafe fn finish(&self) {
        // SAFETY: the scan has begun.
        unsafe {
            match &self.rows {
                Rows::Table(scan) => raw::systable_endscan(*scan),
                Rows::Index(entries) => self.table.close_index(entries.end()),
            }
            Snapshot::end(self.latest);
        }
    }
}
