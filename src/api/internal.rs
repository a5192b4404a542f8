//! Functions in schema `idempotence` that the extension's own SQL calls.

use crate::error::or_raise;
use crate::guc;
use crate::pg;
use crate::store::{blank, message, restore, segment, write};
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
