//! Inserting a row directly, and entries of indexes for rows that are written otherwise.
//!
//! A table of outcomes has one index, on one column, and that of leases has two, as long as nobody adds another. Then the
//! entries are inserted without the helpers that PostgreSQL has for its catalogs, which look up all indexes of a table for
//! each row.

use crate::pg::raw;
use crate::store::row::RowToWrite;
use crate::store::way::SimpleIndex;
use pgrx::pg_sys;

/// Inserts a row, and tells where. The commands that follow see it.
///
/// # Safety
///
/// `rel` is open to be written, `row` is one of it, and the direct way serves it. `indexes` are those that its way tells.
pub(super) unsafe fn insert(
    rel: pg_sys::Relation,
    mut row: RowToWrite,
    indexes: [Option<SimpleIndex>; 2],
) -> pg_sys::ItemPointerData {
    // SAFETY: as the caller warrants. The closure has nothing to drop and does not panic.
    unsafe {
        raw::guarded(|| {
            let tuple = row.form((*rel).rd_att);
            if indexes[0].is_some() {
                raw::simple_heap_insert(rel, tuple);
                for index in indexes.iter().flatten() {
                    insert_entry(rel, tuple, index, row.column(index.column));
                }
            } else {
                raw::CatalogTupleInsert(rel, tuple);
            }
            let at = (*tuple).t_self;
            raw::heap_freetuple(tuple);
            raw::CommandCounterIncrement();
            at
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
    simple: &SimpleIndex,
    (mut value, mut is_null): (pg_sys::Datum, bool),
) {
    let mode = pg_sys::RowExclusiveLock as i32;
    let check = unique_check(simple.is_unique);
    // SAFETY: as the caller warrants. index_insert() hands the description on to the access method, and a B-tree does not
    // look at it.
    unsafe {
        let mut info = std::mem::zeroed::<pg_sys::IndexInfo>();
        info.type_ = pg_sys::NodeTag::T_IndexInfo;
        info.ii_NumIndexAttrs = 1;
        info.ii_NumIndexKeyAttrs = 1;
        info.ii_IndexAttrNumbers[0] = simple.column as i16 + 1;
        info.ii_Unique = simple.is_unique;
        info.ii_ReadyForInserts = true;
        info.ii_Am = pg_sys::BTREE_AM_OID;
        info.ii_Context = pg_sys::CurrentMemoryContext;
        let index = raw::index_open(simple.oid, mode);
        let place = &raw mut (*tuple).t_self;
        raw::index_insert(index, &raw mut value, &raw mut is_null, place, rel, check, false, &raw mut info);
        raw::index_close(index, mode);
    }
}

/// Inserts the entries of rows, index by index, into those of the table's indexes that are to have new ones. `over`: the
/// rows are written over others with the same primary key, which is not checked then.
///
/// # Safety
///
/// `indexes` are those of `rel`, which are all on plain columns, and the slots hold rows of it that are written.
pub(super) unsafe fn insert_entries(
    rel: pg_sys::Relation,
    indexes: pg_sys::CatalogIndexState,
    rows: &[*mut pg_sys::TupleTableSlot],
    takes: fn(&pg_sys::IndexInfo) -> bool,
    over: bool,
) {
    let mut values = [pg_sys::Datum::null(); pg_sys::INDEX_MAX_KEYS as usize];
    let mut nulls = [true; pg_sys::INDEX_MAX_KEYS as usize];
    // SAFETY: as the caller warrants. The arrays have room for as many columns as an index can have.
    unsafe {
        for i in 0..(*indexes).ri_NumIndices as usize {
            let (index, info) = (*(*indexes).ri_IndexRelationDescs.add(i), *(*indexes).ri_IndexRelationInfo.add(i));
            let form = (*index).rd_index;
            if !(*form).indisready || !takes(&*info) {
                continue;
            }
            let is_known = over && (*form).indisprimary;
            let check = unique_check((*form).indisunique && !is_known);
            for row in rows {
                let (no_state, place) = (std::ptr::null_mut(), &raw mut (**row).tts_tid);
                pg_sys::FormIndexDatum(info, *row, no_state, values.as_mut_ptr(), nulls.as_mut_ptr());
                pg_sys::index_insert(index, values.as_mut_ptr(), nulls.as_mut_ptr(), place, rel, check, is_known, info);
            }
        }
    }
}

fn unique_check(is_checked: bool) -> pg_sys::IndexUniqueCheck::Type {
    use pg_sys::IndexUniqueCheck::{UNIQUE_CHECK_NO, UNIQUE_CHECK_YES};
    if is_checked { UNIQUE_CHECK_YES } else { UNIQUE_CHECK_NO }
}
