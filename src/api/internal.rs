//! Functions in schema `idempotence` that the extension's own SQL calls. Their SQL is spelt out: pgrx
//! would create the schema for them, and fail where it is there already.

use super::null::required;
use super::ticket::{self, Ticket};
use crate::domain::outcome::Class;
use crate::error::{Error, or_raise};
use crate::guc;
use crate::pg::{self, Composite, Jsonb, Record};
use crate::requests::finish;
use crate::requests::numbered::Numbering;
use crate::requests::request::{Request, Rules};
use crate::store::{message, restore, segment, write};
use pgrx::prelude::*;

/// What `idem_run` has to know of a command before it executes it.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.returns_rows(command text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn returns_rows(command: Option<&str>) -> bool {
    let command = or_raise(required("command", command));
    if command.trim().is_empty() {
        let (message, detail) = ("the command is empty".into(), "There is nothing to execute.".into());
        Error::Invalid { message, detail, hint: "Give an SQL statement." }.raise();
    }
    pg::returns_rows(command)
}

/// What `idem_run` records of the row that a command gave.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.first_column(answer record) RETURNS jsonb
LANGUAGE c STABLE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn first_column(answer: Option<Record>) -> Option<Jsonb> {
    answer.and_then(Record::first_column_as_jsonb)
}

/// How `idem_run` records: as `idem_record` does, but it answers with the ticket.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.recorded(session text, request text, response jsonb, failed boolean, ttl interval) RETURNS idem_ticket
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn recorded(
    session: Option<&str>,
    request: Option<&str>,
    response: Option<Jsonb>,
    failed: Option<bool>,
    ttl: Option<Interval>,
) -> Composite<Ticket> {
    ticket::executed(or_raise((|| {
        let request = Request::resolve(
            required("session", session)?,
            required("request", request)?,
            Numbering::default(),
            Rules::OfBegin,
        )?;
        let class = if required("failed", failed)? { Class::Failed } else { Class::Succeeded };
        finish::record(&request, class, response, None, ttl)
    })()))
}

/// Has a script of the extension grant what roles had before by themselves.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.keep_grant(command text) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn keep_grant(command: Option<&str>) {
    let command = or_raise(required("command", command));
    or_raise(pg::outside_of_script(command).map_err(|error| {
        let message = format!("could not execute {command}");
        Error::Invalid { message, detail: error.to_string(), hint: "It is for the extension's own scripts." }
    }));
}

/// The setting, also in a session that has not loaded the library yet.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.retention() RETURNS interval
LANGUAGE c STABLE PARALLEL SAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn retention() -> Interval {
    pg::interval(guc::retention_us())
}

/// Whoever inserts into a table of outcomes or checkpoints, into `session` or `secret`, by SQL restores something.
#[pg_trigger(sql = r#"
CREATE FUNCTION idempotence.note_restored() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn note_restored<'a>(trigger: &'a PgTrigger<'a>) -> Result<Option<PgHeapTuple<'a, AllocatedByRust>>, PgTriggerError> {
    if !write::is_ours() {
        let table = trigger.extra_args()?.into_iter().next();
        or_raise(restore::note(&trigger.table_name()?));
        // These are in no segment.
        if !matches!(table.as_deref(), Some("reply" | "checkpoint" | "secret")) {
            or_raise(segment::note_restored(table.as_deref()));
        }
    }
    Ok(None)
}

/// Whoever writes `session` or `secret` by SQL (a restore does) makes every backend forget them.
#[pg_trigger(sql = r#"
CREATE FUNCTION idempotence.forget_cached() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn forget_cached<'a>(trigger: &'a PgTrigger<'a>) -> Result<Option<PgHeapTuple<'a, AllocatedByRust>>, PgTriggerError> {
    if !write::is_ours() {
        message::all_changed_by(trigger.relid()?);
    }
    Ok(None)
}
