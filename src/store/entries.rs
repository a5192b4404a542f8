//! A scan of the entries of an index, and of the rows that they lead to.

use crate::pg::raw;
use crate::store::claimed::Claimed;
use pgrx::pg_sys;

/// A scan that has begun. A panic leaves it as it is: the abort that follows ends it.
pub(super) struct Entries {
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    /// The lock that is given back with the index.
    mode: pg_sys::LOCKMODE,
    scan: pg_sys::IndexScanDesc,
    direction: pg_sys::ScanDirection::Type,
    /// Holds the row. It is made for the first one: most requests are new, and nothing is found of them.
    slot: *mut pg_sys::TupleTableSlot,
}

impl Entries {
    /// Begins a scan for the entries that match the keys, whose columns are those of the table and become those of the index.
    /// Only rows that the snapshot sees are given. `None`: this is no B-tree on these columns.
    ///
    /// # Safety
    ///
    /// Called within a guard. The table is open for as long as the scan, and the keys are of its columns.
    pub unsafe fn begin(
        table: pg_sys::Relation,
        claimed: Option<&Claimed>,
        index: pg_sys::Oid,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: pg_sys::Snapshot,
        is_backward: bool,
    ) -> Option<Entries> {
        use pg_sys::ScanDirection::{BackwardScanDirection, ForwardScanDirection};
        // SAFETY: as the caller warrants. If the table has lost the index, the server raises an error. An index tells the
        // columns that it is on.
        unsafe {
            let is_locked = claimed.is_some_and(|claimed| claimed.try_index(index));
            let mode = (if is_locked { pg_sys::NoLock } else { pg_sys::AccessShareLock }) as pg_sys::LOCKMODE;
            let index = raw::index_open(index, mode);
            if (*(*index).rd_rel).relam != pg_sys::BTREE_AM_OID {
                return None;
            }
            let form = (*index).rd_index;
            let columns = std::slice::from_raw_parts((*form).indkey.values.as_ptr(), (*form).indnkeyatts as usize);
            for key in keys.iter_mut() {
                key.sk_attno = columns.iter().position(|column| *column == key.sk_attno)? as i16 + 1;
            }
            let scan = raw::index_beginscan(table, index, snapshot, keys.len() as i32);
            let direction = if is_backward { BackwardScanDirection } else { ForwardScanDirection };
            let mut entries = Entries { table, index, mode, scan, direction, slot: std::ptr::null_mut() };
            entries.again(keys);
            Some(entries)
        }
    }

    /// Begins the scan again. The columns of the keys are those of the index.
    ///
    /// # Safety
    ///
    /// Called within a guard, with as many keys as before.
    pub unsafe fn again(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: the scan has begun, and takes so many keys.
        unsafe { raw::index_rescan(self.scan, keys.as_mut_ptr(), keys.len() as i32, std::ptr::null_mut(), 0) }
    }

    /// The next row that the snapshot sees; null at the end.
    ///
    /// # Safety
    ///
    /// Called within a guard.
    pub unsafe fn next(&mut self) -> pg_sys::HeapTuple {
        // SAFETY: the scan has begun.
        unsafe {
            while self.has_more() || self.advance() {
                let tuple = self.fetch();
                if !tuple.is_null() {
                    return tuple;
                }
            }
        }
        std::ptr::null_mut()
    }

    /// Whether the entry may lead to another row than the one that was fetched.
    pub fn has_more(&self) -> bool {
        // SAFETY: the scan has begun.
        unsafe { (*self.scan).xs_heap_continue }
    }

    /// Goes to the next entry; gives whether there is one.
    ///
    /// # Safety
    ///
    /// Called within a guard.
    pub unsafe fn advance(&mut self) -> bool {
        // SAFETY: the scan has begun.
        unsafe { !raw::index_getnext_tid(self.scan, self.direction).is_null() }
    }

    /// Fetches a row that the entry leads to; null if the snapshot sees none.
    ///
    /// # Safety
    ///
    /// Called within a guard, and the scan is at an entry.
    pub unsafe fn fetch(&mut self) -> pg_sys::HeapTuple {
        // SAFETY: the scan is at an entry. A heap table has slots of this kind.
        unsafe {
            if self.slot.is_null() {
                self.slot = raw::table_slot_create(self.table, std::ptr::null_mut());
            }
            let is_there = raw::index_fetch_heap(self.scan, self.slot);
            if is_there { (*self.slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple } else { std::ptr::null_mut() }
        }
    }

    /// The slot of the row; null before the first fetch.
    pub fn slot(&self) -> *mut pg_sys::TupleTableSlot {
        self.slot
    }

    /// Ends the scan.
    ///
    /// # Safety
    ///
    /// Called within a guard, once.
    pub unsafe fn end(&self) {
        // SAFETY: the scan has begun, and is ended once.
        unsafe {
            raw::index_endscan(self.scan);
            if !self.slot.is_null() {
                raw::ExecDropSingleTupleTableSlot(self.slot);
            }
            raw::index_close(self.index, self.mode);
        }
    }
}
