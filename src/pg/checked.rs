//! The setting with the name of this server, which is checked.

use super::shared::is_preloading;
use crate::domain::node;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use pgrx::{pg_guard, pg_sys};
use std::ffi::{CStr, CString, c_char, c_void};

/// Defines the setting, with two descriptions. Only the server's configuration can set it, so that all processes have the same
/// value: the context is [`GucContext::Postmaster`] or [`GucContext::Sighup`]. A value that is not empty has to be the name of a
/// node.
///
/// Where the library is not preloaded, a connection can set what is no setting yet. PostgreSQL refuses that now, but it has
/// forgotten what the configuration says. So where a value was there before, perhaps an empty one, and the setting has none
/// now, the configuration is read anew, as a backend does when it is told that it has changed.
pub fn define_node_guc(
    [name, short, long]: [&'static CStr; 3],
    setting: &'static GucSetting<Option<CString>>,
    context: GucContext,
) {
    let was_there = name.to_str().is_ok_and(|name| super::server::setting(name).is_some());
    let flags = GucFlags::default();
    // SAFETY: the hook is guarded.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(name, short, long, setting, context, flags, Some(check), None, None);
    }
    if was_there && setting.get().is_none_or(|value| value.is_empty()) && !is_preloading() {
        // SAFETY: called in a backend. Errors in the files are logged and not raised.
        unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn check(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: PostgreSQL passes a place with the value, which is null or a terminated string.
    let value = unsafe { if (*value).is_null() { c"" } else { CStr::from_ptr(*value) } };
    let Some(detail) = Some(value.to_bytes()).filter(|value| !value.is_empty()).and_then(node::fault) else {
        return true;
    };
    let detail = CString::new(detail).unwrap_or_default();
    // SAFETY: PostgreSQL reports the texts when the hook returns, and resets that memory afterwards.
    unsafe {
        pg_sys::GUC_check_errdetail_string = pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, detail.as_ptr());
        pg_sys::GUC_check_errhint_string = pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, node::FORM.as_ptr());
    }
    false
}
