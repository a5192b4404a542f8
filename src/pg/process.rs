//! The process of a background worker: its signals and its settings.

use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

unsafe extern "C-unwind" {
    // Declared here because a signal handler must be the server's function itself, not pgrx's wrapper.
    /// Ends the process at the next safe point, even within a statement.
    pub fn die(signal: c_int);
    /// Sets a flag, which a main loop looks at.
    pub fn SignalHandlerForShutdownRequest(signal: c_int);
    fn SignalHandlerForConfigReload(signal: c_int);
}

/// A signal handler of the server's.
type Handler = unsafe extern "C-unwind" fn(c_int);

/// Installs the signal handlers, of which `terminate` is that of SIGTERM, and lets signals in.
pub fn let_signals_in(terminate: Handler) {
    for (signal, handler) in [(pg_sys::SIGTERM, terminate), (pg_sys::SIGHUP, SignalHandlerForConfigReload as Handler)] {
        // SAFETY: the handlers are the server's own, made for the signals of a background worker.
        unsafe {
            #[cfg(not(feature = "pg18"))]
            pg_sys::pqsignal(signal as c_int, Some(handler));
            #[cfg(feature = "pg18")]
            pg_sys::pqsignal_be(signal as c_int, Some(handler));
        }
    }
    // SAFETY: the handlers are in place.
    unsafe { pg_sys::BackgroundWorkerUnblockSignals() }
}

/// Sets a setting for the rest of the process, whatever is set for the database and the role.
pub fn set_for_process(name: &CStr, value: &CStr) {
    // SAFETY: the strings live as long as the call.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Makes the server run each statement of this process without parallel workers, and never time out a transaction.
pub fn plan_alone_without_timeout() {
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    set_for_process(c"transaction_timeout", c"0");
    #[cfg(feature = "pg15")]
    set_for_process(c"force_parallel_mode", c"off");
    #[cfg(not(feature = "pg15"))]
    set_for_process(c"debug_parallel_query", c"off");
}
