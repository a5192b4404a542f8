//! What we need of PostgreSQL that pgrx does not offer in a safe form: the state of server, transaction
//! and caller here, and in the modules below types at the SQL boundary and bounded lock waits. All that
//! differs between server versions is in these files.

use pgrx::{Spi, pg_sys, spi};
use std::ffi::CStr;

mod durable;
mod jsonb;
mod keys;
mod memory;
mod values;
mod wait;

pub use durable::*;
pub use jsonb::*;
pub use keys::*;
pub use memory::{arena_is_in_use, begin_call, check_memory, init as init_memory, make_sure_of, refill};
pub use values::*;
pub use wait::*;

/// The wall clock.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// The version of our extension in this database; `None` where it is not there.
pub fn extension_version() -> Option<String> {
    const COLUMNS: usize = pg_sys::Natts_pg_extension as usize;
    let mut values = [pg_sys::Datum::null(); COLUMNS];
    let mut nulls = [true; COLUMNS];
    // SAFETY: the catalog is open and locked during the scan, whose key is of the type of its column; the
    // arrays have as many elements as the catalog has columns; the text is copied while the row is there.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as i32);
        let mut key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyInit(
            &mut key,
            pg_sys::Anum_pg_extension_extname as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::F_NAMEEQ.into(),
            c"idempotence".as_ptr().into(),
        );
        let index = pg_sys::ExtensionNameIndexId.into();
        let scan = pg_sys::systable_beginscan(catalog, index, true, std::ptr::null_mut(), 1, &mut key);
        let row = pg_sys::systable_getnext(scan);
        let version = (!row.is_null()).then(|| {
            pg_sys::heap_deform_tuple(row, (*catalog).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            let column = pg_sys::Anum_pg_extension_extversion as usize - 1;
            <String as pgrx::FromDatum>::from_datum(values[column], nulls[column]).unwrap_or_default()
        });
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as i32);
        version
    }
}

/// Executes a command in an extension's script as if the script had ended: what is granted in a script
/// counts as what the extension itself grants, which no dump saves.
pub fn outside_of_script(command: &str) -> Result<(), spi::Error> {
    /// Puts the state back, also when an error unwinds.
    struct Script(bool);
    impl Drop for Script {
        fn drop(&mut self) {
            // SAFETY: sets a variable of the backend to what it was.
            unsafe { pg_sys::creating_extension = self.0 }
        }
    }

    // SAFETY: a variable of the backend; ALTER EXTENSION sets it, and resets it however it ends.
    let _script = Script(unsafe { pg_sys::creating_extension });
    // SAFETY: as above.
    unsafe { pg_sys::creating_extension = false };
    Spi::run(command)
}

/// The role whose rights count: inside SECURITY DEFINER, the definer.
pub fn current_role() -> pg_sys::Oid {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::GetUserId() }
}

/// Whether the current role has the privileges of `owner`. Of a role that is gone only superusers do.
pub fn has_privileges_of(owner: pg_sys::Oid) -> bool {
    // SAFETY: looks the roles up in the system caches.
    unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), owner) }
}

/// A role's name; `None` where it is gone.
pub fn role_name(role: pg_sys::Oid) -> Option<String> {
    // SAFETY: gives a string in the current memory context, or null.
    let name = unsafe { pg_sys::GetUserNameFromId(role, true) };
    // SAFETY: not null, and terminated.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// The database that this backend is connected to.
pub fn current_database() -> pg_sys::Oid {
    // SAFETY: a variable of the backend, set when it connected.
    unsafe { pg_sys::MyDatabaseId }
}

/// Its name.
pub fn current_database_name() -> String {
    // SAFETY: in a transaction; gives a string in the current memory context, or null.
    let name = unsafe { pg_sys::get_database_name(pg_sys::MyDatabaseId) };
    // SAFETY: not null, and terminated.
    if name.is_null() { String::new() } else { unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned() }
}

/// Whether this server is a standby (or still recovering).
pub fn in_recovery() -> bool {
    // SAFETY: reads shared state.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// When this server last began to take writes: after a start, a crash or a promotion, each of which
/// empties unlogged tables. The walwriter is the process that is started just then. `None` where there is
/// none, as in single-user mode.
pub fn up_since() -> Option<i64> {
    // SAFETY: numbers from 1 to the count given are valid, and the entries are local copies.
    unsafe {
        (1..=pg_sys::pgstat_fetch_stat_numbackends()).find_map(|number| {
            #[cfg(feature = "pg15")]
            let entry = pg_sys::pgstat_fetch_stat_local_beentry(number);
            #[cfg(not(feature = "pg15"))]
            let entry = pg_sys::pgstat_get_local_beentry_by_index(number);
            if entry.is_null() {
                return None;
            }
            let status = &(*entry).backendStatus;
            (status.st_backendType == pg_sys::BackendType::B_WAL_WRITER).then_some(status.st_proc_start_timestamp)
        })
    }
}

/// The version of the running server, which may be another minor one than this library was built for.
fn server_version() -> i32 {
    static VERSION: std::sync::OnceLock<i32> = std::sync::OnceLock::new();
    *VERSION.get_or_init(|| {
        // SAFETY: every server has this setting, a number.
        let setting = unsafe { CStr::from_ptr(pg_sys::GetConfigOption(c"server_version_num".as_ptr(), false, false)) };
        setting.to_str().ok().and_then(|version| version.parse().ok()).unwrap_or(pg_sys::PG_VERSION_NUM as i32)
    })
}

/// The most backends that this server can have.
pub fn max_backends() -> i64 {
    // SAFETY: a variable of the server, set when it started.
    unsafe { pg_sys::MaxBackends }.into()
}

/// How many locks all transactions together can hold: the table has room for these, and for some more as
/// long as nothing else of the server's memory needs it.
pub fn lock_table_size() -> usize {
    unsafe extern "C" {
        static max_prepared_xacts: std::ffi::c_int;
    }
    // SAFETY: variables of the server, set when it started.
    let (each, backends, prepared) = unsafe { (pg_sys::max_locks_per_xact, pg_sys::MaxBackends, max_prepared_xacts) };
    each.unsigned_abs() as usize * (backends.unsigned_abs() as usize + prepared.unsigned_abs() as usize)
}

/// Whether nothing may be written here. Direct table access has no other check of it.
pub fn read_only() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactReadOnly || pg_sys::RecoveryInProgress() }
}

/// Whether the transaction keeps to one snapshot (REPEATABLE READ and SERIALIZABLE).
pub fn keeps_snapshot() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// Whether the transaction's snapshot sees what `xmin` wrote and committed. Under READ COMMITTED the
/// next statement's will.
pub fn snapshot_sees(xmin: pg_sys::TransactionId) -> bool {
    if !keeps_snapshot() {
        return true;
    }
    // SAFETY: under these levels GetTransactionSnapshot() gives the transaction's one snapshot, which
    // exists: a statement is running.
    unsafe {
        pg_sys::TransactionIdIsCurrentTransactionId(xmin)
            || !pg_sys::XidInMVCCSnapshot(xmin, pg_sys::GetTransactionSnapshot())
    }
}

/// Has the commit of this transaction wait for its flush, whatever `synchronous_commit` says.
pub fn force_sync_commit() {
    // SAFETY: sets a flag that the end of the transaction clears.
    unsafe { pg_sys::ForceSyncCommit() }
}

/// Runs `work` with an active snapshot, which there is none of between the last statement and the commit:
/// whoever writes a table that can have out-of-line values must have one.
pub fn with_snapshot<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: in a transaction; popped once. On an error the abort drops it.
    unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = work();
        pg_sys::PopActiveSnapshot();
        result
    }
}

/// Reserves the prefix of our settings, so that a misspelt one is an error.
pub fn reserve_guc_prefix(prefix: &'static CStr) {
    // SAFETY: the string is static.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) }
}

/// Whether a command gives rows, found without running it.
///
/// Several statements give none. Of a SELECT the grammar tells. Anything else (with RETURNING, EXPLAIN, CALL with output arguments)
/// is analysed, which costs several times as much.
pub fn returns_rows(command: &str) -> bool {
    let command = std::ffi::CString::new(command).expect("a text value has no NUL");
    // SAFETY: the parser gives a list of RawStmt, whose node says by its tag which struct it is.
    unsafe {
        let parsed = pg_sys::raw_parser(command.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        if parsed.is_null() || (*parsed).length > 1 {
            // A later statement could not be analysed before an earlier one has run.
            return false;
        }
        let first: *mut pg_sys::RawStmt = pg_sys::list_nth(parsed, 0).cast();
        let statement = (*first).stmt;
        if (*statement).type_ == pg_sys::NodeTag::T_SelectStmt {
            return (*statement.cast::<pg_sys::SelectStmt>()).intoClause.is_null();
        }
    }
    analysis_gives_rows(&command)
}

fn analysis_gives_rows(command: &CStr) -> bool {
    let mut types = [pg_sys::JSONBOID];
    // SAFETY: SPI is connected for the time of the plan, which SPI_finish() frees; `types` has as many
    // elements as is said. An ERROR inside ends the connection by ending the (sub)transaction.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(command.as_ptr(), types.len() as i32, types.as_mut_ptr());
        let rows = !plan.is_null() && pg_sys::SPI_is_cursor_plan(plan);
        pg_sys::SPI_finish();
        rows
    }
}

/// The number of the file that a relation is in.
///
/// # Safety
///
/// The relation is open.
pub unsafe fn file_of(relation: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: as the caller warrants.
    unsafe {
        #[cfg(feature = "pg15")]
        return (*relation).rd_node.relNode;
        #[cfg(not(feature = "pg15"))]
        return (*relation).rd_locator.relNumber;
    }
}

/// Which indexes have to be told of a row's new version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NewEntries {
    /// None: it is a HOT update.
    None,
    /// Those that only sum up what a range of pages holds.
    Summaries,
    /// All.
    All,
}

/// Puts a row in another's place, without its index entries.
///
/// # Safety
///
/// As for `simple_heap_update()`.
pub unsafe fn heap_update(
    relation: pg_sys::Relation,
    at: &mut pg_sys::ItemPointerData,
    tuple: pg_sys::HeapTuple,
) -> NewEntries {
    // SAFETY: as the caller warrants.
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::simple_heap_update(relation, at, tuple);
        let is_hot = u32::from((*(*tuple).t_data).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE != 0;
        if is_hot { NewEntries::None } else { NewEntries::All }
    }
    // SAFETY: likewise.
    #[cfg(not(feature = "pg15"))]
    unsafe {
        let mut entries = pg_sys::TU_UpdateIndexes::TU_None;
        pg_sys::simple_heap_update(relation, at, tuple, &mut entries);
        match entries {
            pg_sys::TU_UpdateIndexes::TU_None => NewEntries::None,
            pg_sys::TU_UpdateIndexes::TU_Summarizing => NewEntries::Summaries,
            _ => NewEntries::All,
        }
    }
}

/// Whether an index only sums up what a range of pages holds.
///
/// # Safety
///
/// `info` is of an open index.
pub unsafe fn is_summarizing(info: *const pg_sys::IndexInfo) -> bool {
    #[cfg(feature = "pg15")]
    return {
        let _ = info;
        false
    };
    // SAFETY: as the caller warrants.
    #[cfg(not(feature = "pg15"))]
    return unsafe { (*info).ii_Summarizing };
}

/// Makes this transaction's commit wait for the disk here at most, not for standbys.
pub fn commit_locally() {
    // SAFETY: the strings are static; the setting goes back with the end of the transaction.
    unsafe {
        if pg_sys::synchronous_commit > pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"local".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// Runs `work` as the role `owner`, for statements on tables that nobody else has a privilege on.
pub fn as_role<T>(owner: pg_sys::Oid, work: impl FnOnce() -> T) -> T {
    /// Puts the caller back, also when an error unwinds.
    struct Caller(pg_sys::Oid, i32);
    impl Drop for Caller {
        fn drop(&mut self) {
            // SAFETY: sets two variables of the backend to what they were.
            unsafe { pg_sys::SetUserIdAndSecContext(self.0, self.1) }
        }
    }

    let mut caller = Caller(pg_sys::InvalidOid, 0);
    // SAFETY: reads and sets two variables of the backend.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut caller.0, &mut caller.1);
        pg_sys::SetUserIdAndSecContext(owner, caller.1 | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
    }
    work()
}

/// Whether the current role may execute the repair functions: that is what makes an admin.
pub fn is_admin() -> bool {
    let query = "SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))
        FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
         AND d.refobjid OPERATOR(pg_catalog.=) e.oid AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
        JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
        WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND p.proname OPERATOR(pg_catalog.=) 'idem_forget'";
    Spi::connect(|client| client.select(query, Some(1), &[]).and_then(|rows| rows.first().get_one::<bool>()))
        .ok()
        .flatten()
        .unwrap_or(false)
}

/// The description of a column, counted from 0.
///
/// # Safety
/// `shape` must be valid and have more than `index` columns.
pub unsafe fn tuple_attribute(shape: pg_sys::TupleDesc, index: usize) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: as the caller says.
    unsafe {
        #[cfg(feature = "pg18")]
        return pg_sys::TupleDescAttr(shape, index as i32);
        #[cfg(not(feature = "pg18"))]
        return (*shape).attrs.as_ptr().add(index);
    }
}
