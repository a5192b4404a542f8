//! Writing a row directly over another with the same primary key, of which there may be many versions.
//!
//! While somebody holds an old snapshot nothing of what was there before can go, and the index has an entry
//! for each page that the row was on. PostgreSQL's check of a unique index would go through all of them, at
//! each new entry. There is nothing to check: the key is that of the row written over, whose place in the
//! index nobody else can have taken.

use crate::pg::{self, NewEntries};
use pgrx::pg_sys;

/// Puts `tuple` in the place of the row at `at`.
///
/// # Safety
///
/// `rel` is open to be written, `tuple` was formed for it, and `at` is a row with the same primary key that
/// nobody else changes.
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

/// # Safety
///
/// `slot` holds `tuple`, which is in `rel`; `index` is an index of it, and `info` tells of which columns.
unsafe fn insert_entry(
    rel: pg_sys::Relation,
    tuple: pg_sys::HeapTuple,
    slot: *mut pg_sys::TupleTableSlot,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
) {
    let mut values = [pg_sys::Datum::null(); pg_sys::INDEX_MAX_KEYS as usize];
    let mut nulls = [true; pg_sys::INDEX_MAX_KEYS as usize];
    // SAFETY: as the caller warrants; the arrays have room for all columns that an index can have.
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
