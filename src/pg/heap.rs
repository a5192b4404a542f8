//! What differs between server versions in rows and files of tables.

use pgrx::pg_sys;

/// The number of the file that a relation is stored in.
///
/// # Safety
///
/// The relation is open.
pub unsafe fn file_of(relation: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: as the caller warrants.
    unsafe {
        #[cfg(before_pg16)]
        return (*relation).rd_node.relNode;
        #[cfg(not(before_pg16))]
        return (*relation).rd_locator.relNumber;
    }
}

/// Whether this transaction has made the relation or has given it another file.
///
/// # Safety
///
/// The relation is open.
pub unsafe fn is_rewritten_by_us(relation: pg_sys::Relation) -> bool {
    // SAFETY: as the caller warrants.
    unsafe {
        #[cfg(before_pg16)]
        let rewritten_in = (*relation).rd_newRelfilenodeSubid;
        #[cfg(not(before_pg16))]
        let rewritten_in = (*relation).rd_newRelfilelocatorSubid;
        (*relation).rd_createSubid != 0 || rewritten_in != 0
    }
}

/// Writes a row over the one at `at`, without index entries. Gives which indexes need a new entry; `None`: it is a HOT update,
/// and none does.
///
/// # Safety
///
/// As for `simple_heap_update()`.
pub unsafe fn heap_update(
    relation: pg_sys::Relation,
    at: &mut pg_sys::ItemPointerData,
    tuple: pg_sys::HeapTuple,
) -> Option<fn(&pg_sys::IndexInfo) -> bool> {
    // SAFETY: as the caller warrants.
    #[cfg(before_pg16)]
    unsafe {
        pg_sys::simple_heap_update(relation, at, tuple);
        let is_hot = u32::from((*(*tuple).t_data).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE != 0;
        if is_hot { None } else { Some(|_| true) }
    }
    // SAFETY: likewise.
    #[cfg(not(before_pg16))]
    unsafe {
        let mut entries = pg_sys::TU_UpdateIndexes::TU_None;
        pg_sys::simple_heap_update(relation, at, tuple, &mut entries);
        match entries {
            pg_sys::TU_UpdateIndexes::TU_None => None,
            // Those that only sum up what a range of pages holds, as BRIN.
            pg_sys::TU_UpdateIndexes::TU_Summarizing => Some(|info| info.ii_Summarizing),
            _ => Some(|_| true),
        }
    }
}

/// Whether a row has the header of one that a table holds, and not that of a value of a composite type. PostgreSQL
/// marks such values by two flags that exclude each other in a table. Since the releases that fix CVE-2026-6460, it
/// raises an error where the type of such a value was altered.
///
/// # Safety
///
/// The row is valid.
pub unsafe fn is_row_of_table(row: pg_sys::HeapTuple) -> bool {
    let marks = (pg_sys::HEAP_XMAX_COMMITTED | pg_sys::HEAP_XMAX_INVALID) as u16;
    // SAFETY: as the caller warrants.
    unsafe { (*(*row).t_data).t_infomask & marks != marks }
}

/// The description of a column, counted from 0.
///
/// # Safety
/// `shape` must be valid and have more than `index` columns.
pub unsafe fn tuple_attribute(shape: pg_sys::TupleDesc, index: usize) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: as the caller warrants.
    unsafe {
        #[cfg(not(before_pg18))]
        return pg_sys::TupleDescAttr(shape, index as i32);
        #[cfg(before_pg18)]
        return (*shape).attrs.as_ptr().add(index);
    }
}
