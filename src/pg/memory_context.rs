//! Memory contexts of PostgreSQL.

use pgrx::pg_sys;

/// Runs `work` in a memory context of its own, which is deleted after it. So what a call allocates for each of many
/// rows does not pile up.
pub fn in_own_memory<T>(work: impl FnOnce() -> T) -> T {
    let (small, large) = (pg_sys::ALLOCSET_SMALL_INITSIZE as usize, pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize);
    // SAFETY: the context is a child of the caller's. If `work` raises an error, it is deleted with the caller's.
    unsafe {
        let callers = pg_sys::CurrentMemoryContext;
        let own = pg_sys::AllocSetContextCreateInternal(callers, c"idempotence one of many".as_ptr(), 0, small, large);
        pg_sys::MemoryContextSwitchTo(own);
        let done = work();
        pg_sys::MemoryContextSwitchTo(callers);
        pg_sys::MemoryContextDelete(own);
        done
    }
}
