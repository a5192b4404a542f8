//! Raises an error with its SQLSTATE.
//!
//! pgrx knows a closed list of SQLSTATEs, and class `ID` is not in it. So an error context callback sets those:
//! PostgreSQL runs the callbacks on each error that it is building, and there `errcode()` can still change the
//! SQLSTATE.

use super::kinds::{Code, Error, Texts};
use super::name::RequestName;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_guard, pg_sys};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    static WHEN_RAISED: Cell<WhenRaised> = const { Cell::new(|_, _| {}) };
}

/// Is told the SQLSTATE, and the session or the request that the error tells of; their names are empty where it tells of none.
type WhenRaised = fn(&[u8; 5], &RequestName);

/// Has `callback` called for each error of class `ID` when it is raised. It must raise no error.
pub fn call_when_raised(callback: WhenRaised) {
    WHEN_RAISED.set(callback);
}

impl Error {
    /// Raises the error as an ERROR.
    pub fn raise(self) -> ! {
        ErrorReport::from(self).report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }

    /// Reports the error as a WARNING and returns.
    pub fn warn(self) {
        // SAFETY: a variable of the backend.
        let callbacks = unsafe { pg_sys::error_context_stack };
        self.into_report(|_, _| {}).report(PgLogLevel::WARNING);
        // SAFETY: the stack is as it was before the callback was pushed: whatever was pushed on it has been popped.
        unsafe { pg_sys::error_context_stack = callbacks };
    }

    /// What is reported. It is to be reported at once, since its SQLSTATE goes with whatever is reported next.
    fn into_report(self, when_raised: WhenRaised) -> ErrorReport {
        let Texts { code, message, detail, hint } = self.texts();
        let code = match code {
            Code::Standard(code) => code,
            Code::Own(state, about) => {
                when_raised(state, &about);
                push_sqlstate(state);
                PgSqlErrorCode::ERRCODE_RAISE_EXCEPTION
            }
        };
        ErrorReport::new(code, message, function_name!()).set_detail(detail).set_hint(hint)
    }
}

/// For SQL functions, whose errors pgrx raises. The report is to be raised at once.
impl From<Error> for ErrorReport {
    fn from(error: Error) -> ErrorReport {
        error.into_report(WHEN_RAISED.get())
    }
}

impl Texts {
    /// The SQLSTATE.
    pub fn sqlstate(&self) -> String {
        let state = match self.code {
            Code::Own(state, _) => *state,
            Code::Standard(code) => unpack(code as i32),
        };
        String::from_utf8_lossy(&state).into_owned()
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

/// Has the error that is reported next carry this SQLSTATE.
fn push_sqlstate(state: &[u8; 5]) {
    static mut CALLBACK: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
        previous: std::ptr::null_mut(),
        callback: Some(set_sqlstate),
        arg: std::ptr::null_mut(),
    };

    // SAFETY: a backend is single-threaded, and CALLBACK is static, so it outlives the error. When PostgreSQL
    // catches an ERROR, it restores error_context_stack. After a report of a lower level warn() does.
    unsafe {
        let callback = &raw mut CALLBACK;
        if pg_sys::error_context_stack != callback {
            (*callback).previous = pg_sys::error_context_stack;
        }
        (*callback).arg = pack(state) as usize as *mut c_void;
        pg_sys::error_context_stack = callback;
    }
}

/// The five characters of a packed SQLSTATE.
pub fn unpack(packed: i32) -> [u8; 5] {
    std::array::from_fn(|place| (packed >> (6 * place) & 0x3F) as u8 + b'0')
}

/// How many SQLSTATEs of class `ID` there are: ID001 and so on.
pub const OWN_SQLSTATES: usize = 12;

/// The number of an SQLSTATE of class `ID`, from 0 on.
pub fn own_number(sqlstate: &[u8; 5]) -> usize {
    let number = sqlstate[2..].iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    number.clamp(1, OWN_SQLSTATES) - 1
}

/// Packs an SQLSTATE as PostgreSQL's MAKE_SQLSTATE does: six bits a character.
fn pack(state: &[u8; 5]) -> i32 {
    state.iter().enumerate().fold(0, |packed, (i, c)| packed | ((i32::from(*c) - i32::from(b'0')) & 0x3F) << (6 * i))
}

#[pg_guard]
unsafe extern "C-unwind" fn set_sqlstate(arg: *mut c_void) {
    // SAFETY: only errfinish() calls this, while it builds the error. That is when errcode() may be called.
    unsafe { errcode(arg as usize as c_int) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_sqlstate_of_ours_has_a_number() {
        let codes = include_str!("kinds.rs").split("Own(b\"ID").skip(1);
        let highest = codes.filter_map(|rest| rest.get(..3)?.parse().ok()).max();
        assert_eq!(highest, Some(super::OWN_SQLSTATES));
        assert_eq!((super::own_number(b"ID001"), super::own_number(b"ID012")), (0, 11));
    }

    #[test]
    fn sqlstates_are_packed_as_postgresql_does() {
        // ERRCODE_UNIQUE_VIOLATION is 23505.
        assert_eq!(super::pack(b"23505"), pgrx::PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION as i32);
        assert_eq!(super::pack(b"40P01"), pgrx::PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED as i32);
        assert_eq!(super::unpack(super::pack(b"ID0Z9")), *b"ID0Z9");
    }
}
