//! A background worker's process: its signals and its settings.

use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

/// What SIGTERM does.
pub enum OnTerminate {
    /// Ends the process at the next safe point, also within a statement.
    Die,
    /// Notes it, for a loop to look at.
    Note,
}

unsafe extern "C-unwind" {
    // Declared here because a signal handler must be the function itself, not pgrx's wrapper of it.
    fn die(signal: c_int);
    fn SignalHandlerForShutdownRequest(signal: c_int);
    fn SignalHandlerForConfigReload(signal: c_int);
}

/// Installs the signal handlers and lets signals in.
pub fn let_signals_in(on_terminate: OnTerminate) {
    let terminate: unsafe extern "C-unwind" fn(c_int) = match on_terminate {
        OnTerminate::Die => die,
        OnTerminate::Note => SignalHandlerForShutdownRequest,
    };
    handle(pg_sys::SIGTERM as c_int, terminate);
    handle(pg_sys::SIGHUP as c_int, SignalHandlerForConfigReload);
    // SAFETY: the handlers are in place.
    unsafe { pg_sys::BackgroundWorkerUnblockSignals() }
}

fn handle(signal: c_int, handler: unsafe extern "C-unwind" fn(c_int)) {
    // SAFETY: the server's own handlers, for signals of a background worker.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(signal, Some(handler));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal, Some(handler));
    }
}

/// Gives a setting a value for the rest of the process, whatever database and role say.
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

/// Has the server plan each statement of this process for one process, and never time its transactions out.
pub fn plan_alone_without_timeout() {
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    set_for_process(c"transaction_timeout", c"0");
    #[cfg(feature = "pg15")]
    set_for_process(c"force_parallel_mode", c"off");
    #[cfg(not(feature = "pg15"))]
    set_for_process(c"debug_parallel_query", c"off");
}
