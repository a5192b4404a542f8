//! Copies of caught errors. Each copy has a memory context of its own, and freeing the copy deletes the context.
//!
//! PostgreSQL's `CopyErrorData()` copies more texts than `FreeErrorData()` frees: the names of the file and the function,
//! the domain and the message id. In a context that lives as long as the backend, these would pile up with each error.
//!
//! `memory.rs` has pgrx and `taken.rs` use these functions in place of PostgreSQL's.

use super::attempt::attempt;
use pgrx::pg_sys;
use std::ffi::{c_char, c_int};

// SAFETY: declared as PostgreSQL declares them. They have no guard, see `attempt.rs`.
unsafe extern "C-unwind" {
    fn AllocSetContextCreateInternal(
        parent: pg_sys::MemoryContext,
        name: *const c_char,
        minimum: usize,
        initial: usize,
        maximum: usize,
    ) -> pg_sys::MemoryContext;
}

/// The error that is returned in place of a copy for which there is no memory. It is read only, so it can be returned any
/// number of times.
struct Spare(pg_sys::ErrorData);

// SAFETY: it is never written to, and its message is static.
unsafe impl Sync for Spare {}

static SPARE: Spare = Spare(pg_sys::ErrorData {
    elevel: pgrx::PgLogLevel::ERROR as c_int,
    sqlerrcode: pgrx::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int,
    message: c"out of memory".as_ptr().cast_mut(),
    // SAFETY: an ErrorData of zeros is one without texts.
    ..unsafe { std::mem::zeroed() }
});

fn is_spare(error: *const pg_sys::ErrorData) -> bool {
    std::ptr::eq(error, &raw const SPARE.0)
}

/// The error that stands in for a copy for which there is no memory.
pub(super) fn spare() -> *mut pg_sys::ErrorData {
    (&raw const SPARE.0).cast_mut()
}

/// The most memory that a copy of the error takes that was just caught. The texts of the error are in ErrorContext, so
/// the copy takes no more than that context has, apart from rounding.
#[cfg_attr(test, allow(dead_code, reason = "the linker redirects calls to it only in the library, see build.rs"))]
pub(super) fn bytes_needed() -> usize {
    // SAFETY: the context exists as long as the backend.
    2 * unsafe { pg_sys::MemoryContextMemAllocated(pg_sys::ErrorContext, true) }
}

/// Copies the error that was just caught. `copy_here` makes the copy in the current memory context. Raises no error, because
/// the callers could not handle another one.
///
/// # Safety
/// PostgreSQL is handling an error, which the caller raises again or flushes. The current memory context is valid.
/// `copy_here` has no frame that owns something that needs a destructor.
#[cfg_attr(test, allow(dead_code, reason = "the linker redirects calls to it only in the library, see build.rs"))]
pub(super) unsafe fn copied(copy_here: impl FnOnce() -> *mut pg_sys::ErrorData) -> *mut pg_sys::ErrorData {
    let (minimum, initial, maximum) =
        (0, pg_sys::ALLOCSET_SMALL_INITSIZE as usize, pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize);
    let spare = spare();
    // SAFETY: as the caller warrants. A child of TopMemoryContext stays valid whatever PostgreSQL cleans up meanwhile.
    // The closure owns nothing.
    unsafe {
        let callers = pg_sys::CurrentMemoryContext;
        let (mut own, mut copy) = (std::ptr::null_mut(), spare);
        let is_copied = attempt(|| {
            let name = c"idempotence error".as_ptr();
            own = AllocSetContextCreateInternal(pg_sys::TopMemoryContext, name, minimum, initial, maximum);
            pg_sys::CurrentMemoryContext = own;
            copy = copy_here();
        });
        pg_sys::CurrentMemoryContext = callers;
        if is_copied {
            return copy;
        }
        // Another process has taken the memory that was free a moment ago. The error that reports this is now on top of
        // PostgreSQL's error stack, so the caller raises it in place of the first one. It must not be flushed here: pgrx
        // raises again what is on the stack, and there would be nothing.
        if !own.is_null() {
            pg_sys::MemoryContextDelete(own);
        }
        spare
    }
}

/// Frees a copy.
///
/// # Safety
/// The error was made by [`copied`] and is not used any more.
pub(super) unsafe fn free(error: *mut pg_sys::ErrorData) {
    if !is_spare(error) {
        // SAFETY: as the caller warrants. A copy was allocated in a context that has nothing else.
        unsafe { pg_sys::MemoryContextDelete(pg_sys::GetMemoryChunkContext(error.cast())) }
    }
}

/// Has a copy freed together with this memory context, if it is not freed before.
///
/// # Safety
/// The error was made by [`copied`]. The memory context is valid.
pub(super) unsafe fn free_with(error: *mut pg_sys::ErrorData, context: pg_sys::MemoryContext) {
    if !is_spare(error) {
        // SAFETY: as the caller warrants.
        unsafe { pg_sys::MemoryContextSetParent(pg_sys::GetMemoryChunkContext(error.cast()), context) }
    }
}
