//! Every mistake a caller can make: one variant each.

use super::name::RequestName;
use crate::domain::end::End;
use crate::domain::outcome::Answered;
use crate::domain::right::Right;

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
    PayloadMismatch(RequestName),
    /// ID002
    AlreadyBegun {
        /// Of the request.
        name: RequestName,
        /// What to do.
        hint: &'static str,
    },
    /// ID003
    Discarded {
        /// Of the request.
        name: RequestName,
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
    GivesUpOwn(RequestName),
    /// ID006
    OutOfSequence {
        /// Of the request.
        name: RequestName,
        /// Where it stands.
        detail: String,
        /// What to do.
        hint: &'static str,
    },
    /// ID005
    Fenced {
        /// Of the request.
        name: RequestName,
        /// The token that holds nothing.
        token: i64,
    },
    /// ID007
    NotBegun {
        /// Of the request.
        name: RequestName,
        /// What became of it.
        missing: Missing,
        /// The function that needs it.
        function: &'static str,
    },
    /// ID008
    Unrecorded {
        /// The first of them.
        name: RequestName,
        /// How many more there are.
        others: usize,
        /// `PREPARE TRANSACTION` or `COMMIT`.
        preparing: bool,
    },
    /// ID010
    KeyTooOld {
        /// Of the request.
        name: RequestName,
        /// The session's ttl.
        ttl: String,
    },
    /// 40001: its own outcome.
    Unserializable(RequestName),
    /// 40001: another transaction inserts the same key, while its index is rebuilt.
    SeenAtOnce {
        /// The inbox.
        session: String,
    },
    /// 40001: what comes before it.
    BuildsOnUnseen(RequestName),
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
        name: Box<RequestName>,
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

impl From<std::collections::TryReserveError> for Error {
    fn from(_: std::collections::TryReserveError) -> Error {
        Error::OutOfMemory
    }
}
