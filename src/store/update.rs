//! Writing a row directly over another one with the same primary key.
//!
//! The row may have many versions. While somebody holds an old snapshot no former version can go, and the index has an
//! entry for each page that a version is on. For each new entry PostgreSQL's check of a unique index would go through
//! all of them. So the check of the primary key is left out. It could find nothing: the key is that of the row written
//! over, so no other row can have it.

use crate::pg;
use crate::store::insert;
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
        let Some(takes) = pg::heap_update(rel, at, tuple) else { return };
        let indexes = pg_sys::CatalogOpenIndexes(rel);
        let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        pg_sys::ExecStoreHeapTuple(tuple, slot, false);
        insert::insert_entries(rel, indexes, &[slot], takes, true);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::CatalogCloseIndexes(indexes);
    }
}
