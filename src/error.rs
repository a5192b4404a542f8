//! Every mistake a caller can make: one variant, one SQLSTATE, a message that names the thing, a
//! DETAIL with what was found and a HINT that says what to do.
//!
//! pgrx's list of SQLSTATEs is closed, so class `ID` is set by an error context callback: PostgreSQL
//! runs the callbacks on each error it is building, and there `errcode()` still changes it.

use crate::domain::liveness::End;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_guard, pg_sys};
use std::ffi::{c_int, c_void};

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
    /// 40001: what comes before it.
    BuildsOnUnseen(Name),
    /// 55P03
    WaitRanOut {
        /// What was waited for.
        what: String,
        /// How to wait longer.
        hint: &'static str,
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

    fn describe(self) -> Report {
        use Code::{Own, Standard};
        let report =
            |code, message: String, detail: String, hint: &str| Report { code, message, detail, hint: hint.into() };
        match self {
            Error::NullArgument { argument, element, because } => report(
                Standard(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED),
                match element {
                    None => format!("argument \"{argument}\" must not be null"),
                    Some(n) => format!("element {n} of argument \"{argument}\" must not be null"),
                },
                because,
                "A NULL is most often a parameter that the client did not set.",
            ),
            Error::Invalid { message, detail, hint } => {
                report(Standard(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE), message, detail, hint)
            }
            Error::LimitExceeded { what, found, limit, hint } => report(
                Own(b"ID009"),
                format!("{what} exceeds its limit"),
                format!("Found {found}; the limit is {limit}."),
                hint,
            ),
            Error::NoSuchSession { session } => report(
                Standard(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT),
                format!("session \"{session}\" does not exist"),
                "No standing session of this name is in this database, or it was dropped.".into(),
                "Look for a typing mistake, or make it once with idem_create_session().",
            ),
            Error::SessionExists { session, dropped, detail, hint } => report(
                Standard(PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT),
                if dropped {
                    format!("session \"{session}\" was dropped with other options")
                } else {
                    format!("session \"{session}\" already exists with other options")
                },
                detail,
                hint,
            ),
            Error::NotYours { session, action } => report(
                Standard(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE),
                format!("permission denied for session \"{session}\""),
                format!(
                    "The current role does not have the privileges of the session's owner, which it takes to {action}."
                ),
                "Become a member of the role that owns it (GRANT), or use a session of your own.",
            ),
            Error::CannotGive { session, role } => report(
                Standard(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE),
                format!("permission denied to make role \"{role}\" the owner of session \"{session}\""),
                format!("The current role does not have the privileges of role \"{role}\"."),
                "Name a role that you are a member of, or let a superuser do it.",
            ),
            Error::NoSuchRole { role } => report(
                Standard(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT),
                format!("role with OID {role} does not exist"),
                "A session belongs to a role.".into(),
                "Name the role instead of giving its number.",
            ),
            Error::PayloadMismatch(name) => report(
                Own(b"ID001"),
                format!("{name} came with another payload"),
                "The fingerprint kept from the first time differs from that of the payload given now.".into(),
                "A retry must send what was sent first; a new request needs a name of its own.",
            ),
            Error::AlreadyBegun { name, hint } => report(
                Own(b"ID002"),
                format!("{name} is already begun in this transaction"),
                "This transaction holds the claim and has neither recorded nor released it.".into(),
                hint,
            ),
            Error::OutcomeDiscarded { name, window } => report(
                Own(b"ID003"),
                format!("{name} is over, and its answer is no longer kept"),
                format!(
                    "It was done, or skipped. Each stream keeps its newest answers, {window} at most, and none that the client has acknowledged."
                ),
                "Do not execute it under another number. A client that sends a number only once the answer to the one a window before is in never loses an answer.",
            ),
            Error::OutOfSequence { name, detail, hint } => {
                report(Own(b"ID006"), format!("{name} is out of sequence"), detail, hint)
            }
            Error::SessionEnded { session, how: None } => report(
                Own(b"ID004"),
                format!("client session \"{session}\" was never registered, or has ended"),
                "A name in the form of a UUID is that of a client session, and nothing is known of this one.".into(),
                "Call idem_register() and use the session that it gives. Standing sessions have names that do not look like a UUID; look for session and request given in the wrong order.",
            ),
            Error::SessionEnded { session, how: Some(how) } => report(
                Own(b"ID004"),
                format!("client session \"{session}\" has ended"),
                match how {
                    End::Closed => "Its client closed it.".into(),
                    _ => "Its client was silent for longer than its timeout.".into(),
                },
                "Find out with idem_lookup() what was done, then call idem_register() for a new session.",
            ),
            Error::SessionFenced { session } => report(
                Own(b"ID005"),
                format!("client session \"{session}\" was fenced"),
                "Its client registered anew, and the new session took its place.".into(),
                "Another process is the client now: this one has to stop, or to register to take over.",
            ),
            Error::SessionInDoubt { session } => report(
                Standard(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE),
                format!("client session \"{session}\" is in use by a transaction that has not ended"),
                "Nothing is known of the session, but a transaction, a prepared one say, holds it.".into(),
                "Try again when that transaction has ended; pg_prepared_xacts lists the prepared ones.",
            ),
            Error::SessionNotHere { session } => report(
                Standard(PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION),
                format!("client session \"{session}\" is not known on this standby"),
                "It has no outcome yet, or that has not arrived here; or it never was.".into(),
                "Send its requests to the primary.",
            ),
            Error::SessionInUse { session, action } => report(
                Standard(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE),
                format!("cannot {action} client session \"{session}\": this transaction has begun requests in it"),
                "A session in use neither ends nor is handed over.".into(),
                "Record or release them first, or do it in a transaction of its own.",
            ),
            Error::Fenced { name, token } => report(
                Own(b"ID005"),
                format!("token {token} does not hold {name}"),
                "No claim of this request has this token.".into(),
                "Leave token out under a transaction claim; otherwise begin again and look at the answer.",
            ),
            Error::NotBegun { name, missing, function } => report(
                Own(b"ID007"),
                format!("{name} is not begun in this transaction"),
                format!(
                    "{function}() needs a request that idem_begin() answered with \"started\" in the same transaction; {}.",
                    match missing {
                        Missing::Begin => "this one was not begun here, or a rollback to a savepoint took it back",
                        Missing::Recorded => "this one has been recorded already",
                        Missing::Released => "this one has been released",
                    }
                ),
                match missing {
                    Missing::Begin => {
                        "Call idem_begin() first, in the same transaction, and go on only when its status is \"started\". In autocommit each statement is a transaction of its own."
                    }
                    Missing::Recorded => "A request has one outcome; a new operation needs a key of its own.",
                    Missing::Released => "To go on with it after all, call idem_begin() again.",
                },
            ),
            Error::Unrecorded { name, others, preparing } => report(
                Own(b"ID008"),
                format!("{name} was begun but neither recorded, checkpointed nor released"),
                format!(
                    "{} would keep its effects without an outcome, and a retry would execute it again.{}",
                    if preparing { "PREPARE TRANSACTION" } else { "COMMIT" },
                    match others {
                        0 => String::new(),
                        1 => " One other request is open as well.".into(),
                        n => format!(" {n} other requests are open as well."),
                    }
                ),
                "Call idem_record() before the end of the transaction, or idem_release() to give it up. In autocommit each statement is a transaction of its own: start one with BEGIN.",
            ),
            Error::KeyTooOld { name, ttl } => report(
                Own(b"ID010"),
                format!("{name} is too old to tell whether it was done"),
                format!(
                    "Its key's time is more than the session's ttl ({ttl}) ago and nothing is kept of it: it was never recorded, or its outcome has expired."
                ),
                "Find out whether its effect happened; if it did not, send it under a fresh key.",
            ),
            Error::Unserializable(name) => report(
                Standard(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE),
                format!("could not serialize access: {name} was answered after this transaction's snapshot"),
                "Its outcome or checkpoint is committed, but its effects are not visible to this transaction.".into(),
                "Retry the transaction: it will get the answer.",
            ),
            Error::BuildsOnUnseen(name) => report(
                Standard(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE),
                format!("could not serialize access: what {name} builds on came after this transaction's snapshot"),
                "A reply or an acknowledgement before it is committed, but not visible to this transaction.".into(),
                "Retry the transaction.",
            ),
            Error::WaitRanOut { what, hint } => report(
                Standard(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE),
                format!("{what} is still in progress"),
                "Another transaction holds it, and the wait ran out.".into(),
                hint,
            ),
            Error::ReadOnly { function, detail } => report(
                Standard(PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION),
                format!("cannot execute {function} in a read-only transaction"),
                detail,
                "Run it in a read-write transaction, on the primary.",
            ),
            Error::NotInstalled { relation } => report(
                Standard(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE),
                format!("relation \"{relation}\" does not exist"),
                "It belongs to the extension \"idempotence\", which is not in this database any more.".into(),
                "Create the extension, or restore it.",
            ),
            Error::Corrupted { message } => report(
                Standard(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED),
                message,
                "The tables of schema \"idempotence\" do not fit together.".into(),
                "Were they changed by hand, or restored in part?",
            ),
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
