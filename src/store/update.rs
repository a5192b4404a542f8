//! Writing a row directly over another one with the same primary key.
//!
//! The row may have many versions. While somebody holds an old snapshot no former version can go, and the index has an
//! entry for each page that a version is on. For each new entry PostgreSQL's check of a unique index would go through
//! all of them. So the check of the primary key is left out. It could find nothing: the key is that of the row written
//! over, so no other row can have it.

use crate::pg::{self, NewEntries};
use pgrx::pg_sys;

/// Writes `tuple` over the row at `at`.
///
/// # Safety
///
/// `rel` is open to be written, `tuple` was formed for it, and `at` is a row of it with the same primary key. No other
/// transaction changes that row.
pub(super) unsafe fn update(rel: pg_sys::Relation, at: &mut pg_sys::ItemPointerData, tuple: pg_sys::HeapTuple) {
    // SAFETY: as the caller warrants. An error ends the transaction, which closes the indexes.
    unsafe {
        let entries = pg::heap_update(rel, at, tuple);
        if entries == NewEntries::None {
            return;
        }
        let indexes = pg_sys::CatalogOpenIndexes(rel);
        let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        pg_sys::ExecStoreHeapTuple(tuple, slot, false);
        for i in 0..(*indexes).ri_NumIndices as usize {
            let (index, info) = (*(*indexes).ri_IndexRelationDescs.add(i), *(*indexes).ri_IndexRelationInfo.add(i));
            if entries == NewEntries::Summaries && !pg::is_summarizing(info) {
                continue;
            }
            insert_entry(rel, tuple, slot, index, info);
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::CatalogCloseIndexes(indexes);
    }
}

/// Inserts the entry of `tuple` into one index.
///
/// # Safety
///
/// `slot` holds `tuple`, which is a row of `rel`. `index` is an index of `rel`, and `info` describes it.
unsafe fn insert_entry(
    rel: pg_sys::Relation,
    tuple: pg_sys::HeapTuple,
    slot: *mut pg_sys::TupleTableSlot,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
) {
    let mut values = [pg_sys::Datum::null(); pg_sys::INDEX_MAX_KEYS as usize];
    let mut nulls = [true; pg_sys::INDEX_MAX_KEYS as usize];
    // SAFETY: as the caller warrants. The arrays have room for as many columns as an index can have.
    unsafe {
        let of_index = (*index).rd_index;
        if !(*of_index).indisready {
            return;
        }
        let is_primary = (*of_index).indisprimary;
        let check = if (*of_index).indisunique && !is_primary {
            pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
        } else {
            pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
        };
        pg_sys::FormIndexDatum(info, slot, std::ptr::null_mut(), values.as_mut_ptr(), nulls.as_mut_ptr());
        let place = &mut (*tuple).t_self;
        pg_sys::index_insert(index, values.as_mut_ptr(), nulls.as_mut_ptr(), place, rel, check, is_primary, info);
    }
}
