//! Functions of ours that pgrx and Rust's library call in place of PostgreSQL's and the C library's, see `memory.rs`.
//! The linker redirects the calls, see `build.rs`.

use super::error_copy;
use super::memory::{ROOM_BYTES, has_room};
use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C-unwind" {
    fn __real_CopyErrorData() -> *mut pg_sys::ErrorData;
    fn __real_errstart(level: c_int, domain: *const c_char) -> bool;
}

/// Copies the error that was just caught. It raises no error, since pgrx could not handle one here.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_CopyErrorData() -> *mut pg_sys::ErrorData {
    // SAFETY: called as PostgreSQL's own function is. pgrx raises the error again or flushes it afterwards, and so does
    // `taken.rs`.
    unsafe { error_copy::copied(|| __real_CopyErrorData()) }
}

/// Frees a copy that the function above has made.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_FreeErrorData(error: *mut pg_sys::ErrorData) {
    // SAFETY: all copies of errors in this library are made by the function above.
    unsafe { error_copy::free(error) }
}

/// Is asked to register a destructor of a thread-local variable of Rust's, and does nothing. The C library would end
/// the process if it found no memory for that. The only thread here ends with the process, and what the variables hold
/// (plans, for example) must not be touched so late.
#[unsafe(no_mangle)]
extern "C" fn __wrap___cxa_thread_atexit_impl(_: *mut c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    0
}

/// Begins to raise an error. pgrx then allocates the texts of the error in the current memory context, where there may
/// be no room. So an error switches to ErrorContext, where PostgreSQL keeps some room.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_errstart(level: c_int, domain: *const c_char) -> bool {
    // SAFETY: called as PostgreSQL's own function is. An error does not return to the code that relies on its own
    // memory context.
    unsafe {
        let wanted = __real_errstart(level, domain);
        if wanted && level >= pgrx::PgLogLevel::ERROR as c_int {
            has_room(ROOM_BYTES);
            pg_sys::MemoryContextSwitchTo(pg_sys::ErrorContext);
        }
        wanted
    }
}
