//! The process: the libraries that it has loaded and what they export; the signals and settings of a background worker.

use super::raw::text_of;
use pgrx::pg_sys;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;

// SAFETY: as PostgreSQL declares them. Declared here because a signal handler must be the server's function itself, not
// pgrx's wrapper.
unsafe extern "C-unwind" {
    /// Ends the process at the next safe point, even within a statement.
    pub fn die(signal: c_int, #[cfg(not(before_pg19))] info: *const pg_sys::pg_signal_info);
    /// Sets a flag that a main loop checks.
    pub fn SignalHandlerForShutdownRequest(signal: c_int, #[cfg(not(before_pg19))] info: *const pg_sys::pg_signal_info);
    fn SignalHandlerForConfigReload(signal: c_int, #[cfg(not(before_pg19))] info: *const pg_sys::pg_signal_info);
}

/// A signal handler of the server.
#[cfg(before_pg19)]
type Handler = unsafe extern "C-unwind" fn(c_int);
/// A signal handler of the server. PostgreSQL 19 also passes who sent the signal.
#[cfg(not(before_pg19))]
type Handler = unsafe extern "C-unwind" fn(c_int, *const pg_sys::pg_signal_info);

/// Installs the signal handlers, of which `terminate` is that of SIGTERM, and lets signals in.
pub fn let_signals_in(terminate: Handler) {
    for (signal, handler) in [(pg_sys::SIGTERM, terminate), (pg_sys::SIGHUP, SignalHandlerForConfigReload as Handler)] {
        // SAFETY: the handlers are the server's own, made for the signals of a background worker.
        unsafe {
            #[cfg(before_pg18)]
            pg_sys::pqsignal(signal as c_int, Some(handler));
            #[cfg(not(before_pg18))]
            pg_sys::pqsignal_be(signal as c_int, Some(handler));
        }
    }
    // SAFETY: the handlers are in place.
    unsafe { pg_sys::BackgroundWorkerUnblockSignals() }
}

/// Sets a setting for the rest of the process, whatever is set for the database and the role.
pub fn set_for_process(name: &CStr, value: &CStr) {
    let (superuser, overriding) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
    // SAFETY: the strings live as long as the call.
    unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), superuser, overriding) }
}

/// Makes the server run each statement of this process without parallel workers, and never time out a transaction.
pub fn plan_alone_without_timeout() {
    #[cfg(not(before_pg17))]
    set_for_process(c"transaction_timeout", c"0");
    #[cfg(before_pg16)]
    set_for_process(c"force_parallel_mode", c"off");
    #[cfg(not(before_pg16))]
    set_for_process(c"debug_parallel_query", c"off");
}

/// The address that a loaded library exports under this name. PostgreSQL loads extensions in such a way that their
/// names are found here.
pub fn exported(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is terminated.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// The name of the library that has this address, without directory and suffix.
pub fn library_of(address: NonNull<c_void>) -> Option<String> {
    // SAFETY: zeros are a valid answer, which the call fills in. The name in it is null or a terminated string, which is
    // copied while the library is loaded.
    let path = unsafe {
        let mut told: libc::Dl_info = std::mem::zeroed();
        let is_known = libc::dladdr(address.as_ptr(), &mut told) != 0;
        text_of(told.dli_fname).filter(|_| is_known)?
    };
    Path::new(&path).file_stem().map(|name| name.to_string_lossy().into_owned())
}

/// How many libraries this process has ever loaded; `None` if the system does not tell. This is much cheaper than
/// [`exported`], which looks into all of them.
#[cfg(target_os = "linux")]
pub fn libraries_loaded() -> Option<u64> {
    /// Takes the number down from the first library, and asks for no other.
    unsafe extern "C" fn take(library: *mut libc::dl_phdr_info, _size: usize, number: *mut c_void) -> libc::c_int {
        // SAFETY: the loader passes a valid description, and `number` is the variable below.
        unsafe { *number.cast::<Option<u64>>() = Some((*library).dlpi_adds) };
        1
    }
    let mut number: Option<u64> = None;
    // SAFETY: the callback takes what it is passed here.
    unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut number).cast()) };
    number
}

/// As above.
#[cfg(not(target_os = "linux"))]
pub fn libraries_loaded() -> Option<u64> {
    None
}
