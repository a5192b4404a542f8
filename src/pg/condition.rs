//! PostgreSQL's condition variables: processes sleep on one until another process wakes them.

use pgrx::pg_sys;
use std::cell::UnsafeCell;

/// Condition variables in shared memory.
pub struct Conditions<const N: usize>(UnsafeCell<[pg_sys::ConditionVariable; N]>);

// SAFETY: each variable has a spinlock of its own, which PostgreSQL's functions take.
unsafe impl<const N: usize> Sync for Conditions<N> {}

impl<const N: usize> Conditions<N> {
    /// Makes the variables ready, while the postmaster makes the shared memory that they are in.
    pub fn make_ready(&self) {
        // SAFETY: nobody uses a variable yet.
        (0..N).for_each(|number| unsafe { pg_sys::ConditionVariableInit(self.variable(number)) });
    }

    fn variable(&self, number: usize) -> *mut pg_sys::ConditionVariable {
        debug_assert!(number < N);
        // SAFETY: the number is that of a variable, and the array stays where it is in shared memory.
        unsafe { self.0.get().cast::<pg_sys::ConditionVariable>().add(number % N) }
    }

    /// Wakes all processes that sleep on a variable.
    pub fn wake(&self, number: usize) {
        // SAFETY: the variable is in shared memory. The call takes a spinlock and raises no error.
        unsafe { pg_sys::ConditionVariableBroadcast(self.variable(number)) }
    }

    /// Notes that this process is about to sleep on a variable. From now on it misses no wake.
    pub fn prepare(&'static self, number: usize) -> Prepared {
        let variable = self.variable(number);
        // SAFETY: the variable is in shared memory.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(variable) };
        Prepared(variable)
    }
}

/// This process is about to sleep on a variable. Dropping it says that it is not any more.
pub struct Prepared(*mut pg_sys::ConditionVariable);

impl Prepared {
    /// Sleeps until it is woken, or until the time has passed. It may return earlier than either. A cancel or a
    /// termination ends the sleep with an error.
    pub fn sleep(&self, us: i64) {
        // SAFETY: the variable is in shared memory.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.0, us.div_euclid(1000).max(1), wait_event());
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: takes this process off the list that it is on. The end of a transaction that fails does the same.
        unsafe {
            pg_sys::ConditionVariableCancelSleep();
        }
    }
}

/// What `pg_stat_activity` shows of a sleep. Before PostgreSQL 17 an extension has no names of its own.
fn wait_event() -> u32 {
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    {
        static EVENT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        // SAFETY: the name is static. The server keeps it, and gives the same number for it again.
        *EVENT.get_or_init(|| unsafe { pg_sys::WaitEventExtensionNew(c"IdempotenceLease".as_ptr()) })
    }
    #[cfg(not(any(feature = "pg17", feature = "pg18")))]
    pg_sys::PG_WAIT_EXTENSION
}
