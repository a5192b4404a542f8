//! Raising a mistake with its own SQLSTATE.
//!
//! pgrx's list of SQLSTATEs is closed. So class `ID` is set by an error context callback: PostgreSQL runs the
//! callbacks on each error that it is building, and there `errcode()` still changes the SQLSTATE.

use super::kinds::Error;
use super::text::{Code, Texts, describe};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_guard, pg_sys};
use std::ffi::{c_int, c_void};

impl Error {
    /// Raises it as an ERROR.
    pub fn raise(self) -> ! {
        self.report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }

    /// Tells it as a WARNING and goes on.
    pub fn warn(self) {
        self.report(PgLogLevel::WARNING);
    }

    fn report(self, level: PgLogLevel) {
        let Texts { code, message, detail, hint } = describe(self);
        let standard = match code {
            Code::Standard(code) => code,
            Code::Own(_) => PgSqlErrorCode::ERRCODE_RAISE_EXCEPTION,
        };
        let report = ErrorReport::new(standard, message, function_name!()).set_detail(detail).set_hint(hint);
        match code {
            Code::Standard(_) => report.report(level),
            Code::Own(state) => with_sqlstate(state, || report.report(level)),
        }
    }
}

/// Settles, when the library is loaded, that errors come as they are documented. pgrx appends Rust's
/// backtrace to the DETAIL of every error that passes through it when RUST_BACKTRACE is set, as it may
/// be in the environment that a server was started from. RUST_LIB_BACKTRACE still asks for them.
pub fn init() {
    const DECIDES: &str = "RUST_LIB_BACKTRACE";
    if std::env::var_os(DECIDES).is_some() {
        return;
    }
    // SAFETY: a server process that loads a library has one thread. The environment is left as it was:
    // the standard library reads it at the first capture only.
    unsafe {
        std::env::set_var(DECIDES, "0");
        let _ = std::backtrace::Backtrace::capture();
        std::env::remove_var(DECIDES);
    }
}

/// The value of a result, or its error raised.
pub fn or_raise<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| error.raise())
}

unsafe extern "C-unwind" {
    /// Declared here because pgrx hides it: sets the SQLSTATE of the error that is being built.
    fn errcode(sqlerrcode: c_int) -> c_int;
}

/// Runs `report` so that the error it raises carries `state`.
fn with_sqlstate(state: &[u8; 5], report: impl FnOnce()) {
    static mut CALLBACK: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
        previous: std::ptr::null_mut(),
        callback: Some(set_sqlstate),
        arg: std::ptr::null_mut(),
    };

    // SAFETY: a backend is single-threaded, and CALLBACK is static, so it outlives the error. For an
    // ERROR PostgreSQL restores error_context_stack when it catches it; for less, we pop it below.
    unsafe {
        let callback = &raw mut CALLBACK;
        if pg_sys::error_context_stack != callback {
            (*callback).previous = pg_sys::error_context_stack;
        }
        (*callback).arg = pack(state) as usize as *mut c_void;
        pg_sys::error_context_stack = callback;
    }
    report();
    // SAFETY: still the entry that was pushed above: whatever was pushed on it has been popped.
    unsafe { pg_sys::error_context_stack = CALLBACK.previous };
}

/// MAKE_SQLSTATE: six bits a character.
fn pack(state: &[u8; 5]) -> i32 {
    state.iter().enumerate().fold(0, |packed, (i, c)| packed | ((i32::from(*c) - i32::from(b'0')) & 0x3F) << (6 * i))
}

#[pg_guard]
unsafe extern "C-unwind" fn set_sqlstate(arg: *mut c_void) {
    // SAFETY: called by errfinish() only, on the error being built, which is what errcode() is for.
    unsafe { errcode(arg as usize as c_int) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn sqlstates_are_packed_as_postgresql_does() {
        // ERRCODE_UNIQUE_VIOLATION is 23505.
        assert_eq!(super::pack(b"23505"), pgrx::PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION as i32);
        assert_eq!(super::pack(b"40P01"), pgrx::PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED as i32);
    }
}
