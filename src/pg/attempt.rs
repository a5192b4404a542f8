//! Errors of users' SQL, which have to stay as they are.
//!
//! An error that passes through pgrx is copied, unwound as a panic, and raised again. A user's error may be large, and
//! there may be no memory for the copy. So users' SQL runs as it does below a function in C: an error jumps from where it
//! is raised to the handler, over all frames between. Here it is caught as PG_TRY catches it.
//!
//! The jump skips destructors. So the frames that it passes over own nothing that needs one, and the functions that are
//! called there are declared without the guard of pgrx. What needs Rust in full stands in a closure for [`in_rust`], which
//! raises errors of ours and of PostgreSQL only, never a user's. So there are two kinds of subtransactions: that of `taken.rs`,
//! for users' SQL, and that of `catch.rs`, for steps of ours, whose frames have destructors.

use cee_scape::{SigJmpBufFields, call_with_sigsetjmp};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::pgrx_extern_c_guard;

/// Runs `work` with the whole of Rust. If it raises an error, that goes on as PostgreSQL's errors do.
///
/// # Safety
/// The frames from here to whoever catches PostgreSQL's errors own nothing that needs a destructor.
pub(super) unsafe fn in_rust<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller warrants.
    unsafe { pgrx_extern_c_guard(work) }
}

/// Calls `work`; whether it returned. If not, it has raised an error, which the caller has to throw again as it is, or to copy
/// and to flush before it rolls back a subtransaction.
///
/// # Safety
/// Neither `work` nor what it calls has a frame that owns something that needs a destructor, unless within [`in_rust`].
pub(super) unsafe fn attempt(work: impl FnOnce()) -> bool {
    // SAFETY: the buffer is valid while the call lasts that is given it. After that PostgreSQL goes on with the former
    // one, whether `work` returned or an error has jumped to the buffer. PG_TRY does the same.
    unsafe {
        let (handler, callbacks) = (pg_sys::PG_exception_stack, pg_sys::error_context_stack);
        let jumped = call_with_sigsetjmp(false, |buffer| {
            pg_sys::PG_exception_stack = (&raw const *buffer).cast_mut().cast::<SigJmpBufFields>().cast();
            work();
            0
        });
        pg_sys::PG_exception_stack = handler;
        pg_sys::error_context_stack = callbacks;
        jumped == 0
    }
}
