//! What a backend keeps in its own memory from call to call.
//!
//! A call of the server may wait, and come back to us: a trigger calls us, or the backend is terminated, and the callbacks
//! at the end of its transaction run below the frame that waits. Where something is borrowed meanwhile, they panic, and a
//! panic in an abort ends the process before it has given its locks back. So nothing is borrowed over a call of the server,
//! and what is used all the same can be used once more. `RefCell` is left out (clippy sees to that).

use std::cell::{Cell, UnsafeCell};

/// A value of this backend, at first its default.
pub struct Own<T> {
    value: UnsafeCell<Option<T>>,
    in_use: Cell<bool>,
}

// SAFETY: a process of the server has one thread.
unsafe impl<T> Sync for Own<T> {}

impl<T: Default> Own<T> {
    /// The default value.
    #[allow(clippy::new_without_default, reason = "a static takes no other constructor than this")]
    pub const fn new() -> Own<T> {
        Own { value: UnsafeCell::new(None), in_use: Cell::new(false) }
    }

    /// Gives the value to `work`, which must not call the server. A build with debug assertions runs it in a critical
    /// section, where whatever the server allocates or raises ends it.
    ///
    /// Whoever comes here while `work` runs gets the default, which is dropped afterwards. So this never panics.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        if self.in_use.replace(true) {
            return work(&mut T::default());
        }
        in_critical_section(true);
        // SAFETY: the process has one thread, and the mark lets nobody else have the value.
        let work = || work(unsafe { &mut *self.value.get() }.get_or_insert_default());
        finally(work, || {
            in_critical_section(false);
            self.in_use.set(false);
        })
    }

    /// Takes the value out, and leaves the default.
    pub fn take(&self) -> T {
        self.with(std::mem::take)
    }
}

/// Runs `work` and then `end`, also when an error unwinds.
pub fn finally<T>(work: impl FnOnce() -> T, end: impl FnMut()) -> T {
    struct End<F: FnMut()>(F);
    impl<F: FnMut()> Drop for End<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let _end = End(end);
    work()
}

/// Has the server's assertions find calls of it, in a build that has ours.
fn in_critical_section(_begins: bool) {
    #[cfg(all(debug_assertions, not(test)))]
    // SAFETY: a variable of the backend. Each beginning has its end, also where a panic unwinds.
    unsafe {
        let more = if _begins { 1 } else { u32::MAX };
        pgrx::pg_sys::CritSectionCount = pgrx::pg_sys::CritSectionCount.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::Own;

    #[test]
    fn what_is_in_use_can_be_used_once_more_and_stays_what_it_is() {
        static NUMBERS: Own<Vec<i32>> = Own::new();
        NUMBERS.with(|numbers| {
            numbers.push(1);
            NUMBERS.with(|others| others.push(2));
            assert!(NUMBERS.take().is_empty());
        });
        let panicked = std::panic::catch_unwind(|| NUMBERS.with(|_| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(NUMBERS.take(), [1]);
        assert!(NUMBERS.take().is_empty());
    }
}
