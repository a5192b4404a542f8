//! The server: its clock, its state and its limits.

use super::backend::statuses;
use super::raw::{harmless, text_of};
use pgrx::{FromDatum, pg_sys};
use std::ffi::CStr;

/// The present time by the wall clock, in microseconds since 2000-01-01 UTC.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    unsafe { harmless::GetCurrentTimestamp() }
}

/// A moment in microseconds since 2000-01-01 UTC, as SQL shows it.
pub fn describe_moment(us: i64) -> String {
    // SAFETY: the function takes a timestamptz and gives a terminated string.
    unsafe { text_of(pg_sys::timestamptz_to_str(us)) }.unwrap_or_default()
}

/// A moment for programs: in the form of ISO 8601, with the time zone of the session.
pub fn iso_moment(us: i64) -> String {
    // SAFETY: makes a buffer of its own for the text of a timestamptz, which is terminated.
    unsafe {
        let text =
            pg_sys::JsonEncodeDateTime(std::ptr::null_mut(), us.into(), pg_sys::TIMESTAMPTZOID, std::ptr::null());
        text_of(text).unwrap_or_default()
    }
}

/// The version of our extension in this database; `None` if the database does not have the extension.
pub fn extension_version() -> Option<String> {
    // SAFETY: a row begins with its fixed-width columns, which the struct describes. The version is a text, which is copied.
    let version = |row: pg_sys::HeapTuple, shape| unsafe {
        let extension: *const pg_sys::FormData_pg_extension = pg_sys::GETSTRUCT(row).cast();
        let is_ours = CStr::from_ptr((*extension).extname.data.as_ptr()) == c"idempotence";
        let mut null = false;
        let version = pg_sys::heap_getattr(row, pg_sys::Anum_pg_extension_extversion as i32, shape, &mut null);
        is_ours.then(|| String::from_datum(version, null).unwrap_or_default())
    };
    catalog_rows(pg_sys::ExtensionRelationId, version).pop()
}

/// What `read` makes of the rows of a system catalog, each with its shape; without those for which it gives nothing.
pub fn catalog_rows<T>(
    catalog: pg_sys::Oid,
    read: impl Fn(pg_sys::HeapTuple, pg_sys::TupleDesc) -> Option<T>,
) -> Vec<T> {
    let (no_snapshot, no_keys) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the catalog is open and locked during the scan. A row stays in memory while the scan stands on it.
    unsafe {
        let table = pg_sys::table_open(catalog, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::systable_beginscan(table, pg_sys::InvalidOid, false, no_snapshot, 0, no_keys);
        let next = || Some(pg_sys::systable_getnext(scan)).filter(|row| !row.is_null());
        let rows = std::iter::from_fn(next).filter_map(|row| read(row, (*table).rd_att)).collect();
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as i32);
        rows
    }
}

/// The database that this backend is connected to.
pub fn current_database() -> pg_sys::Oid {
    // SAFETY: a variable of the backend, set when it connected.
    unsafe { pg_sys::MyDatabaseId }
}

/// The name of that database.
pub fn current_database_name() -> String {
    // SAFETY: called in a transaction; gives null or a terminated string.
    unsafe { text_of(pg_sys::get_database_name(pg_sys::MyDatabaseId)) }.unwrap_or_default()
}

/// The identifier that PostgreSQL made for the data of this server with initdb. A standby has that of its primary, and a
/// physical copy has that of its original. pg_upgrade, pg_createsubscriber and pg_resetwal make another one.
pub fn system_identifier() -> u64 {
    // SAFETY: the control file was read when the server started.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// Whether this server is a standby, or still recovers from a crash.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared state.
    unsafe { harmless::RecoveryInProgress() }
}

/// Whether the cluster was shut down in good order, as its control file says. Called in the postmaster, while no other
/// process lives that could write the file.
pub fn was_shut_down() -> bool {
    use pg_sys::DBState::{DB_SHUTDOWNED, DB_SHUTDOWNED_IN_RECOVERY};
    // The server's own function for this raises an error if it cannot read the file, which would end the postmaster.
    let from = std::mem::offset_of!(pg_sys::ControlFileData, state);
    let state = std::fs::read("global/pg_control").ok().and_then(|file| file.get(from..)?.first_chunk().copied());
    let state = state.map(pg_sys::DBState::Type::from_ne_bytes);
    state.is_some_and(|state| [DB_SHUTDOWNED, DB_SHUTDOWNED_IN_RECOVERY].contains(&state))
}

/// When this server last began to accept writes: after a start, a crash or a promotion. The server starts the
/// walwriter just then, so this is when the walwriter was started. `None` while there is no walwriter: on a standby, in
/// the first moments after a start, and in single-user mode.
pub fn up_since() -> Option<i64> {
    let walwriter = statuses().find(|status| status.st_backendType == pg_sys::BackendType::B_WAL_WRITER);
    walwriter.map(|status| status.st_proc_start_timestamp)
}

/// The version of the running server. Its minor version may differ from the one that this library was built for.
pub fn server_version() -> i32 {
    static VERSION: std::sync::OnceLock<i32> = std::sync::OnceLock::new();
    *VERSION.get_or_init(|| {
        let version = setting("server_version_num").and_then(|version| version.parse().ok());
        version.unwrap_or(pg_sys::PG_VERSION_NUM as i32)
    })
}

/// The most backends that this server can have.
pub fn max_backends() -> i64 {
    // SAFETY: a variable of the server, set when it started.
    unsafe { pg_sys::MaxBackends }.into()
}

/// The most prepared transactions that this server can have.
pub fn max_prepared() -> usize {
    unsafe extern "C" {
        static max_prepared_xacts: std::ffi::c_int;
    }
    // SAFETY: a variable of the server, set when it started.
    unsafe { max_prepared_xacts }.unsigned_abs() as usize
}

/// How long a wait for a lock lasts before PostgreSQL looks for a deadlock.
pub fn deadlock_timeout_us() -> i64 {
    // SAFETY: a setting.
    i64::from(unsafe { pg_sys::DeadlockTimeout }) * 1_000
}

/// The number of locks that the server's lock table is made for, for all transactions together. From PostgreSQL 19 on
/// it holds no more than these. Before, it holds more as long as nothing else needs that part of the shared memory.
pub fn lock_table_size() -> usize {
    // SAFETY: variables of the server, set when it started.
    let (each, backends) = unsafe { (pg_sys::max_locks_per_xact, pg_sys::MaxBackends) };
    each.unsigned_abs() as usize * (backends.unsigned_abs() as usize + max_prepared())
}

/// The value of a setting in its base unit, without the unit; `None` if there is no such setting.
pub fn setting(name: &str) -> Option<String> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the name is terminated. The value is null or a terminated string, which is copied at once.
    unsafe { text_of(pg_sys::GetConfigOption(name.as_ptr(), true, false)) }
}

/// What a text means as the value of a setting of time, in milliseconds; `None` if it means nothing.
pub fn milliseconds(text: &str) -> Option<i32> {
    let text = std::ffi::CString::new(text).ok()?;
    let mut ms = 0;
    // SAFETY: the text is terminated; no hint is asked for.
    let is_valid =
        unsafe { pg_sys::parse_int(text.as_ptr(), &mut ms, pg_sys::GUC_UNIT_MS as i32, std::ptr::null_mut()) };
    is_valid.then_some(ms)
}

/// A clock that nobody sets, and that goes on while the machine is suspended, in microseconds.
pub fn steady_us() -> i64 {
    #[cfg(target_os = "linux")]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    // SAFETY: zeros are a valid time, which the call fills in.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(CLOCK, &mut now);
        now
    };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// The bytes that are free for this server in the tablespace of a relation; `None` if the system does not tell.
pub fn free_bytes(relation: pg_sys::Oid) -> Option<i64> {
    // SAFETY: reads the catalog and a variable of the backend. The path is a terminated string in the current memory
    // context. Zeros are a valid answer, which the call fills in.
    unsafe {
        let tablespace = match pg_sys::get_rel_tablespace(relation) {
            pg_sys::InvalidOid => pg_sys::MyDatabaseTableSpace,
            tablespace => tablespace,
        };
        let path = pg_sys::GetDatabasePath(pg_sys::MyDatabaseId, tablespace);
        let mut told: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(path, &mut told) != 0 {
            return None;
        }
        // The types of the fields differ between systems.
        i64::try_from(told.f_bavail as u128 * told.f_frsize as u128).ok()
    }
}

/// Reserves the prefix of our settings, so that a misspelt setting is an error.
pub fn reserve_guc_prefix(prefix: &'static CStr) {
    // SAFETY: the string is static.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) }
}
