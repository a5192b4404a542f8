//! Subtransactions of our own.

use pgrx::pg_sys;

/// An internal subtransaction, entered and left as PL/pgSQL does it for an exception block. The memory context and the
/// resource owner stay those of the caller.
pub(super) struct Subtransaction {
    context: pg_sys::MemoryContext,
    owner: pg_sys::ResourceOwner,
}

impl Subtransaction {
    pub(super) fn begin() -> Subtransaction {
        // SAFETY: called inside a transaction. The context and the owner outlive the subtransaction.
        unsafe {
            let callers = Subtransaction { context: pg_sys::CurrentMemoryContext, owner: pg_sys::CurrentResourceOwner };
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            pg_sys::MemoryContextSwitchTo(callers.context);
            callers
        }
    }

    pub(super) fn commit(&self) {
        // SAFETY: ours is the innermost subtransaction.
        unsafe { pg_sys::ReleaseCurrentSubTransaction() }
        self.back_to_caller();
    }

    /// By now pgrx has copied the error out of ErrorContext and has cleared PostgreSQL's error state.
    pub(super) fn roll_back(&self) {
        self.back_to_caller();
        // SAFETY: ours is the innermost subtransaction, since `work` leaves none of its own open.
        unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() }
        self.back_to_caller();
    }

    fn back_to_caller(&self) {
        // SAFETY: the context and the owner were current before the subtransaction began, and still exist.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.context);
            pg_sys::CurrentResourceOwner = self.owner;
        }
    }
}
