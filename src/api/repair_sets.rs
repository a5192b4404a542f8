//! The SQL functions that repair many requests or the audit, and the parts of `idem_import`.

use super::null::required;
use crate::error::or_raise;
use crate::pg::{self, Jsonb, Timestamptz};
use crate::requests::import::{self, Row};
use crate::requests::repair;
use crate::requests::repair_set::{self, Repaired};
use pgrx::datum::Uuid;
use pgrx::{default, notice, pg_extern};

#[pg_extern(volatile, parallel_unsafe)]
fn idem_forget_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    most: default!(Option<i32>, "1000"),
) -> i64 {
    or_raise((|| {
        let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
        repair_set::forget(session, prefix, required("reason", reason)?, required("most", most)?).map(told)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_redact_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    most: default!(Option<i32>, "1000"),
) -> i64 {
    or_raise((|| {
        let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
        repair_set::redact(session, prefix, required("reason", reason)?, required("most", most)?).map(told)
    })())
}

/// The number of requests that were repaired. A notice tells of those that were left out.
fn told(repaired: Repaired) -> i64 {
    match repaired.left_out {
        0 => {}
        1 => notice!("1 request is at work and was left out"),
        left_out => notice!("{left_out} requests are at work and were left out"),
    }
    i64::try_from(repaired.done).unwrap_or(i64::MAX)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_purge_audit(before: Option<Timestamptz>, reason: Option<&str>) -> i64 {
    or_raise((|| {
        // All that is there came after the year 2000 and before now.
        let before = required("before", before)?.0.clamp(0, pg::now_us());
        repair::purge_audit(before, required("reason", reason)?).map(|purged| purged as i64)
    })())
}

/// Begins an import; gives the statement to execute.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.import_begin(session text, query text, reason text) RETURNS text
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn import_begin(session: Option<&str>, query: Option<&str>, reason: Option<&str>) -> String {
    or_raise((|| {
        let (session, query) = (required("session", session)?, required("query", query)?);
        import::begin(session, query, required("reason", reason)?)
    })())
}

/// Imports a row; gives what became of it.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.import_row(import bigint, key text, response jsonb, failed boolean, recorded_at timestamptz,
                                       expires_at timestamptz, payload jsonb, fingerprint uuid) RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn import_row(
    import: Option<i64>,
    key: Option<&str>,
    response: Option<Jsonb>,
    failed: Option<bool>,
    recorded_at: Option<Timestamptz>,
    expires_at: Option<Timestamptz>,
    payload: Option<Jsonb>,
    fingerprint: Option<Uuid>,
) -> i32 {
    pg::begin_call();
    let row = Row {
        key,
        response,
        failed,
        recorded_at: recorded_at.map(|at| at.0),
        expires_at: expires_at.map(|at| at.0),
        payload,
        fingerprint: fingerprint.map(|fingerprint| *fingerprint.as_bytes()),
    };
    or_raise((|| {
        let taken = import::row(required("import", import)?, &row)?;
        pg::check_memory()?;
        Ok(taken as i32)
    })())
}

/// Ends the import and notes it.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.import_end(imported bigint, present bigint, expired bigint) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn import_end(imported: Option<i64>, present: Option<i64>, expired: Option<i64>) {
    or_raise((|| {
        let (imported, present) = (required("imported", imported)?, required("present", present)?);
        import::end(imported, present, required("expired", expired)?)
    })());
}
