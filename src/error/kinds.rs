//! The table of errors: one variant for each mistake that a caller can make, and beside it its SQLSTATE, its message, its
//! DETAIL and its HINT. Texts that depend on the case come with the variant, from where the mistake is found.

use super::name::{RequestName, legible};
use crate::domain::class::Class;
use crate::domain::end::End;
use crate::domain::right::Right;
use crate::domain::version;
use pgrx::PgSqlErrorCode::{self, *};

/// The hint for a wait that only the setting bounds, and no argument.
pub const WAIT_BY_SETTING: &str = "Try again as it is, or wait longer (setting idempotence.wait).";

/// What the caller sees of an error.
pub struct Texts {
    pub(super) code: Code,
    /// The message.
    pub message: String,
    /// The DETAIL.
    pub detail: String,
    /// The HINT.
    pub hint: String,
}

/// An SQLSTATE.
pub(super) enum Code {
    /// One of class `ID`, as its five characters, and the request or the session that the error tells of.
    Own(&'static [u8; 5], RequestName),
    /// One of PostgreSQL's own.
    Standard(PgSqlErrorCode),
}

/// Why a request is not open in this transaction, although the call needs that it is.
#[derive(Debug)]
pub enum Missing {
    /// The transaction never began the request, or rolled back to a savepoint before the begin.
    Begin,
    /// The answer of begin was that the request is not the caller's to execute: it is done, or, `None`, in progress.
    Answered(Option<Class>),
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

/// Declares the errors. The texts are those of message, DETAIL and HINT. A literal may name the variant's fields in braces.
macro_rules! errors {
    ($($(#[$about:meta])* $kind:ident $({ $($field:ident: $type:ty),+ })? $(($inner:ident: $of:ty))?
       => $code:expr, $message:tt, $detail:tt, $hint:tt;)+) => {
        /// An error, with what its texts need.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the texts of an error say what its fields are")]
        pub enum Error {
            $($(#[$about])* $kind $({ $($field: $type),+ })? $(($of))?,)+
        }

        impl Error {
            /// Its SQLSTATE and its texts, as they may be shown.
            #[allow(clippy::useless_format, reason = "a text may name fields or none")]
            pub fn texts(self) -> Texts {
                use Code::{Own, Standard};
                match self {
                    $(Error::$kind $({ $($field),+ })? $(($inner))? => Texts {
                        code: $code,
                        message: errors!(@text $message),
                        detail: errors!(@text $detail),
                        hint: errors!(@text $hint),
                    },)+
                }
            }
        }
    };
    (@text $text:literal) => { legible(&format!($text)) };
    (@text $text:tt) => { legible(&String::from($text)) };
}

errors! {
    /// `what` is null, an argument or an element of one. `because` says why it must not be.
    NullArgument { what: String, because: String } =>
        Standard(ERRCODE_NULL_VALUE_NOT_ALLOWED),
        "{what} must not be null",
        because,
        "A NULL is most often a parameter that the client did not set.";

    /// An argument, or a combination of arguments, makes no sense.
    Invalid { message: String, detail: String, hint: &'static str } =>
        Standard(ERRCODE_INVALID_PARAMETER_VALUE), message, detail, hint;

    /// A function was called during a parallel query, by `process`.
    InParallelQuery { function: String, process: &'static str } =>
        Standard(ERRCODE_INVALID_TRANSACTION_STATE),
        "cannot execute {function}() during a parallel query",
        "{process} called the function.",
        "Declare every function that calls it PARALLEL UNSAFE, which is the default.";

    /// `what` is too long, too large or too many. The sizes have their units.
    LimitExceeded { what: String, found: String, limit: String, hint: &'static str } =>
        Own(b"ID009", RequestName::new("", "")),
        "{what} exceeds its limit",
        "Found {found}; the limit is {limit}.",
        hint;

    /// The command of `idem_run` gave more rows than the response has room for.
    SeveralRows { rows: u64 } =>
        Standard(ERRCODE_CARDINALITY_VIOLATION),
        "the command gave more than one row",
        "Found {rows} rows.",
        "The response is the first column of the one row; aggregate, with jsonb_agg() say, or add LIMIT 1.";

    /// `idem_run` does not execute `SELECT … INTO`.
    SelectInto =>
        Standard(ERRCODE_FEATURE_NOT_SUPPORTED),
        "idem_run does not execute SELECT ... INTO",
        "In PL/pgSQL INTO names variables, and not a table to be made.",
        "Write CREATE TABLE ... AS.";

    /// `idem_run` does not execute `COPY` from the client or to it.
    CopyCommand =>
        Standard(ERRCODE_FEATURE_NOT_SUPPORTED),
        "idem_run does not execute COPY from or to the client",
        "The client waits for an answer, and not for data.",
        "Send the rows as args, or copy from a file on the server.";

    /// `idem_run` does not execute `COMMIT` and its like.
    TransactionCommand =>
        Standard(ERRCODE_FEATURE_NOT_SUPPORTED),
        "idem_run does not execute transaction commands",
        "The command and its outcome are of one transaction.",
        "Begin and end the transaction around idem_run().";

    /// No standing session has this name.
    NoSuchSession { session: String } =>
        Standard(ERRCODE_UNDEFINED_OBJECT),
        "session \"{session}\" does not exist",
        "No standing session of this name is in this database, or it was dropped.",
        "Look for a typing mistake, or for session and request in the wrong order; or make the session once with idem_create_session().";

    /// A session has the name and other options, which `detail` tells. `dropped`: only its tombstone is there.
    SessionExists { session: String, dropped: bool, detail: String, hint: &'static str } =>
        Standard(ERRCODE_DUPLICATE_OBJECT),
        (match dropped {
            true => format!("session \"{session}\" was dropped with other options"),
            false => format!("session \"{session}\" already exists with other options"),
        }),
        detail,
        hint;

    /// The same whatever is kept in the session, so that it tells nothing of that.
    NotYours { session: String, action: &'static str, right: Right } =>
        Standard(ERRCODE_INSUFFICIENT_PRIVILEGE),
        "permission denied for session \"{session}\"",
        (match right {
            Right::Own => format!("The current role does not have the privileges of the session's owner, which it takes to {action}."),
            Right::Use => format!("The current role has the privileges neither of the session's owner nor of a role that it is lent to, which it takes to {action}."),
        }),
        (match right {
            Right::Own => "Become a member of the role that owns it (GRANT), or use a session of your own.",
            Right::Use => "Become a member of the role that owns it (GRANT), have its owner lend it to you (idem_alter_session), or use a session of your own.",
        });

    /// A session can be given only to a role whose privileges the giver has.
    CannotGive { session: String, role: String } =>
        Standard(ERRCODE_INSUFFICIENT_PRIVILEGE),
        "permission denied to make role \"{role}\" the owner of session \"{session}\"",
        "The current role does not have the privileges of role \"{role}\".",
        "Name a role that you are a member of, or let a superuser do it.";

    /// No role has this oid.
    NoSuchRole { role: u32 } =>
        Standard(ERRCODE_UNDEFINED_OBJECT),
        "role with OID {role} does not exist",
        "A session belongs, and is lent, to a role.",
        "Name the role instead of giving its number.";

    /// The payload is not the one that was sent first.
    PayloadMismatch(name: RequestName) =>
        Own(b"ID001", name.clone()),
        "{name} came with another payload",
        "The fingerprint kept from the first time differs from that of the payload given now.",
        "A retry must send what was sent first; a new request needs a key of its own.";

    /// This very transaction is at work on the request.
    AlreadyBegun { name: RequestName, hint: &'static str } =>
        Own(b"ID002", name.clone()),
        "{name} is already begun in this transaction",
        "This transaction holds the claim and has neither recorded nor released it.",
        hint;

    /// `window`: the number of replies that the session keeps of each stream.
    Discarded { name: RequestName, window: i32 } =>
        Own(b"ID003", name.clone()),
        "{name} is over, and its answer is no longer kept",
        "It was done, or skipped. Each stream keeps its newest answers, {window} at most, and none that the client has acknowledged.",
        "Do not execute it under another number. A client that sends a number only once the answer to the one a window before is in never loses an answer.";

    /// `how` the client session ended; `None`: nothing is known of it.
    SessionEnded { session: String, how: Option<End> } =>
        Own(b"ID004", RequestName::new(&session, "")),
        (match how {
            None => format!("client session \"{session}\" was never registered, or has ended"),
            Some(_) => format!("client session \"{session}\" has ended"),
        }),
        (match how {
            None => "A name that begins with a UUID is that of a client session, and nothing is known of this one.",
            Some(End::Closed) => "Its client closed it.",
            Some(_) => "Its client was silent for longer than its timeout.",
        }),
        (match how {
            None => "Call idem_register() and use the session that it gives. Standing sessions have names that do not look like a UUID; look for session and request given in the wrong order.",
            Some(_) => "Find out with idem_lookup() what was done, then call idem_register() for a new session.",
        });

    /// Another process of the client has taken the session's place.
    SessionFenced { session: String } =>
        Own(b"ID005", RequestName::new(&session, "")),
        "client session \"{session}\" was fenced",
        "Its client registered anew, and the new session took its place.",
        "Another process is the client now: this one has to stop, or to register to take over.";

    /// `session` is the client's present one.
    LateRegistration { client: String, session: String } =>
        Own(b"ID005", RequestName::new(&session, "")),
        "this registration of client \"{client}\" comes too late",
        "Its request_id was made before the client's present session \"{session}\" was registered. Nobody is fenced.",
        "A late copy is to be dropped. A process that is the client now registers with a request_id that it makes now, best by idem_generate_id(): a clock of its own may be behind.";

    /// The session belongs to `node`. `bound`: it is a standing session that is bound to the node; else it is a client session
    /// that nothing is known of.
    Elsewhere { session: String, node: String, here: String, bound: bool } =>
        Own(b"ID012", RequestName::new(&session, "")),
        "session \"{session}\" belongs to node \"{node}\"",
        (match bound {
            true => format!("This is node \"{here}\", where the session is only a signpost."),
            false => format!("This is node \"{here}\", where nothing is known of the session, nor of what was done in it."),
        }),
        "Send the call to node \"{node}\" as it is: only there it is known whether the request was done. If this server is that node under a new name, set idempotence.node to \"{node}\" here.";

    /// Nothing is known of the session, but a transaction that has not ended holds it.
    SessionInDoubt { session: String } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "client session \"{session}\" is in use by a transaction that has not ended",
        "Nothing is known of the session, but a transaction, a prepared one say, holds it.",
        "Try again when that transaction has ended; pg_prepared_xacts lists the prepared ones.";

    /// This standby knows nothing of the session.
    SessionNotHere { session: String } =>
        Standard(ERRCODE_READ_ONLY_SQL_TRANSACTION),
        "client session \"{session}\" is not known on this standby",
        "It has no outcome yet, or that has not arrived here; or it never was.",
        "Send its requests to the primary.";

    /// This very transaction has begun requests in the session.
    SessionInUse { session: String, action: &'static str } =>
        Standard(ERRCODE_OBJECT_IN_USE),
        "cannot {action} client session \"{session}\": this transaction has begun requests in it",
        "A session in use neither ends nor is handed over.",
        "Record or release them first, or do it in a transaction of its own.";

    /// Requests could still begin in a session that is to be exported. `closed_here`: this very transaction has dropped it or
    /// bound it to another node.
    SessionOpen { session: String, closed_here: bool } =>
        Standard(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
        "session \"{session}\" is open, and cannot be exported",
        (match closed_here {
            true => "It was closed in this transaction, and nobody else knows that before the commit.",
            false => "What begins here after the export would be executed again where the session goes on.",
        }),
        "Its owner drops it (idem_drop_session), or binds it to the node where it goes on (idem_alter_session), and commits; export it then. What was recorded stays: made again, or bound to this node, the session has it.";

    /// A transaction that may have executed requests of the session has not ended. `request`: one that is at work, if one is
    /// known. `holders`: who is at work, in words.
    NotAtRest { session: String, request: Option<RequestName>, holders: String } =>
        Standard(ERRCODE_OBJECT_IN_USE),
        "session \"{session}\" cannot be exported while its requests may be at work",
        (match request {
            Some(request) => format!("At work is {request}. What was begun before that may be held by {holders}."),
            None => format!("What was begun before that may be held by {holders}."),
        }),
        WAIT_BY_SETTING;

    /// This very transaction has executed requests, or may have.
    ExportsOwn { session: String } =>
        Standard(ERRCODE_OBJECT_IN_USE),
        "cannot export session \"{session}\": this transaction has begun requests itself",
        "What it did may still be rolled back, and would count as done where the session goes on.",
        "Export it in a transaction of its own.";

    /// Something of the session is newer than the snapshot.
    ExportsUnseen { session: String } =>
        Standard(ERRCODE_T_R_SERIALIZATION_FAILURE),
        "could not serialize access: requests of session \"{session}\" ended after this transaction's snapshot",
        "What they recorded is committed, but neither that nor their effects are visible to this transaction.",
        "Retry the transaction: its snapshot will see them.";

    /// This very transaction has begun the request that it gives up.
    GivesUpOwn(name: RequestName) =>
        Standard(ERRCODE_OBJECT_IN_USE),
        "cannot give up {name}: this transaction has begun it",
        "A number that was given up never takes effect, and this one is still open.",
        "Record or release it first, or give it up in a transaction of its own.";

    /// `detail`: where the request stands in its stream.
    OutOfSequence { name: RequestName, detail: String, hint: &'static str } =>
        Own(b"ID006", name.clone()), "{name} is out of sequence", detail, hint;

    /// The token holds no claim of the request.
    ClaimSuperseded { name: RequestName, token: i64, how: Superseded } =>
        Own(b"ID005", name.clone()),
        "token {token} does not hold {name}",
        (match &how {
            Superseded::Gone => "No lease of this request has this token: the request was taken over, released or given up, or its lease was lost in a crash. Or the begin that gave the token was rolled back, or it is the token of another request.".into(),
            Superseded::Done(Class::Cancelled) => "The request was settled, and is never to be executed.".into(),
            Superseded::Done(class) => format!("The request is done, with status \"{}\", and another caller has recorded that.", class.status()),
            Superseded::Over => "Its number was done or given up, and no answer of it is kept.".into(),
            Superseded::Recorded => String::from("The outcome was recorded with this token, which ended its lease."),
        }),
        (match how {
            Superseded::Recorded => "Nothing is left to do: idem_lookup() gives the outcome.",
            _ => "Stop the work: somebody else may be doing it. Ask idem_begin() or idem_lookup() what became of the request. Under a claim without a lease leave token out.",
        });

    /// How the request ended, and when that was recorded.
    AlreadyDone { name: RequestName, class: Class, recorded_at: String } =>
        Own(b"ID011", name.clone()),
        (match class {
            Class::Cancelled => format!("{name} was settled and is never executed"),
            _ => format!("{name} is already done"),
        }),
        (format!("Its status is \"{}\", recorded at {recorded_at}.", class.status())),
        "Roll back, and get the answer with idem_lookup().";

    /// Somebody must look at the request before it is executed. `point`: that of its checkpoint. `taken_over`: the lease of
    /// another holder ran out. `given_up`: all attempts that its session allows were begun.
    MustLook { name: RequestName, point: Option<String>, taken_over: bool, given_up: bool } =>
        Standard(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
        "{name} was begun before and is not done",
        (match (point, taken_over) {
            _ if given_up => "A lease of it ran out, and all attempts that its session allows were begun.".into(),
            (Some(point), false) => format!("It stopped at its checkpoint \"{point}\"."),
            (Some(point), true) => format!("A lease of it ran out, at or after its checkpoint \"{point}\": what its holder did outside the database may have happened."),
            (None, _) => String::from("A lease of it ran out: what its holder did outside the database may have happened."),
        }),
        (match given_up {
            true => "Begin it with idem_begin(), which records that it has failed.",
            false => "Begin it with idem_begin(), look whether its effect happened, and go on from the point that the answer gives.",
        });

    /// Another holder has a lease of the request.
    Leased { name: RequestName, until: String, hint: &'static str } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "{name} is still in progress",
        "The lease that is in the way lasts until {until}.",
        hint;

    /// An admin would record a request that nobody has left unfinished.
    NothingUnfinished { name: RequestName } =>
        Standard(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
        "nothing of {name} is unfinished",
        "No lease of it ran out, and it stopped at no checkpoint.",
        "A request that was never begun needs no repair: its caller begins it (idem_begin), or settles it (idem_settle).";

    /// Others use a table that is to be made logged or unlogged. `what`: what the table keeps.
    TableInUse { relation: String, what: &'static str } =>
        Standard(ERRCODE_OBJECT_IN_USE),
        "the persistence of {what} cannot change while table \"{relation}\" is in use",
        "The table is rewritten, which takes its lock alone. Another transaction has it locked, and is not waited for, so that nobody waits behind.",
        "Try again when no transaction uses it. pg_locks tells who does.";

    /// A lease keeps the session. `until`: when the last one runs out.
    SessionLeased { session: String, action: &'static str, until: String } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "cannot {action} client session \"{session}\": a request of it is leased",
        "Its last lease runs out at {until}.",
        "Wait until the lease runs out; whoever has its token may record or release it before. A client that starts again may take the session over with its leases: resume => true.";

    /// `function` needs an open request, and this one is not open.
    NotBegun { name: RequestName, missing: Missing, function: &'static str } =>
        Own(b"ID007", name.clone()),
        "{name} is not begun in this transaction",
        (format!(
            "{function}() needs a request that idem_begin() answered with \"started\" or \"taken_over\" in the same transaction; {}.",
            match missing {
                Missing::Begin => "this one was not begun here, or a rollback to a savepoint took it back".into(),
                Missing::Answered(class) => format!("it answered this one with \"{}\"", class.map_or("in_progress", Class::status)),
                Missing::Recorded => "this one has been recorded already".into(),
                Missing::Released => "this one has been released".into(),
                Missing::Token => String::from("this one was begun with a lease, and the call has no token"),
            }
        )),
        (match missing {
            Missing::Begin => "Call idem_begin() first, in the same transaction, and go on only when its status is \"started\" or \"taken_over\". In autocommit each statement is a transaction of its own.",
            Missing::Answered(None) => "Somebody else is at work on it. Look at the status before the work; roll back what was done since, and ask again later.",
            Missing::Answered(Some(Class::Cancelled)) => "It was settled and is never to be executed. Look at the status before the work; roll back what was done since.",
            Missing::Answered(_) => "It was done before, and the response that idem_begin() gave is the answer. Look at the status before the work; roll back what was done since.",
            Missing::Recorded => "A request has one outcome; a new operation needs a key of its own.",
            Missing::Released => "To go on with it after all, call idem_begin() again.",
            Missing::Token => "If idem_begin() gave you the lease, give its token (token => ...). If it did not, whoever has the lease is at work on the request.",
        });

    /// The transaction ends with this open request and `others`. `preparing`: by `PREPARE TRANSACTION`.
    Unrecorded { name: RequestName, others: usize, preparing: bool } =>
        Own(b"ID008", name.clone()),
        "{name} was begun but neither recorded, checkpointed nor released",
        (format!(
            "{} would keep its effects without an outcome, and a retry would execute it again.{}",
            if preparing { "PREPARE TRANSACTION" } else { "COMMIT" },
            match others {
                0 => String::new(),
                1 => " One other request is open as well.".into(),
                n => format!(" {n} other requests are open as well."),
            }
        )),
        "Call idem_record() before the end of the transaction, or idem_release() to give it up. In autocommit each statement is a transaction of its own: start one with BEGIN.";

    /// `ttl`: that of the session.
    KeyTooOld { name: RequestName, ttl: String } =>
        Own(b"ID010", name.clone()),
        "{name} is too old to tell whether it was done",
        "Its key's time is more than the session's ttl ({ttl}) ago and nothing is kept of it: it was never recorded, or its outcome has expired.",
        "Find out whether its effect happened; if it did not, send it under a fresh key.";

    /// The request's own outcome or checkpoint is newer than the snapshot.
    Unserializable(name: RequestName) =>
        Standard(ERRCODE_T_R_SERIALIZATION_FAILURE),
        "could not serialize access: {name} was answered after this transaction's snapshot",
        "Its outcome or checkpoint is committed, but its effects are not visible to this transaction.",
        "Retry the transaction: it will get the answer.";

    /// Another transaction inserts the same key into an inbox while the index on it is being rebuilt.
    SeenAtOnce { session: String } =>
        Standard(ERRCODE_T_R_SERIALIZATION_FAILURE),
        "could not serialize access: another transaction has seen a request of session \"{session}\" at the same moment",
        "The unique index that tells them apart is just being rebuilt (REINDEX CONCURRENTLY).",
        "Retry the transaction.";

    /// An outcome of the request is being imported, or was, while this transaction was at work on it.
    RecordedBeside(name: RequestName) =>
        Standard(ERRCODE_T_R_SERIALIZATION_FAILURE),
        "could not serialize access: the outcome of {name} came from another transaction",
        "One of the two imports or restores it, and that has not ended, or was not seen before.",
        "Retry the transaction: once the other one has ended it will get the answer.";

    /// A reply or an acknowledgement that the request builds on is newer than the snapshot.
    BuildsOnUnseen(name: RequestName) =>
        Standard(ERRCODE_T_R_SERIALIZATION_FAILURE),
        "could not serialize access: what {name} builds on came after this transaction's snapshot",
        "A reply or an acknowledgement before it is committed, but not visible to this transaction.",
        "Retry the transaction.";

    /// A session keeps its outcomes for less time than retries take to come. A warning.
    BriefTtl { session: String, was: String, is: String } =>
        Standard(ERRCODE_WARNING),
        "session \"{session}\" keeps outcomes for {is} only",
        "The ttl was {was}. A retry that comes after it executes its request again.",
        "Give it a ttl that outlasts all retries, or roll back.";

    /// A table of ours is locked, by whoever `by` tells.
    TableLocked { by: String } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "a table of the extension is locked",
        "Found: {by}.",
        "Every call that needs the table waits for the end of that transaction: pg_terminate_backend() ends it, or COMMIT PREPARED or ROLLBACK PREPARED.";

    /// `what` is in another transaction's hands.
    WaitRanOut { what: String, hint: &'static str } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "{what} is still in progress",
        "Another transaction holds it, and the wait ran out.",
        hint;

    /// What is waited for is committed, and waits for a synchronous standby. `pid`: the process whose commit waits.
    AwaitsStandby { what: String, pid: i32, hint: &'static str } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "{what} is still in progress",
        "Process {pid} has it. That has written its commit, and waits for a synchronous standby: to end the process undoes nothing.",
        "{hint} The row standby of idempotence.health tells which standby is away.";

    /// What is waited for is committed on this server, and a failover may still take it back. `on_standby`: this server is a
    /// standby.
    NotDurable { what: String, on_standby: bool, hint: &'static str } =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "{what} is still in progress",
        (match on_standby {
            false => "It is done, and committed here, but not yet as durable as a commit of the caller's would be: a synchronous standby may be away.",
            true => "It is done here, but this standby has not received that from the server that it follows. If it was the primary before, the new primary may lack it.",
        }),
        (match on_standby {
            false => format!("{hint} The row standby of idempotence.health tells which standby is away."),
            true => String::from("Ask the primary."),
        });

    /// The commit of a transaction that records something would be acknowledged without its synchronous standby.
    CommitWouldNotWait =>
        Standard(ERRCODE_LOCK_NOT_AVAILABLE),
        "the commit would not wait for its synchronous standby",
        "synchronous_standby_names is set, but the checkpointer has not read the setting yet, and the wait for it ran out. Until then PostgreSQL acknowledges commits that a failover may lose.",
        "Send the request again: nothing was committed. The checkpointer reads the setting at the end of its checkpoint at the latest; CHECKPOINT returns after that.";

    /// Rust has found no memory.
    OutOfMemory =>
        Standard(ERRCODE_OUT_OF_MEMORY),
        "out of memory",
        "The extension found none for what the call needs.",
        "Send less in one call, or give the server's processes more memory.";

    /// The lock table had no room for the request's lock. Passes PostgreSQL's own message and hint on. `held`: of how many
    /// requests the transaction holds the locks.
    NoLock { name: Box<RequestName>, message: String, hint: String, held: usize } =>
        Standard(ERRCODE_OUT_OF_MEMORY),
        message,
        "The lock of {name} could not be taken. This transaction holds those of {held} requests.",
        hint;

    /// `function` would have to write, and `detail` says why.
    ReadOnly { function: &'static str, detail: String } =>
        Standard(ERRCODE_READ_ONLY_SQL_TRANSACTION),
        "cannot execute {function} in a read-only transaction",
        detail,
        "Run it in a read-write transaction, on the primary.";

    /// The extension was dropped.
    NotInstalled { relation: String } =>
        Standard(ERRCODE_UNDEFINED_TABLE),
        "relation \"{relation}\" does not exist",
        "It belongs to the extension \"idempotence\", which is not in this database any more.",
        "Create the extension, or restore it.";

    /// The table that keeps the session's requests is not there.
    NoJournal { journal: String } =>
        Standard(ERRCODE_UNDEFINED_TABLE),
        "journal {journal} does not exist",
        "The requests of the session are rows of this table. What it has kept cannot be told without it.",
        "Restore the table, or give it its name back. For a new session make one with idem_create_journal().";

    /// The session's owner does not have the privileges of the table's owner.
    NotYourJournal { journal: String, session: String } =>
        Standard(ERRCODE_INSUFFICIENT_PRIVILEGE),
        "permission denied to keep the requests of session \"{session}\" in {journal}",
        "The session's owner does not have the privileges of the table's owner. What has expired is deleted from a journal, whoever wrote it.",
        "Make the session as the table's owner or as a member of it (owner => ...), and lend it to others (usable_by => ...).";

    /// `detail`: what the table lacks, or what is wrong with it.
    UnfitJournal { journal: String, detail: String } =>
        Standard(ERRCODE_INVALID_TABLE_DEFINITION),
        "table {journal} cannot be a journal as it is",
        detail,
        "idem_create_journal() makes such a table. It may have columns of its own, if each has a default or may be null, and no code but superusers' triggers.";

    /// A trigger or a rule that somebody has added to a table kept a row back.
    NotWritten { relation: String } =>
        Standard(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
        "a row of table \"{relation}\" was not written",
        "A trigger, a rule or a policy that somebody has added to the table kept the row back.",
        "Let no trigger of this table give NULL, no rule do something instead, and no policy hide the row.";

    /// The library and the tables are of two versions.
    OtherVersion { tables: String } =>
        Standard(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
        (format!("extension \"idempotence\" is at version {tables} in this database, but its library is that of version {}", version::LIBRARY)),
        (match version::is_older(&tables, version::LIBRARY) {
            true => "The library was replaced, and the objects in this database were not, so that nothing can be done or answered yet.",
            false => "The objects in this database are newer than the library that this process has loaded, so that nothing can be done or answered by it.",
        }),
        (match version::is_older(&tables, version::LIBRARY) {
            true => "ALTER EXTENSION idempotence UPDATE in this database; then try again as it is.",
            false => "Connect again, for a backend keeps the library that it has loaded; a preloaded one is replaced by a restart of the server. If that does not help, install the library of the version that the database has.",
        });

    /// There is no shared memory to look into. `what`: what would be there.
    NotPreloaded { what: &'static str } =>
        Standard(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
        "{what} are not there",
        "They are kept in shared memory, which there is only if the server preloads the library.",
        "Add idempotence to shared_preload_libraries and restart the server.";

    /// A restore has left out tables, so what was done may look new.
    TablesNotRestored { missing: String } =>
        Standard(ERRCODE_DATA_CORRUPTED),
        "a restore of the extension's tables is not complete",
        "The key of the digests was restored, but these tables were not: {missing}. Their COPY has failed, or is still to come. What was done could be executed again.",
        "Create the roles that the restore missed, and restore the data of these tables again. Or give up what they had: idem_accept_restore().";

    /// A restore has brought the key of the digests once more.
    SecretRestoredTwice =>
        Standard(ERRCODE_UNIQUE_VIOLATION),
        "the key of the digests has been restored before",
        "Table \"idempotence.secret\" has what this restore brings.",
        "If it was this dump, nothing is lost: restore the data of the tables that the row restore of idempotence.health names, if it names any. Another dump goes into an empty database, or is restored with --clean.";

    /// A session is here with outcomes that were recorded with another key than the one in use.
    OfAnotherKey { session: String } =>
        Standard(ERRCODE_DATA_CORRUPTED),
        "there are outcomes that were recorded with another key than the one in use",
        "Session \"{session}\" has some: it came with a dump whose key is not here, or its key was deleted. What was done in it would be executed again.",
        "Restore a backup, or all tables of the dump into a database without sessions; delete no key. docs/operations.md, Dump and restore.";

    /// The session would be new, while `table` has rows that may have been its own. `of`: the id of the session that they
    /// belong to, which is missing.
    SessionsNotRestored { session: String, table: &'static str, of: String } =>
        Standard(ERRCODE_DATA_CORRUPTED),
        "session \"{session}\" cannot be new: a restore has left out sessions",
        "Table \"idempotence.{table}\" has rows of session {of}, which is not in table \"idempotence.session\". If that is this one, made anew it would execute again what was done.",
        "Create the roles that the restore missed, and restore the data of table idempotence.session again; what it had is found then. Or give up what has no session: idem_accept_restore().";

    /// The tables have a state that the library never leaves.
    Corrupted { message: String } =>
        Standard(ERRCODE_DATA_CORRUPTED),
        message,
        "The tables of schema \"idempotence\" do not fit together.",
        "Were they changed by hand, or restored in part? The rows tables, restore and secret of idempotence.health tell.";
}

impl From<std::collections::TryReserveError> for Error {
    fn from(_: std::collections::TryReserveError) -> Error {
        Error::OutOfMemory
    }
}
