//! Functions of ours that pgrx and Rust's library call in place of PostgreSQL's and the C library's, see `memory.rs`.
//! The linker redirects the calls, see `build.rs`.

use super::memory::{COPIES, ROOM_BYTES, SPARE, has_room};
use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C-unwind" {
    fn __real_CopyErrorData() -> *mut pg_sys::ErrorData;
    fn __real_errstart(level: c_int, domain: *const c_char) -> bool;
}

/// Copies the error that was just caught. It must raise no error, since pgrx could not handle one here.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_CopyErrorData() -> *mut pg_sys::ErrorData {
    // SAFETY: called as PostgreSQL's own function is. The texts of the error are in ErrorContext, so the copy takes no
    // more memory than that context has, apart from rounding.
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
