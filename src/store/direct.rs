//! Inserting a row directly, or writing it over another one with the same primary key.
//!
//! A table of outcomes has one index, on one column, and that of leases has two, as long as nobody adds another. Then the
//! entries are inserted without the helpers that PostgreSQL has for its catalogs, which look up all indexes of a table for
//! each row.
//!
//! A row that is written over another may have many versions. While somebody holds an old snapshot no former version can go,
//! and the index has an entry for each page that a version is on. For each new entry PostgreSQL's check of a unique index
//! would go through all of them. So the check of the primary key is left out. It could find nothing: the key is that of the
//! row written over, so no other row can have it.

use crate::pg::{self, raw};
use crate::store::row;
use crate::store::way::SimpleIndex;
use pgrx::pg_sys;

/// Inserts a row, and tells where. The commands that follow see it.
///
/// # Safety
///
/// `rel` is open to be written and has these columns, and the direct way serves it. `indexes` are those that its way tells.
pub(super) unsafe fn insert(
    rel: pg_sys::Relation,
    columns: &[Option<pg_sys::Datum>],
    indexes: [Option<SimpleIndex>; 2],
) -> pg_sys::ItemPointerData {
    // SAFETY: as the caller warrants. The closure has nothing to drop and does not panic.
    unsafe {
        raw::guarded(|| {
            let tuple = row::form((*rel).rd_att, columns);
            if indexes[0].is_some() {
                raw::simple_heap_insert(rel, tuple);
                for index in indexes.iter().flatten() {
                    insert_entry(rel, tuple, index, columns[index.column]);
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
    column: Option<pg_sys::Datum>,
) {
    let (mut value, mut is_null) = (column.unwrap_or(pg_sys::Datum::null()), column.is_none());
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

/// Writes a row over the one at `at`. The commands that follow see it.
///
/// # Safety
///
/// As for [`insert`], and `at` is a row of `rel` with the same primary key, which no other transaction changes.
pub(super) unsafe fn update(rel: pg_sys::Relation, mut at: pg_sys::ItemPointerData, columns: &[Option<pg_sys::Datum>]) {
    // SAFETY: as the caller warrants. The closure has nothing to drop and does not panic. An error ends the transaction, which
    // closes the indexes.
    unsafe {
        let tuple = raw::guarded(|| row::form((*rel).rd_att, columns));
        if let Some(takes) = pg::heap_update(rel, &mut at, tuple) {
            let indexes = pg_sys::CatalogOpenIndexes(rel);
            let slot = pg_sys::MakeSingleTupleTableSlot((*rel).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            insert_entries(rel, indexes, &[slot], takes, true);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::CatalogCloseIndexes(indexes);
        }
        pg_sys::heap_freetuple(tuple);
        pg_sys::CommandCounterIncrement();
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
