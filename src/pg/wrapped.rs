//! The functions that calls of pgrx and of Rust's library come to instead of PostgreSQL's and the C library's own,
//! see `memory.rs` and `build.rs`.

use super::memory::{COPIES, ROOM_BYTES, SPARE, has_room};
use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C-unwind" {
    fn __real_CopyErrorData() -> *mut pg_sys::ErrorData;
    fn __real_errstart(level: c_int, domain: *const c_char) -> bool;
}

/// Copies the error that was just caught. Raises none: pgrx could not handle it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_CopyErrorData() -> *mut pg_sys::ErrorData {
    // SAFETY: called as PostgreSQL's own is. The texts of the error are in ErrorContext, so the copy takes
    // no more than that has, but for rounding.
    unsafe {
        let texts = pg_sys::MemoryContextMemAllocated(pg_sys::ErrorContext, true);
        if !has_room(2 * texts + ROOM_BYTES) {
            let spare = SPARE.replace(std::ptr::null_mut());
            if !spare.is_null() {
                return spare;
            }
        }
        let callers = pg_sys::MemoryContextSwitchTo(COPIES.get());
        let copy = __real_CopyErrorData();
        pg_sys::MemoryContextSwitchTo(callers);
        copy
    }
}

/// Registers what is to be done with a variable of Rust's when its thread ends, for which the C library
/// would end the process where it finds no memory. The only thread here ends with the process, and what
/// the variables hold, plans say, must not be touched so late.
#[unsafe(no_mangle)]
extern "C" fn __wrap___cxa_thread_atexit_impl(_: *mut c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    0
}

/// Begins to raise an error. pgrx then allocates its texts in the current context, where there may be no
/// room; PostgreSQL keeps some in ErrorContext.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_errstart(level: c_int, domain: *const c_char) -> bool {
    // SAFETY: called as PostgreSQL's own is. An error does not return to where the context was another.
    unsafe {
        let wanted = __real_errstart(level, domain);
        if wanted && level >= pgrx::PgLogLevel::ERROR as c_int {
            has_room(ROOM_BYTES);
            pg_sys::MemoryContextSwitchTo(pg_sys::ErrorContext);
        }
        wanted
    }
}
