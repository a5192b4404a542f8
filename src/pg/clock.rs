//! The clocks of PostgreSQL that cancel what runs too long. Starting a clock that runs already sets it anew.

use std::ffi::c_int;

/// A clock, with the number that PostgreSQL gives it in all supported versions. Each backend has these, and each worker
/// that is connected to a database.
#[derive(Clone, Copy)]
pub enum Clock {
    /// That of `lock_timeout`.
    Lock = 2,
    /// That of `statement_timeout`.
    Statement = 3,
}

// SAFETY: as PostgreSQL declares them. pgrx hides them.
unsafe extern "C-unwind" {
    fn enable_timeout_after(id: c_int, ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

impl Clock {
    /// Starts it: after this time it cancels what is being executed, with an error.
    pub fn start(self, ms: i32) {
        // SAFETY: the process has registered the clock's handler, which sends it SIGINT. The call raises no error.
        unsafe { enable_timeout_after(self as c_int, ms) }
    }

    /// Stops it. If it has cancelled something already, that is still reported.
    pub fn stop(self) {
        // SAFETY: as in start().
        unsafe { disable_timeout(self as c_int, true) }
    }
}
