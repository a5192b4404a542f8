//! Every mistake a caller can make: one variant, one SQLSTATE, a message that names the thing, a
//! DETAIL with what was found and a HINT that says what to do.
//!
//! pgrx's list of SQLSTATEs is closed, so class `ID` is set by an error context callback: PostgreSQL
//! runs the callbacks on each error it is building, and there `errcode()` still changes it.

use crate::domain::liveness::End;
use crate::open::answered::Answered;
use crate::store::session::Right;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_guard, pg_sys};
use std::ffi::{c_int, c_void};

mod text;

/// The name of a request in messages.
#[derive(Debug)]
pub struct Name {
    /// The session's name.
    pub session: String,
    /// The stream's name, where it is not the session's own numbering.
    pub stream: String,
    /// The request's key or number.
    pub request: String,
}

impl Name {
    /// Names a request.
    pub fn new(session: &str, request: &str) -> Name {
        Name::in_stream(session, "", request)
    }

    /// Names a request of a stream.
    pub fn in_stream(session: &str, stream: &str, request: &str) -> Name {
        Name { session: session.into(), stream: stream.into(), request: request.into() }
    }
}

/// The hint where only the setting bounds the wait.
pub const WAIT_BY_SETTING: &str = "Try again as it is, or wait longer (setting idempotence.wait).";

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request \"{}\" of ", self.request)?;
        if !self.stream.is_empty() {
            write!(f, "stream \"{}\" of ", self.stream)?;
        }
        write!(f, "session \"{}\"", self.session)
    }
}

/// Why a token or a record was refused as not belonging to an open request.
#[derive(Debug)]
pub enum Missing {
    /// The transaction never began it, or rolled back to a savepoint before it did.
    Begin,
    /// Begin said that it is not the caller's to execute.
    Answered(Answered),
    /// It has its outcome already.
    Recorded,
    /// It was given up.
    Released,
}

/// A mistake, ready to be told.
#[derive(Debug)]
pub enum Error {
    /// 22004
    NullArgument {
        /// The argument's name.
        argument: &'static str,
        /// The element of it, counted from 1, where it is an array.
        element: Option<usize>,
        /// Why there must be one.
        because: String,
    },
    /// 22023
    Invalid {
        /// What is wrong.
        message: String,
        /// What was found.
        detail: String,
        /// What to do.
        hint: &'static str,
    },
    /// ID009
    LimitExceeded {
        /// What is too long, too large or too many.
        what: String,
        /// Its measure, and the unit.
        found: String,
        /// The most there may be, and the unit.
        limit: String,
        /// What to do.
        hint: &'static str,
    },
    /// 42704
    NoSuchSession {
        /// As given.
        session: String,
    },
    /// 42710
    SessionExists {
        /// Its name.
        session: String,
        /// It is a tombstone.
        dropped: bool,
        /// What differs.
        detail: String,
        /// What to do.
        hint: &'static str,
    },
    /// 42501, whatever is kept in the session.
    NotYours {
        /// Its name.
        session: String,
        /// What was wanted.
        action: &'static str,
        /// Whether that takes the owner's privileges.
        right: Right,
    },
    /// 42501: a session can be given only to a role whose privileges the giver has.
    CannotGive {
        /// The session's name.
        session: String,
        /// The role's name.
        role: String,
    },
    /// 42704
    NoSuchRole {
        /// As given.
        role: u32,
    },
    /// ID001
    PayloadMismatch(Name),
    /// ID002
    AlreadyBegun {
        /// Of the request.
        name: Name,
        /// What to do.
        hint: &'static str,
    },
    /// ID003
    OutcomeDiscarded {
        /// Of the request.
        name: Name,
        /// What its session keeps.
        window: i32,
    },
    /// ID004
    SessionEnded {
        /// As given.
        session: String,
        /// `None`: nothing is known of it.
        how: Option<End>,
    },
    /// ID005
    SessionFenced {
        /// As given.
        session: String,
    },
    /// ID005
    LateRegistration {
        /// The client's name.
        client: String,
        /// Its present session.
        session: String,
    },
    /// 55P03: what is kept of it is not committed, or not yet.
    SessionInDoubt {
        /// As given.
        session: String,
    },
    /// 25006: a standby knows nothing of it.
    SessionNotHere {
        /// As given.
        session: String,
    },
    /// 55006: this very transaction has begun requests in it.
    SessionInUse {
        /// Its name.
        session: String,
        /// What was wanted.
        action: &'static str,
    },
    /// 55006: this very transaction has begun what it gives up.
    GivesUpOwn(Name),
    /// ID006
    OutOfSequence {
        /// Of the request.
        name: Name,
        /// Where it stands.
        detail: String,
        /// What to do.
        hint: &'static str,
    },
    /// ID005
    Fenced {
        /// Of the request.
        name: Name,
        /// The token that holds nothing.
        token: i64,
    },
    /// ID007
    NotBegun {
        /// Of the request.
        name: Name,
        /// What became of it.
        missing: Missing,
        /// The function that needs it.
        function: &'static str,
    },
    /// ID008
    Unrecorded {
        /// The first of them.
        name: Name,
        /// How many more there are.
        others: usize,
        /// `PREPARE TRANSACTION` or `COMMIT`.
        preparing: bool,
    },
    /// ID010
    KeyTooOld {
        /// Of the request.
        name: Name,
        /// The session's ttl.
        ttl: String,
    },
    /// 40001: its own outcome.
    Unserializable(Name),
    /// 40001: another transaction inserts the same key, while its index is rebuilt.
    SeenAtOnce {
        /// The inbox.
        session: String,
    },
    /// 40001: what comes before it.
    BuildsOnUnseen(Name),
    /// 55P03
    WaitRanOut {
        /// What was waited for.
        what: String,
        /// How to wait longer.
        hint: &'static str,
    },
    /// 53200
    OutOfMemory,
    /// 53200, as PostgreSQL said it when the request's lock was to be taken.
    NoLock {
        /// Of the request.
        name: Box<Name>,
        /// PostgreSQL's message.
        message: String,
        /// Its hint.
        hint: String,
        /// How many locks of requests the transaction has.
        held: usize,
    },
    /// 25006
    ReadOnly {
        /// What would have to write.
        function: &'static str,
        /// Why.
        detail: String,
    },
    /// 42P01: the extension was dropped, or a table of it.
    NotInstalled {
        /// The table or index.
        relation: String,
    },
    /// 09000: a trigger or a rule of somebody else's kept a row back.
    NotWritten {
        /// The table.
        relation: String,
    },
    /// 55000: library and tables are of two versions.
    OtherVersion {
        /// That of the tables.
        tables: String,
    },
    /// XX001: nothing is known of what was in these tables.
    TablesNotRestored {
        /// Their names.
        missing: String,
    },
    /// XX001: a new session, while there is what may have been its own.
    SessionsNotRestored {
        /// Its name.
        session: String,
        /// Where something was found.
        table: &'static str,
        /// The id of a session that is not there.
        of: String,
    },
    /// XX001: a row that cannot be there.
    Corrupted {
        /// What is wrong with it.
        message: String,
    },
}

/// What a mistake looks like to the caller.
struct Report {
    /// The five characters, or a code that pgrx knows.
    code: Code,
    message: String,
    detail: String,
    hint: String,
}

enum Code {
    Own(&'static [u8; 5]),
    Standard(PgSqlErrorCode),
}

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
        let Report { code, message, detail, hint } = self.describe();
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

impl From<std::collections::TryReserveError> for Error {
    fn from(_: std::collections::TryReserveError) -> Error {
        Error::OutOfMemory
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
