//! The list of errors: one variant for each mistake that a caller can make.

use super::name::RequestName;
use crate::domain::class::{Answered, Class};
use crate::domain::end::End;
use crate::domain::right::Right;

/// Why a request is not open in this transaction, although the call needs that it is.
#[derive(Debug)]
pub enum Missing {
    /// The transaction never began the request, or rolled back to a savepoint before the begin.
    Begin,
    /// The answer of begin was that the request is not the caller's to execute.
    Answered(Answered),
    /// The request has its outcome already.
    Recorded,
    /// The request was released.
    Released,
    /// The request was begun with a lease, and the call comes without its token.
    Token,
}

/// Why a token does not hold its request.
#[derive(Debug)]
pub enum Superseded {
    /// Nothing is kept that has this token: another caller took the request over, or the lease was lost or never was.
    Gone,
    /// The request is done, and its outcome was not recorded with this token.
    Done(Class),
    /// The outcome was recorded with this very token.
    Recorded,
    /// The number was done or given up, and no answer is kept that could tell the token.
    Over,
}

/// A command that `idem_run` does not execute.
#[derive(Debug)]
pub enum NotExecuted {
    /// `SELECT … INTO`.
    SelectInto,
    /// `COPY` from the client or to it.
    Copy,
    /// `COMMIT` and its like.
    OfTransaction,
}

/// An error. Each variant begins with its SQLSTATE, and holds what its texts need.
#[derive(Debug)]
pub enum Error {
    /// 22004
    NullArgument {
        /// The argument's name.
        argument: &'static str,
        /// Where the argument is an array: the place of the null element, counted from 1.
        element: Option<usize>,
        /// Why it must not be null.
        because: String,
    },
    /// 22023: an argument, or a combination of arguments, makes no sense.
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
        /// The size found, with its unit.
        found: String,
        /// The greatest size allowed, with its unit.
        limit: String,
        /// What to do.
        hint: &'static str,
    },
    /// 21000: the command of `idem_run` gave more rows than the response has room for.
    SeveralRows {
        /// The number of rows.
        rows: u64,
    },
    /// 0A000
    NotExecuted(NotExecuted),
    /// 42704
    NoSuchSession {
        /// The session's name, as given.
        session: String,
    },
    /// 42710
    SessionExists {
        /// The session's name.
        session: String,
        /// Whether the session was dropped and only its tombstone is there.
        dropped: bool,
        /// Which options differ.
        detail: String,
        /// What to do.
        hint: &'static str,
    },
    /// 42501. The same whatever is kept in the session, so that it tells nothing of that.
    NotYours {
        /// The session's name.
        session: String,
        /// What the caller wanted to do.
        action: &'static str,
        /// The right that it takes.
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
        /// The role's oid, as given.
        role: u32,
    },
    /// ID001
    PayloadMismatch(RequestName),
    /// ID002
    AlreadyBegun {
        /// The request.
        name: RequestName,
        /// What to do.
        hint: &'static str,
    },
    /// ID003
    Discarded {
        /// The request.
        name: RequestName,
        /// The number of replies that its session keeps of each stream.
        window: i32,
    },
    /// ID004
    SessionEnded {
        /// The session's name, as given.
        session: String,
        /// How the session ended. `None`: nothing is known of it.
        how: Option<End>,
    },
    /// ID005
    SessionFenced {
        /// The session's name, as given.
        session: String,
    },
    /// ID005
    LateRegistration {
        /// The client's name.
        client: String,
        /// The client's present session.
        session: String,
    },
    /// ID012
    Elsewhere {
        /// The session's name, as given.
        session: String,
        /// The node that the session belongs to.
        node: String,
        /// The name of this server.
        here: String,
        /// Whether it is a standing session that is bound to the node; else a client session that nothing is known of.
        bound: bool,
    },
    /// 55P03: nothing is known of the session, but a transaction that has not ended holds it.
    SessionInDoubt {
        /// The session's name, as given.
        session: String,
    },
    /// 25006: this standby knows nothing of the session.
    SessionNotHere {
        /// The session's name, as given.
        session: String,
    },
    /// 55006: this very transaction has begun requests in the session.
    SessionInUse {
        /// The session's name.
        session: String,
        /// What the caller wanted to do.
        action: &'static str,
    },
    /// 55000: requests could still begin in a session that is to be exported.
    SessionOpen {
        /// The session's name.
        session: String,
        /// Whether this very transaction has dropped it or bound it to another node.
        closed_here: bool,
    },
    /// 55006: a transaction that may have executed requests of the session has not ended.
    NotAtRest {
        /// The session's name.
        session: String,
        /// A request of the session that is at work, if that is known.
        request: Option<RequestName>,
        /// Who is at work, in words.
        holders: String,
    },
    /// 55006: this very transaction has executed requests, or may have.
    ExportsOwn {
        /// The session's name.
        session: String,
    },
    /// 40001: something of the session is newer than the snapshot.
    ExportsUnseen {
        /// The session's name.
        session: String,
    },
    /// 55006: this very transaction has begun the request that it gives up.
    GivesUpOwn(RequestName),
    /// ID006
    OutOfSequence {
        /// The request.
        name: RequestName,
        /// Where the request stands in its stream.
        detail: String,
        /// What to do.
        hint: &'static str,
    },
    /// ID005
    ClaimSuperseded {
        /// The request.
        name: RequestName,
        /// The token that holds no claim of the request.
        token: i64,
        /// Why not.
        how: Superseded,
    },
    /// ID011
    AlreadyDone {
        /// The request.
        name: RequestName,
        /// How it ended.
        class: Class,
        /// When that was recorded.
        recorded_at: String,
    },
    /// 55000: a request that somebody must look at before it is executed.
    MustLook {
        /// The request.
        name: RequestName,
        /// The point that it stopped at, if it has a checkpoint.
        point: Option<String>,
        /// Whether the lease of another holder ran out.
        taken_over: bool,
        /// Whether all attempts that its session allows were begun.
        given_up: bool,
    },
    /// 55P03: another holder has a lease of the request.
    Leased {
        /// The request.
        name: RequestName,
        /// When the lease runs out.
        until: String,
        /// How to wait longer.
        hint: &'static str,
    },
    /// 55000: an admin would record a request that nobody has left unfinished.
    NothingUnfinished {
        /// The request.
        name: RequestName,
    },
    /// 55006: others use a table that is to be made logged or unlogged.
    TableInUse {
        /// The table's name.
        relation: String,
        /// What the table keeps.
        what: &'static str,
    },
    /// 55P03: a lease keeps the session.
    SessionLeased {
        /// The session's name.
        session: String,
        /// What the caller wanted to do.
        action: &'static str,
        /// When its last lease runs out.
        until: String,
    },
    /// ID007
    NotBegun {
        /// The request.
        name: RequestName,
        /// Why the request is not open.
        missing: Missing,
        /// The function that needs an open request.
        function: &'static str,
    },
    /// ID008
    Unrecorded {
        /// The first open request.
        name: RequestName,
        /// The number of other open requests.
        others: usize,
        /// Whether the statement is `PREPARE TRANSACTION`; else `COMMIT`.
        preparing: bool,
    },
    /// ID010
    KeyTooOld {
        /// The request.
        name: RequestName,
        /// The session's ttl.
        ttl: String,
    },
    /// 40001: the request's own outcome or checkpoint is newer than the snapshot.
    Unserializable(RequestName),
    /// 40001: another transaction inserts the same key while the index on it is being rebuilt.
    SeenAtOnce {
        /// The inbox session's name.
        session: String,
    },
    /// 40001: an outcome of the request was imported while this transaction executed it.
    RecordedBeside(RequestName),
    /// 40001: a reply or an acknowledgement that the request builds on is newer than the snapshot.
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
    /// 53200: the lock table had no room for the request's lock. Passes PostgreSQL's own error on.
    NoLock {
        /// The request.
        name: Box<RequestName>,
        /// PostgreSQL's message.
        message: String,
        /// PostgreSQL's hint.
        hint: String,
        /// The number of requests whose locks the transaction holds.
        held: usize,
    },
    /// 25006
    ReadOnly {
        /// The function that would have to write.
        function: &'static str,
        /// Why it would have to write.
        detail: String,
    },
    /// 42P01: the extension was dropped, or one of its tables.
    NotInstalled {
        /// The name of the table or index that is missing.
        relation: String,
    },
    /// 42P01: the table that keeps the session's requests is not there.
    NoJournal {
        /// The table's name, as the session has it or as given.
        journal: String,
    },
    /// 42501: the session's owner does not have the privileges of the table's owner.
    NotYourJournal {
        /// The table's name.
        journal: String,
        /// The session's name.
        session: String,
    },
    /// 42P16: the table cannot keep requests.
    UnfitJournal {
        /// The table's name.
        journal: String,
        /// What is missing or wrong.
        detail: String,
    },
    /// 09000: a trigger or a rule that somebody has added to a table kept a row back.
    NotWritten {
        /// The name of the table.
        relation: String,
    },
    /// 55000: the library and the tables are of two versions.
    OtherVersion {
        /// The version of the tables.
        tables: String,
    },
    /// 55000: the library is not preloaded, so there is no shared memory to look into.
    NotPreloaded {
        /// What would be there.
        what: &'static str,
    },
    /// XX001: a restore has left out tables, so what was done may look new.
    TablesNotRestored {
        /// The names of these tables.
        missing: String,
    },
    /// XX001: the session would be new, while there are rows that may have been its own.
    SessionsNotRestored {
        /// The new session's name.
        session: String,
        /// The name of the table that has such rows.
        table: &'static str,
        /// The id of the missing session that the rows belong to.
        of: String,
    },
    /// XX001: the tables have a state that the library never leaves.
    Corrupted {
        /// What is wrong.
        message: String,
    },
}

impl Error {
    /// The request or the session that an error of class `ID` tells of.
    pub fn about(&self) -> RequestName {
        match self {
            Error::PayloadMismatch(name)
            | Error::AlreadyBegun { name, .. }
            | Error::Discarded { name, .. }
            | Error::OutOfSequence { name, .. }
            | Error::ClaimSuperseded { name, .. }
            | Error::AlreadyDone { name, .. }
            | Error::NotBegun { name, .. }
            | Error::Unrecorded { name, .. }
            | Error::KeyTooOld { name, .. } => name.clone(),
            Error::SessionEnded { session, .. }
            | Error::Elsewhere { session, .. }
            | Error::SessionFenced { session }
            | Error::LateRegistration { session, .. } => RequestName::new(session, ""),
            _ => RequestName::new("", ""),
        }
    }
}

impl From<std::collections::TryReserveError> for Error {
    fn from(_: std::collections::TryReserveError) -> Error {
        Error::OutOfMemory
    }
}
