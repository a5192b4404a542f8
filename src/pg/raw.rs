//! Functions of the server without a guard each, and one guard around several of them.
//!
//! An error of the server leaves its frames by longjmp, which runs no destructors. So pgrx puts a guard around each
//! function that it offers: the guard catches the error and turns it into a panic. That costs about a hundred
//! instructions a call, as much as some of the functions themselves take. The functions here are for the paths that every
//! request takes, where a guard encloses all calls of one step.

use pgrx::pg_sys::{self, Datum, LOCKMODE, Oid, Relation};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Runs `work` under one guard.
///
/// # Safety
///
/// No frame inside `work` may have anything to drop while it calls one of the functions below, and nothing in `work` may
/// panic. So `work` calls none of pgrx's functions, which panic on an error.
pub unsafe fn guarded<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller warrants. A backend has one thread.
    unsafe { pg_sys::submodules::ffi::pg_guard_ffi_boundary(work) }
}

/// A copy of a text of the server's; `None` where that is null.
///
/// # Safety
///
/// The pointer is null or that of a terminated string.
pub unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: as the caller warrants.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

// SAFETY: as PostgreSQL declares them, in all supported versions.
#[allow(missing_docs, reason = "PostgreSQL documents them")]
unsafe extern "C-unwind" {
    pub fn LockRelationOid(relation: Oid, mode: LOCKMODE);
    pub fn ConditionalLockRelationOid(relation: Oid, mode: LOCKMODE) -> bool;
    pub fn try_table_open(relation: Oid, mode: LOCKMODE) -> Relation;
    pub fn index_open(index: Oid, mode: LOCKMODE) -> Relation;
    pub fn index_close(index: Relation, mode: LOCKMODE);

    pub fn GetLatestSnapshot() -> pg_sys::Snapshot;
    pub fn RegisterSnapshot(snapshot: pg_sys::Snapshot) -> pg_sys::Snapshot;
    pub fn UnregisterSnapshot(snapshot: pg_sys::Snapshot);
    pub fn systable_beginscan(
        table: Relation,
        index: Oid,
        use_index: bool,
        snapshot: pg_sys::Snapshot,
        count: c_int,
        keys: pg_sys::ScanKey,
    ) -> pg_sys::SysScanDesc;
    pub fn systable_getnext(scan: pg_sys::SysScanDesc) -> pg_sys::HeapTuple;
    pub fn systable_endscan(scan: pg_sys::SysScanDesc);
    pub fn index_rescan(
        scan: pg_sys::IndexScanDesc,
        keys: pg_sys::ScanKey,
        count: c_int,
        order: pg_sys::ScanKey,
        order_count: c_int,
    );
    pub fn index_getnext_tid(
        scan: pg_sys::IndexScanDesc,
        direction: pg_sys::ScanDirection::Type,
    ) -> pg_sys::ItemPointer;
    pub fn index_fetch_heap(scan: pg_sys::IndexScanDesc, slot: *mut pg_sys::TupleTableSlot) -> bool;
    pub fn index_endscan(scan: pg_sys::IndexScanDesc);
    pub fn table_slot_create(table: Relation, list: *mut *mut pg_sys::List) -> *mut pg_sys::TupleTableSlot;
    pub fn ExecDropSingleTupleTableSlot(slot: *mut pg_sys::TupleTableSlot);
    pub fn heap_fetch(
        table: Relation,
        snapshot: pg_sys::Snapshot,
        tuple: pg_sys::HeapTuple,
        buffer: *mut pg_sys::Buffer,
        keep: bool,
    ) -> bool;

    pub fn heap_form_tuple(shape: pg_sys::TupleDesc, values: *mut Datum, nulls: *mut bool) -> pg_sys::HeapTuple;
    pub fn heap_freetuple(tuple: pg_sys::HeapTuple);
    pub fn simple_heap_insert(table: Relation, tuple: pg_sys::HeapTuple);
    pub fn index_insert(
        index: Relation,
        values: *mut Datum,
        nulls: *mut bool,
        place: pg_sys::ItemPointer,
        table: Relation,
        check: pg_sys::IndexUniqueCheck::Type,
        unchanged: bool,
        info: *mut pg_sys::IndexInfo,
    ) -> bool;
    pub fn CatalogTupleInsert(table: Relation, tuple: pg_sys::HeapTuple);
    pub fn CommandCounterIncrement();

    pub fn AcceptInvalidationMessages();

    pub fn GetUserNameFromId(role: Oid, missing_ok: bool) -> *mut c_char;
    pub fn cstring_to_text(text: *const c_char) -> *mut pg_sys::text;

    pub fn lookup_rowtype_tupdesc(row_type: Oid, modifier: i32) -> pg_sys::TupleDesc;
    pub fn DecrTupleDescRefCount(shape: pg_sys::TupleDesc);
    pub fn HeapTupleHeaderGetDatum(row: pg_sys::HeapTupleHeader) -> Datum;
    pub fn pfree(memory: *mut c_void);
    pub fn pg_detoast_datum(datum: *mut pg_sys::varlena) -> *mut pg_sys::varlena;
    pub fn JsonbIteratorInit(container: *mut pg_sys::JsonbContainer) -> *mut pg_sys::JsonbIterator;
    pub fn JsonbIteratorNext(
        iterator: *mut *mut pg_sys::JsonbIterator,
        value: *mut pg_sys::JsonbValue,
        skip_nested: bool,
    ) -> pg_sys::JsonbIteratorToken::Type;
    pub fn DirectFunctionCall1Coll(function: pg_sys::PGFunction, collation: Oid, argument: Datum) -> Datum;
    pub fn numeric_send(call: pg_sys::FunctionCallInfo) -> Datum;
}

/// Begins a scan of an index, whose keys `index_rescan` sets.
///
/// # Safety
///
/// As PostgreSQL documents it, within a guard.
pub unsafe fn index_beginscan(
    table: Relation,
    index: Relation,
    snapshot: pg_sys::Snapshot,
    count: c_int,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as the caller warrants, and as PostgreSQL declares the function.
    unsafe {
        #[cfg(before_pg18)]
        return index_beginscan_of(table, index, snapshot, count, 0);
        #[cfg(all(not(before_pg18), before_pg19))]
        return index_beginscan_of(table, index, snapshot, std::ptr::null_mut(), count, 0);
        #[cfg(not(before_pg19))]
        return index_beginscan_of(table, index, snapshot, std::ptr::null_mut(), count, 0, 0);
    }
}

// SAFETY: as PostgreSQL declares it, which differs between versions.
unsafe extern "C-unwind" {
    #[link_name = "index_beginscan"]
    fn index_beginscan_of(
        table: Relation,
        index: Relation,
        snapshot: pg_sys::Snapshot,
        #[cfg(not(before_pg18))] instrument: *mut pg_sys::IndexScanInstrumentation,
        count: c_int,
        order_count: c_int,
        #[cfg(not(before_pg19))] flags: u32,
    ) -> pg_sys::IndexScanDesc;
}

/// Functions that raise no error, and so need no guard at all.
pub mod harmless {
    use pgrx::pg_sys::{self, Datum, Oid, TransactionId};
    use std::ffi::{c_char, c_int};

    // SAFETY: as PostgreSQL declares them, in all supported versions.
    #[allow(missing_docs, reason = "PostgreSQL documents them")]
    unsafe extern "C-unwind" {
        pub fn GetUserId() -> Oid;
        pub fn GetCurrentTimestamp() -> pg_sys::TimestampTz;
        pub fn GetCurrentTransactionNestLevel() -> c_int;
        pub fn GetTopTransactionIdIfAny() -> TransactionId;
        pub fn IsInParallelMode() -> bool;
        pub fn RecoveryInProgress() -> bool;
        pub fn TransactionIdIsCurrentTransactionId(transaction: TransactionId) -> bool;
        pub fn get_fn_expr_rettype(function: *mut pg_sys::FmgrInfo) -> Oid;
        /// As long as the function is one of the server's own.
        pub fn ScanKeyInit(
            key: pg_sys::ScanKey,
            column: pg_sys::AttrNumber,
            strategy: pg_sys::StrategyNumber,
            function: pg_sys::RegProcedure,
            argument: Datum,
        );
        /// As long as the lock is held.
        pub fn UnlockRelationOid(relation: Oid, mode: pg_sys::LOCKMODE);
        /// As long as the table was opened by the present resource owner, and is locked in that mode.
        pub fn table_close(table: pg_sys::Relation, mode: pg_sys::LOCKMODE);
        pub fn SetTuplestoreDestReceiverParams(
            receiver: *mut pg_sys::DestReceiver,
            store: *mut pg_sys::Tuplestorestate,
            context: pg_sys::MemoryContext,
            detoast: bool,
            shape: pg_sys::TupleDesc,
            message: *const c_char,
        );
        /// As long as the row is that of a table, as `is_row_of_table` tells, and no column was added to the table with
        /// a default that is passed by reference.
        pub fn heap_deform_tuple(
            tuple: pg_sys::HeapTuple,
            shape: pg_sys::TupleDesc,
            values: *mut Datum,
            nulls: *mut bool,
        );
    }
}
