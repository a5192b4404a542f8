//! A scan of a table, through one of its indexes or without one.

use crate::error::Error;
use crate::pg::raw;
use crate::store::cache;
use crate::store::catalog::{INDEXES, Index};
use crate::store::claimed::Claimed;
use crate::store::entries::Entries;
use crate::store::snapshot::Snapshot;
use pgrx::pg_sys;

/// A scan that is at a row. A panic leaves it as it is: the abort that follows ends it.
pub(super) struct Scan {
    table: pg_sys::Relation,
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

impl Scan {
    /// Begins a scan for the rows that match the keys and that the snapshot sees; `None`: there is none, and the scan has
    /// ended. `table` is an open table of ours; `claimed`: its locks, if it was opened to claim.
    pub fn begin(
        table: pg_sys::Relation,
        claimed: Option<&Claimed>,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
    ) -> Option<Scan> {
        let oid = index.map(cache::index_oid);
        // Among equal keys an index keeps the entries of later places last.
        let newest_first = index.is_some_and(Index::is_of_rewritten);
        // SAFETY: table, index and keys belong together. The snapshots are static, or registered during the scan. On an error
        // the abort closes the scan. The closure has nothing to drop and does not panic.
        let begun = unsafe {
            raw::guarded(|| {
                let (shown, latest) = snapshot.begin();
                let rows = match oid {
                    Some(oid) => Entries::begin(table, claimed, oid, keys, shown, newest_first).map(Rows::Index),
                    None => {
                        let (count, keys) = (keys.len() as i32, keys.as_mut_ptr());
                        let scan = raw::systable_beginscan(table, pg_sys::InvalidOid, false, shown, count, keys);
                        Some(Rows::Table(scan))
                    }
                };
                rows.map(|rows| {
                    let mut scan = Scan { table, rows, latest, ahead: None };
                    let first = scan.fetch();
                    if first.is_null() {
                        scan.finish();
                        return None;
                    }
                    scan.ahead = Some(first);
                    Some(scan)
                })
            })
        };
        begun.unwrap_or_else(|| not_on_these(index))
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
                if tuple.is_null() || self.latest.is_none_or(|latest| sees(self.table, latest, slot)) {
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
                Rows::Index(entries) => entries.end(),
            }
            Snapshot::end(self.latest);
        }
    }
}

/// Whether the snapshot sees the row of the table that is in the slot.
///
/// # Safety
/// Called within a guard, for a table that is open.
pub(super) unsafe fn sees(
    table: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: the table is open, and so its access method is there.
    unsafe { (*(*table).rd_tableam).tuple_satisfies_snapshot.is_none_or(|sees| sees(table, slot, snapshot)) }
}

/// Raises the error of an index that somebody has put in the place of ours. The abort closes it.
pub(super) fn not_on_these(index: Option<Index>) -> ! {
    let name = index.map_or("", |index| INDEXES[index as usize]);
    Error::Corrupted { message: format!("index \"idempotence.{name}\" is not on the columns that it was made on") }
        .raise()
}
