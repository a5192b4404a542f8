//! A setting that is a text and is checked.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::{pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

/// What is wrong with a value; `None`: nothing.
type Fault = fn(&[u8]) -> Option<String>;

/// How a value is checked, and the HINT for one that is refused.
static CHECK: OnceLock<(Fault, &CStr)> = OnceLock::new();

/// Defines a setting that only the server's configuration can set, so that all processes have the same value: of
/// [`GucContext::Postmaster`] or [`GucContext::Sighup`]. A value that is not empty must pass `fault`, which gives the
/// DETAIL for one that is refused. There is one such setting.
///
/// Tells whether a value was there before, perhaps an empty one, and the setting has none now. Where the library is not
/// preloaded, a connection can set what is no setting yet. PostgreSQL refuses that now, but it has forgotten what the
/// configuration says: [`read_configuration`].
pub fn define_checked_guc(
    name: &'static CStr,
    descriptions: [&'static CStr; 2],
    setting: &'static GucSetting<Option<CString>>,
    context: GucContext,
    fault: Fault,
    hint: &'static CStr,
) -> bool {
    let was_there = name.to_str().is_ok_and(|name| super::server::setting(name).is_some());
    let is_first = CHECK.set((fault, hint)).is_ok();
    debug_assert!(is_first, "there is one such setting");
    let [short, long] = descriptions;
    let flags = GucFlags::default();
    // SAFETY: the hook is guarded.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(name, short, long, setting, context, flags, Some(check), None, None);
    }
    was_there && setting.get().is_none_or(|value| value.is_empty())
}

/// Reads the server's configuration files, as a backend does when it is told that they have changed.
pub fn read_configuration() {
    // SAFETY: called in a backend. Errors in the files are logged and not raised.
    unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) }
}

#[pg_guard]
unsafe extern "C-unwind" fn check(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: PostgreSQL passes a place with the value, which is null or a terminated string.
    let value = unsafe { if (*value).is_null() { c"" } else { CStr::from_ptr(*value) } };
    let Some((fault, hint)) = CHECK.get() else { return true };
    let Some(detail) = Some(value.to_bytes()).filter(|value| !value.is_empty()).and_then(fault) else { return true };
    let detail = CString::new(detail).unwrap_or_default();
    // SAFETY: PostgreSQL reports the texts when the hook returns, and resets that memory afterwards.
    unsafe {
        pg_sys::GUC_check_errdetail_string = pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, detail.as_ptr());
        pg_sys::GUC_check_errhint_string = pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, hint.as_ptr());
    }
    false
}
