//! The SQLSTATE and the texts of each error, in one table.

use super::kinds::{Error, Missing, NotExecuted, Superseded};
use crate::domain::class::{Answered, Class};
use crate::domain::end::End;
use crate::domain::right::Right;
use crate::domain::version;
use pgrx::PgSqlErrorCode;

/// The hint for a wait that only the setting bounds, and no argument.
pub const WAIT_BY_SETTING: &str = "Try again as it is, or wait longer (setting idempotence.wait).";

/// What the caller sees of an error.
pub(super) struct Texts {
    pub code: Code,
    pub message: String,
    pub detail: String,
    pub hint: String,
}

/// An SQLSTATE.
pub(super) enum Code {
    /// One of class `ID`, as its five characters.
    Own(&'static [u8; 5]),
    /// One of PostgreSQL's own.
    Standard(PgSqlErrorCode),
}

/// Gives the SQLSTATE and the texts of an error.
pub(super) fn describe(error: Error) -> Texts {
    use Code::{Own, Standard};
    let report = |code, message: String, detail: String, hint: &str| Texts { code, message, detail, hint: hint.into() };
    match error {
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
        Error::SeveralRows { rows } => report(
            Standard(PgSqlErrorCode::ERRCODE_CARDINALITY_VIOLATION),
            "the command gave more than one row".into(),
            format!("Found {rows} rows."),
            "The response is the first column of the one row; aggregate, with jsonb_agg() say, or add LIMIT 1.",
        ),
        Error::NotExecuted(command) => report(
            Standard(PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED),
            match command {
                NotExecuted::SelectInto => "idem_run does not execute SELECT ... INTO".into(),
                NotExecuted::Copy => "idem_run does not execute COPY from or to the client".into(),
                NotExecuted::OfTransaction => "idem_run does not execute transaction commands".into(),
            },
            match command {
                NotExecuted::SelectInto => "In PL/pgSQL INTO names variables, and not a table to be made.".into(),
                NotExecuted::Copy => "The client waits for an answer, and not for data.".into(),
                NotExecuted::OfTransaction => "The command and its outcome are of one transaction.".into(),
            },
            match command {
                NotExecuted::SelectInto => "Write CREATE TABLE ... AS.",
                NotExecuted::Copy => "Send the rows as args, or copy from a file on the server.",
                NotExecuted::OfTransaction => "Begin and end the transaction around idem_run().",
            },
        ),
        Error::NoSuchSession { session } => report(
            Standard(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT),
            format!("session \"{session}\" does not exist"),
            "No standing session of this name is in this database, or it was dropped.".into(),
            "Look for a typing mistake, or for session and request in the wrong order; or make the session once with idem_create_session().",
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
        Error::NotYours { session, action, right } => report(
            Standard(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE),
            format!("permission denied for session \"{session}\""),
            match right {
                Right::Own => format!(
                    "The current role does not have the privileges of the session's owner, which it takes to {action}."
                ),
                Right::Use => format!(
                    "The current role has the privileges neither of the session's owner nor of a role that it is lent to, which it takes to {action}."
                ),
            },
            match right {
                Right::Own => "Become a member of the role that owns it (GRANT), or use a session of your own.",
                Right::Use => {
                    "Become a member of the role that owns it (GRANT), have its owner lend it to you (idem_alter_session), or use a session of your own."
                }
            },
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
            "A session belongs, and is lent, to a role.".into(),
            "Name the role instead of giving its number.",
        ),
        Error::PayloadMismatch(name) => report(
            Own(b"ID001"),
            format!("{name} came with another payload"),
            "The fingerprint kept from the first time differs from that of the payload given now.".into(),
            "A retry must send what was sent first; a new request needs a key of its own.",
        ),
        Error::AlreadyBegun { name, hint } => report(
            Own(b"ID002"),
            format!("{name} is already begun in this transaction"),
            "This transaction holds the claim and has neither recorded nor released it.".into(),
            hint,
        ),
        Error::Discarded { name, window } => report(
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
            "A name that begins with a UUID is that of a client session, and nothing is known of this one.".into(),
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
        Error::LateRegistration { client, session } => report(
            Own(b"ID005"),
            format!("this registration of client \"{client}\" comes too late"),
            format!(
                "Its request_id was made before the client's present session \"{session}\" was registered. Nobody is fenced."
            ),
            "A late copy is to be dropped. A process that is the client now registers with a request_id that it makes now, best by idem_generate_id(): a clock of its own may be behind.",
        ),
        Error::Elsewhere { session, node, here, bound } => report(
            Own(b"ID012"),
            format!("session \"{session}\" belongs to node \"{node}\""),
            match bound {
                true => format!("This is node \"{here}\", where the session is only a signpost."),
                false => format!("This is node \"{here}\", where nothing is known of the session, nor of what was done in it."),
            },
            &format!(
                "Send the call to node \"{node}\" as it is: only there it is known whether the request was done. If this server is that node under a new name, set idempotence.node to \"{node}\" here."
            ),
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
        Error::SessionOpen { session, closed_here } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
            format!("session \"{session}\" is open, and cannot be exported"),
            match closed_here {
                true => "It was closed in this transaction, and nobody else knows that before the commit.".into(),
                false => "What begins here after the export would be executed again where the session goes on.".into(),
            },
            "Drop it with idem_drop_session(), or bind it to the node where it goes on with idem_alter_session(); commit, and export it then. What was recorded stays: made again, or bound to this node, the session has it.",
        ),
        Error::NotAtRest { session, request, holders } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE),
            format!("session \"{session}\" cannot be exported while its requests may be at work"),
            match request {
                Some(request) => format!("At work is {request}. What was begun before that may be held by {holders}."),
                None => format!("What was begun before that may be held by {holders}."),
            },
            WAIT_BY_SETTING,
        ),
        Error::ExportsOwn { session } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE),
            format!("cannot export session \"{session}\": this transaction has begun requests itself"),
            "What it did may still be rolled back, and would count as done where the session goes on.".into(),
            "Export it in a transaction of its own.",
        ),
        Error::ExportsUnseen { session } => report(
            Standard(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE),
            format!("could not serialize access: requests of session \"{session}\" ended after this transaction's snapshot"),
            "What they recorded is committed, but neither that nor their effects are visible to this transaction.".into(),
            "Retry the transaction: its snapshot will see them.",
        ),
        Error::GivesUpOwn(name) => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE),
            format!("cannot give up {name}: this transaction has begun it"),
            "A number that was given up never takes effect, and this one is still open.".into(),
            "Record or release it first, or give it up in a transaction of its own.",
        ),
        Error::ClaimSuperseded { name, token, how } => {
            let is_recorded = matches!(how, Superseded::Recorded);
            report(
            Own(b"ID005"),
            format!("token {token} does not hold {name}"),
            match how {
                Superseded::Gone => {
                    "No lease of this request has this token: the request was taken over, released or given up, or its lease was lost in a crash. Or the begin that gave the token was rolled back, or it is the token of another request.".into()
                }
                Superseded::Done(Class::Cancelled) => "The request was settled, and is never to be executed.".into(),
                Superseded::Done(class) => {
                    format!("The request is done, with status \"{}\", and another caller has recorded that.", class.status())
                }
                Superseded::Over => "Its number was done or given up, and no answer of it is kept.".into(),
                Superseded::Recorded => "The outcome was recorded with this token, which ended its lease.".into(),
            },
            match is_recorded {
                true => "Nothing is left to do: idem_lookup() gives the outcome.",
                false => {
                    "Stop the work: somebody else may be doing it. Ask idem_begin() or idem_lookup() what became of the request. Under a claim without a lease leave token out."
                }
            },
        )
        }
        Error::AlreadyDone { name, class, recorded_at } => report(
            Own(b"ID011"),
            match class {
                Class::Cancelled => format!("{name} was settled and is never executed"),
                _ => format!("{name} is already done"),
            },
            format!("Its status is \"{}\", recorded at {recorded_at}.", class.status()),
            "Roll back, and get the answer with idem_lookup().",
        ),
        Error::MustLook { name, point, taken_over, given_up } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
            format!("{name} was begun before and is not done"),
            match (point, taken_over) {
                _ if given_up => "A lease of it ran out, and all attempts that its session allows were begun.".into(),
                (Some(point), false) => format!("It stopped at its checkpoint \"{point}\"."),
                (Some(point), true) => {
                    format!("A lease of it ran out, at or after its checkpoint \"{point}\": what its holder did outside the database may have happened.")
                }
                (None, _) => {
                    "A lease of it ran out: what its holder did outside the database may have happened.".into()
                }
            },
            if given_up {
                "Begin it with idem_begin(), which records that it has failed."
            } else {
                "Begin it with idem_begin(), look whether its effect happened, and go on from the point that the answer gives."
            },
        ),
        Error::Leased { name, until, hint } => report(
            Standard(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE),
            format!("{name} is still in progress"),
            format!("The lease that is in the way lasts until {until}."),
            hint,
        ),
        Error::NothingUnfinished { name } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
            format!("nothing of {name} is unfinished"),
            "No lease of it ran out, and it stopped at no checkpoint.".into(),
            "A request that was never begun needs no repair: begin it with idem_begin(), or settle it with idem_settle().",
        ),
        Error::TableInUse { relation, what } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_IN_USE),
            format!("the persistence of {what} cannot change while table \"{relation}\" is in use"),
            "The table is rewritten, which takes its lock alone. Another transaction has it locked, and is not waited for, so that nobody waits behind.".into(),
            "Try again when no transaction uses it. pg_locks tells who does.",
        ),
        Error::SessionLeased { session, action, until } => report(
            Standard(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE),
            format!("cannot {action} client session \"{session}\": a request of it is leased"),
            format!("Its last lease runs out at {until}."),
            "Wait until the lease runs out; whoever has its token may record or release it before. A client that starts again may take the session over with its leases: resume => true.",
        ),
        Error::NotBegun { name, missing, function } => report(
            Own(b"ID007"),
            format!("{name} is not begun in this transaction"),
            format!(
                "{function}() needs a request that idem_begin() answered with \"started\" or \"taken_over\" in the same transaction; {}.",
                match missing {
                    Missing::Begin => "this one was not begun here, or a rollback to a savepoint took it back",
                    Missing::Answered(Answered::Done(Class::Succeeded)) => "it answered this one with \"succeeded\"",
                    Missing::Answered(Answered::Done(Class::Failed)) => "it answered this one with \"failed\"",
                    Missing::Answered(Answered::Done(Class::Cancelled)) => "it answered this one with \"cancelled\"",
                    Missing::Answered(Answered::InProgress) => "it answered this one with \"in_progress\"",
                    Missing::Recorded => "this one has been recorded already",
                    Missing::Released => "this one has been released",
                    Missing::Token => "this one was begun with a lease, and the call has no token",
                }
            ),
            match missing {
                Missing::Begin => {
                    "Call idem_begin() first, in the same transaction, and go on only when its status is \"started\" or \"taken_over\". In autocommit each statement is a transaction of its own."
                }
                Missing::Answered(Answered::InProgress) => {
                    "Somebody else is at work on it. Look at the status before the work; roll back what was done since, and ask again later."
                }
                Missing::Answered(Answered::Done(Class::Cancelled)) => {
                    "It was settled and is never to be executed. Look at the status before the work; roll back what was done since."
                }
                Missing::Answered(_) => {
                    "It was done before, and the response that idem_begin() gave is the answer. Look at the status before the work; roll back what was done since."
                }
                Missing::Recorded => "A request has one outcome; a new operation needs a key of its own.",
                Missing::Released => "To go on with it after all, call idem_begin() again.",
                Missing::Token => {
                    "If idem_begin() gave you the lease, give its token (token => ...). If it did not, whoever has the lease is at work on the request."
                }
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
        Error::SeenAtOnce { session } => report(
            Standard(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE),
            format!(
                "could not serialize access: another transaction has seen a request of session \"{session}\" at the same moment"
            ),
            "The unique index that tells them apart is just being rebuilt (REINDEX CONCURRENTLY).".into(),
            "Retry the transaction.",
        ),
        Error::RecordedBeside(name) => report(
            Standard(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE),
            format!("could not serialize access: the outcome of {name} came from another transaction"),
            "It was imported after this transaction had looked for it.".into(),
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
        Error::OutOfMemory => report(
            Standard(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY),
            "out of memory".into(),
            "The extension found none for what the call needs.".into(),
            "Send less in one call, or give the server's processes more memory.",
        ),
        Error::NoLock { name, message, hint, held } => report(
            Standard(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY),
            message,
            format!("The lock of {name} could not be taken. This transaction holds those of {held} requests."),
            &hint,
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
        Error::NoJournal { journal } => report(
            Standard(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE),
            format!("journal {journal} does not exist"),
            "The requests of the session are rows of this table. What it has kept cannot be told without it.".into(),
            "Restore the table, or give it its name back. For a new session make one with idem_create_journal().",
        ),
        Error::NotYourJournal { journal, session } => report(
            Standard(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE),
            format!("permission denied to keep the requests of session \"{session}\" in {journal}"),
            "The session's owner does not have the privileges of the table's owner. What has expired is deleted from a journal, whoever wrote it.".into(),
            "Make the session as the table's owner or as a member of it (owner => ...), and lend it to others (usable_by => ...).",
        ),
        Error::UnfitJournal { journal, detail } => report(
            Standard(PgSqlErrorCode::ERRCODE_INVALID_TABLE_DEFINITION),
            format!("table {journal} cannot be a journal as it is"),
            detail,
            "idem_create_journal() makes such a table. It may have columns of its own, if each has a default or may be null, and no code but superusers' triggers.",
        ),
        Error::NotWritten { relation } => report(
            Standard(PgSqlErrorCode::ERRCODE_TRIGGERED_ACTION_EXCEPTION),
            format!("a row of table \"{relation}\" was not written"),
            "A trigger, a rule or a policy that somebody has added to the table kept the row back.".into(),
            "Let no trigger of this table give NULL, no rule do something instead, and no policy hide the row.",
        ),
        Error::OtherVersion { tables } => {
            let library = version::LIBRARY;
            let message = format!(
                "extension \"idempotence\" is at version {tables} in this database, but its library is that of version {library}"
            );
            let code = Standard(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE);
            if version::is_older(&tables, library) {
                report(
                    code,
                    message,
                    "The library was replaced, and the objects in this database were not, so that nothing can be done or answered yet.".into(),
                    "ALTER EXTENSION idempotence UPDATE in this database; then try again as it is.",
                )
            } else {
                report(
                    code,
                    message,
                    "The objects in this database are newer than the library that this process has loaded, so that nothing can be done or answered by it.".into(),
                    "Connect again, for a backend keeps the library that it has loaded; a preloaded one is replaced by a restart of the server. If that does not help, install the library of the version that the database has.",
                )
            }
        }
        Error::NotPreloaded { what } => report(
            Standard(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
            format!("{what} are not there"),
            "They are kept in shared memory, which there is only if the server preloads the library.".into(),
            "Add idempotence to shared_preload_libraries and restart the server.",
        ),
        Error::TablesNotRestored { missing } => report(
            Standard(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED),
            "a restore of the extension's tables is not complete".into(),
            format!(
                "The key of the digests was restored, but these tables were not: {missing}. Their COPY has failed, or is still to come. What was done could be executed again."
            ),
            "Create the roles that the restore missed, and restore the data of these tables again. Or give up what they had: idem_accept_restore().",
        ),
        Error::SessionsNotRestored { session, table, of } => report(
            Standard(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED),
            format!("session \"{session}\" cannot be new: a restore has left out sessions"),
            format!(
                "Table \"idempotence.{table}\" has rows of session {of}, which is not in table \"idempotence.session\". If that is this one, made anew it would execute again what was done."
            ),
            "Create the roles that the restore missed, and restore the data of table idempotence.session again; what it had is found then. Or give up what has no session: idem_accept_restore().",
        ),
        Error::Corrupted { message } => report(
            Standard(PgSqlErrorCode::ERRCODE_DATA_CORRUPTED),
            message,
            "The tables of schema \"idempotence\" do not fit together.".into(),
            "Were they changed by hand, or restored in part?",
        ),
    }
}
