//! Errors of users' SQL, which have to stay as they are.
//!
//! An error that passes through pgrx is copied, unwound as a panic, and raised again. A user's error may be large, and
//! there may be no memory for the copy. So users' SQL runs as it does below a function in C: an error jumps from where it
//! is raised to the handler, over all frames between. Here it is caught as PG_TRY catches it.
//!
//! The jump skips destructors. So the frames that it passes over own nothing that needs one, and the functions that are
//! called there are declared without the guard of pgrx. What needs Rust in full stands in a closure for [`in_rust`], which
//! raises errors of ours and of PostgreSQL only, never a user's. So there are two kinds of subtransactions: the one here,
//! for users' SQL, and the one of `catch.rs`, for steps of ours, whose frames have destructors.

use super::error_copy;
use crate::error;
use cee_scape::{SigJmpBufFields, call_with_sigsetjmp};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::pgrx_extern_c_guard;
use std::ffi::c_char;

// SAFETY: declared as PostgreSQL declares them. They have no guard, see above.
unsafe extern "C-unwind" {
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
    fn FlushErrorState();
    fn ReThrowError(error: *mut pg_sys::ErrorData) -> !;
    fn BeginInternalSubTransaction(name: *const c_char);
    fn ReleaseCurrentSubTransaction();
    fn RollbackAndReleaseCurrentSubTransaction();
}

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

/// A copy of a caught error. It is plain data and belongs to the memory context of the caller of [`in_subtransaction`]: it is
/// freed with that context, if [`TakenError::free`] was not called before.
#[derive(Clone, Copy)]
pub(super) struct TakenError(*mut pg_sys::ErrorData);

impl TakenError {
    /// Raises the error again, as it was.
    ///
    /// # Safety
    /// As for [`in_rust`].
    pub(super) unsafe fn raise_again(self) -> ! {
        // SAFETY: the error is a copy that was not freed. It is copied once more before it is raised.
        unsafe { ReThrowError(self.0) }
    }

    /// Frees the copy.
    pub(super) fn free(self) {
        // SAFETY: the error is a copy, and the type's users free it once.
        unsafe { error_copy::free(self.0) }
    }

    /// Its SQLSTATE.
    pub(super) fn sqlstate(self) -> [u8; 5] {
        // SAFETY: the error is a copy that was not freed.
        error::unpack(unsafe { (*self.0).sqlerrcode })
    }

    /// Its SQLSTATE, which is there until the next one is asked for, message, DETAIL and HINT; each null or terminated.
    pub(super) fn texts(self) -> [*const c_char; 4] {
        // SAFETY: as above.
        unsafe {
            let sqlstate = pg_sys::unpack_sql_state((*self.0).sqlerrcode);
            [sqlstate, (*self.0).message, (*self.0).detail, (*self.0).hint].map(<*mut c_char>::cast_const)
        }
    }
}

/// Calls `work` in a subtransaction, as PL/pgSQL runs a block that has an EXCEPTION part. If it raises an
/// error, rolls the subtransaction back and gives the error.
///
/// # Safety
/// As for [`attempt`].
pub(super) unsafe fn in_subtransaction(work: impl FnOnce()) -> Option<TakenError> {
    // SAFETY: context and owner were current before the subtransaction began, and outlive it. If `work` leaves a
    // subtransaction of its own open, it does so with an error that ends it. The error is copied before it is flushed, and
    // flushed before the rollback.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = context;
        let done = attempt(|| {
            work();
            ReleaseCurrentSubTransaction();
        });
        pg_sys::CurrentMemoryContext = context;
        if done {
            pg_sys::CurrentResourceOwner = owner;
            return None;
        }
        let error = CopyErrorData();
        // The rollback may raise an error, which would leave the copy to nobody else.
        error_copy::free_with(error, context);
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        pg_sys::CurrentMemoryContext = context;
        pg_sys::CurrentResourceOwner = owner;
        Some(TakenError(error))
    }
}
