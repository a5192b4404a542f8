//! Inserting a row directly.
//!
//! A table of outcomes has one index, on one column, as long as nobody adds another. Then the entry of the index is
//! inserted without the helpers that PostgreSQL has for its catalogs, which look up all indexes of a table for each row.

use crate::pg::raw;
use crate::store::row::RowToWrite;
use crate::store::way::SoleIndex;
use pgrx::pg_sys;

/// Inserts a row. The commands that follow see it.
///
/// # Safety
///
/// `rel` is open to be written, `row` is one of it, and the direct way serves it. `index` is its only index, if there is
/// such an index.
pub(super) unsafe fn insert(rel: pg_sys::Relation, mut row: RowToWrite, index: Option<SoleIndex>) {
    // SAFETY: as the caller warrants. The closure has nothing to drop and does not panic.
    unsafe {
        raw::guarded(|| {
            let (values, nulls) = row.parts();
            let tuple = raw::heap_form_tuple((*rel).rd_att, values, nulls);
            match index {
                Some(index) => {
                    raw::simple_heap_insert(rel, tuple);
                    insert_entry(rel, tuple, index, row.column(index.column));
                }
                None => raw::CatalogTupleInsert(rel, tuple),
            }
            raw::heap_freetuple(tuple);
            raw::CommandCounterIncrement();
        })
    }
}

/// Inserts the entry of `tuple` into the index.
///
/// # Safety
///
/// As for [`insert`], within a guard. `tuple` was inserted into `rel`.
unsafe fn insert_entry(
    rel: pg_sys::Relation,
    tuple: pg_sys::HeapTuple,
    sole: SoleIndex,
    (mut value, mut is_null): (pg_sys::Datum, bool),
) {
    let mode = pg_sys::RowExclusiveLock as i32;
    let check = if sole.is_unique {
        pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
    } else {
        pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
    };
    // SAFETY: as the caller warrants. index_insert() hands the description on to the access method, and a B-tree does not
    // look at it.
    unsafe {
        let mut info = std::mem::zeroed::<pg_sys::IndexInfo>();
        info.type_ = pg_sys::NodeTag::T_IndexInfo;
        info.ii_NumIndexAttrs = 1;
        info.ii_NumIndexKeyAttrs = 1;
        info.ii_IndexAttrNumbers[0] = sole.column as i16 + 1;
        info.ii_Unique = sole.is_unique;
        info.ii_ReadyForInserts = true;
        info.ii_Am = pg_sys::BTREE_AM_OID;
        info.ii_Context = pg_sys::CurrentMemoryContext;
        let index = raw::index_open(sole.oid, mode);
        let place = &raw mut (*tuple).t_self;
        raw::index_insert(index, &raw mut value, &raw mut is_null, place, rel, check, false, &raw mut info);
        raw::index_close(index, mode);
    }
}
