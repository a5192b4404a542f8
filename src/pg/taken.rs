//! Errors of users' SQL that are taken: caught in a subtransaction, and kept as they are.

use super::attempt::attempt;
use super::error_copy;
use crate::error;
use pgrx::pg_sys;
use std::ffi::c_char;

// SAFETY: declared as PostgreSQL declares them. They have no guard, see `attempt.rs`.
unsafe extern "C-unwind" {
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
    fn FlushErrorState();
    fn ReThrowError(error: *mut pg_sys::ErrorData) -> !;
    fn BeginInternalSubTransaction(name: *const c_char);
    fn ReleaseCurrentSubTransaction();
    fn RollbackAndReleaseCurrentSubTransaction();
}

/// A copy of a caught error. It is plain data and belongs to the memory context of the caller of [`in_subtransaction`]: it is
/// freed with that context, if [`TakenError::free`] was not called before.
#[derive(Clone, Copy)]
pub(super) struct TakenError(*mut pg_sys::ErrorData);

impl TakenError {
    /// Raises the error again, as it was.
    ///
    /// # Safety
    /// As for [`super::attempt::in_rust`].
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
        // The rollback may raise an error. Then no caller would free the copy.
        error_copy::free_with(error, context);
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        pg_sys::CurrentMemoryContext = context;
        pg_sys::CurrentResourceOwner = owner;
        Some(TakenError(error))
    }
}
