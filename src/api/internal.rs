//! Functions in schema `idempotence` that the extension's own SQL calls: `idem_sweep`, `idem_ready`, the triggers and the
//! views. Only the extension's owner may execute those behind the checks of the view `health`: the checks run with the owner's
//! rights.

use super::call::{Result, enter, required};
use crate::board;
use crate::domain::identity::Digest;
use crate::error::{self, Error, or_raise};
use crate::guc;
use crate::names;
use crate::pg::{self, Filled, Regrole, Spelt, Timestamptz};
use crate::requests::repair;
use crate::store::catalog::Table;
use crate::store::{blank, cache, message, ready, restore, segment, write};
use crate::sweep::{self, Step};
use crate::transaction;
use pgrx::datum::Uuid;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The setting `idempotence.retention`, also in a backend that has not loaded the library yet.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn retention() -> Interval {
    pg::interval(guc::retention_us())
}

/// The trigger on the tables that a restore fills: outcomes, replies, checkpoints, leases, `session`, `secret`, the
/// audit and the levels. An INSERT by SQL that is not the extension's own counts as a restore. After the INSERT, the
/// trigger takes back what was restored twice.
#[pg_trigger(sql = r#"
CREATE FUNCTION idempotence.note_restored() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn note_restored<'a>(trigger: &'a PgTrigger<'a>) -> Result<Option<PgHeapTuple<'a, AllocatedByRust>>, PgTriggerError> {
    if !write::is_ours() && matches!(trigger.when()?, PgTriggerWhen::After) {
        or_raise(restore::undouble(&trigger.table_name()?));
    } else if !write::is_ours() {
        let table = trigger.extra_args()?.into_iter().next();
        or_raise(restore::note(&trigger.table_name()?));
        blank::note_foreign_rows();
        // These tables are no part of the ring.
        if !matches!(table.as_deref(), Some("long" | "reply" | "checkpoint" | "lease" | "secret" | "audit" | "granted"))
        {
            or_raise(segment::note_restored(table.as_deref()));
        }
    }
    Ok(None)
}

/// The trigger on `session` and `secret`. A write by SQL, as a restore does it, makes every backend forget what it
/// remembers of them.
#[pg_trigger(sql = r#"
CREATE FUNCTION idempotence.forget_cached() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn forget_cached<'a>(trigger: &'a PgTrigger<'a>) -> Result<Option<PgHeapTuple<'a, AllocatedByRust>>, PgTriggerError> {
    if !write::is_ours() {
        message::all_changed(trigger.relid()?);
    }
    Ok(None)
}

/// Takes a step of `idem_sweep`, or a batch of it. Returns whether the step has more to do; NULL when another
/// sweep is at work. Notices tell what was done.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn sweep_step(step: Option<&str>) -> Result<Option<bool>> {
    enter("idempotence.sweep_step");
    let name = required("step", step)?;
    let step = Step::ALL.into_iter().find(|step| step.name == name).ok_or_else(|| Error::Invalid {
        message: format!("there is no step \"{name}\" of the sweep"),
        detail: format!("The steps are {}.", Step::ALL.map(|step| step.name).join(", ")),
        hint: "CALL idem_sweep() takes them all.",
    })?;
    let Some(swept) = sweep::take(step)? else { return Ok(None) };
    for line in swept.done.iter().chain(&swept.delayed) {
        notice!("{}", error::legible(line));
    }
    Ok(Some(swept.more))
}

/// Notes in the audit that a role was granted a level; NULL: that its rights were taken away.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn note_grant(role: Option<Regrole>, level: Option<&str>) -> Result<()> {
    enter("idempotence.note_grant");
    Ok(repair::note_grant(required("role", role)?.0, level)?)
}

/// Notes the end of a sweep by hand.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn note_sweep() {
    enter("idempotence.note_sweep");
    sweep::note_by_hand(is_visited());
}

/// When this database was last swept, by the worker or by hand; NULL when that is not known.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn last_sweep() -> Option<Timestamptz> {
    enter("idempotence.last_sweep");
    let by_hand = sweep::by_hand_at(false).max(sweep::by_hand_at(true));
    let visited = board::visits().remove(&pg::current_database().to_u32());
    by_hand.max(visited.and_then(|(swept_at, _)| swept_at)).map(Timestamptz)
}

/// When this database was last swept by hand while no worker came; NULL when that is not known.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn swept_instead() -> Option<Timestamptz> {
    enter("idempotence.swept_instead");
    sweep::by_hand_at(false).map(Timestamptz)
}

/// When the server came up. No session counts as silent for longer than since then.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn up_since() -> Timestamptz {
    // In the first moments after the start nothing tells. Then the server has just come up.
    Timestamptz(pg::up_since().unwrap_or_else(pg::now_us))
}

/// The process id of the background worker's launcher; 0 when the launcher does not run, NULL when the library is
/// not preloaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn launcher() -> Option<i32> {
    board::launcher_pid()
}

/// Whether the worker is to visit this database: whether the library is preloaded, and the setting
/// `idempotence.databases` includes the database.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn is_visited() -> bool {
    board::launcher_pid().is_some() && guc::databases().is_none_or(|names| names.contains(&pg::current_database_name()))
}

/// The setting `idempotence.max_sessions_per_role`, also in a backend that has not loaded the library yet.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn max_sessions_per_role() -> i64 {
    guc::max_sessions_per_role()
}

/// The value of a setting in its base unit; NULL if there is no such setting. Where the library was not loaded yet, this
/// loads it, so that its settings are known.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn setting(name: Option<&str>) -> Option<String> {
    name.and_then(pg::setting)
}

/// What a text means as the value of a setting of time, in milliseconds; NULL if it means nothing.
#[pg_extern(schema = "idempotence", immutable, parallel_safe)]
fn milliseconds(value: Option<&str>) -> Option<i32> {
    value.and_then(pg::milliseconds)
}

/// A text that names what users have named, such that it fools no reader.
#[pg_extern(schema = "idempotence", immutable, parallel_safe)]
fn legible(words: Option<&str>) -> Option<String> {
    words.map(error::legible)
}

/// The tables that requests need, with the number of columns that the extension has made them with.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.table_columns(OUT name text, OUT columns integer) RETURNS SETOF record
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn table_columns() -> Filled<'static, Spelt> {
    let rows = ready::NEEDED.iter();
    pg::rows(rows.map(|(table, columns)| vec![table.name().into_datum(), (*columns as i32).into_datum()]).collect())
}

/// How often the launcher was started anew: since the server came up, or lately, which is within the last hour. NULL when
/// the library is not preloaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn restarts(lately: Option<bool>) -> Option<i64> {
    let (ever, within_the_hour) = board::restarts()?;
    i64::try_from(if lately? { within_the_hour as u64 } else { ever }).ok()
}

/// Whether commits wait for synchronous standbys, as the checkpointer has noted it.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn commits_wait() -> bool {
    pg::standbys_are_defined()
}

/// How many waits for locks of ours have ended in a deadlock within the last hour in this database; NULL when the library
/// is not preloaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn deadlocks() -> Option<i64> {
    board::deadlocks().and_then(|count| i64::try_from(count).ok())
}

/// When somebody has set the clock last; NULL if that is not known.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn clock_jump() -> Option<Timestamptz> {
    board::jump().map(|(at_us, _)| Timestamptz(at_us))
}

/// By how much somebody has set the clock forward; less than nothing: back.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn clock_jump_by() -> Option<Interval> {
    board::jump().map(|(_, by_us)| pg::interval(by_us))
}

/// The number of locks that the server's lock table is made for.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn lock_table_size() -> Option<i64> {
    i64::try_from(pg::lock_table_size()).ok()
}

/// The bytes that are free where outcomes are recorded: the least of their tables' tablespaces. NULL if the system does not
/// tell.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn free_space() -> Option<i64> {
    let tables = [Table::Outcome0, Table::Outcome1, Table::Outcome2, Table::OutcomeLong];
    tables.into_iter().filter_map(|table| pg::free_bytes(cache::oid(table))).min()
}

/// The databases that the worker has swept, or could not sweep, since the server came up; none where the library is not
/// preloaded.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.visits(OUT database oid, OUT swept_at timestamptz, OUT failed_at timestamptz, OUT error text) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn visits() -> Filled<'static, Spelt> {
    enter("idempotence.visits");
    let rows = board::visits().into_iter().map(|(database, (swept_at, failed))| {
        let (failed_at, error) = failed.unzip();
        let [swept_at, failed_at] = [swept_at, failed_at].map(|at| at.map(Timestamptz).into_datum());
        vec![pg_sys::Oid::from(database).into_datum(), swept_at, failed_at, error.into_datum()]
    });
    pg::rows(rows.collect())
}

/// The names in the setting `idempotence.databases`; NULL: all databases are visited.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn databases() -> Option<Vec<String>> {
    guc::databases()
}

/// The library of a commit coordinator that can be asked for a two-phase commit; NULL if none is loaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn coordinator() -> Option<String> {
    transaction::coordinator()
}

/// Whether an outcome's digest is the one that the key that counts makes of its session and its key.
#[pg_extern(schema = "idempotence", stable, parallel_unsafe)]
fn digest_fits(digest: Option<Uuid>, session: Option<Uuid>, key: Option<&str>) -> Option<bool> {
    enter("idempotence.digest_fits");
    Some(names::fits(&Digest(*digest?.as_bytes()), session?.as_bytes(), key?))
}

/// Refuses a parallel query, for functions in PL/pgSQL. All others call [`enter`] themselves.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn refuse_parallel_query(function: Option<&str>) -> Result<()> {
    enter(required("function", function)?);
    Ok(())
}

/// Raises the error that every request would meet.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn look_whether_ready() -> Result<()> {
    enter("idempotence.look_whether_ready");
    Ok(ready::look()?)
}
