//! The SQL function that exports a session, and the parts of `idem_import`.

use super::call::{Result, enter, required};
use crate::pg::{self, Filled, Jsonb, Shape, Timestamptz};
use crate::requests::export;
use crate::requests::import;
use crate::requests::imported::ImportedRow;
use crate::store::moving;
use pgrx::datum::Uuid;
use pgrx::{default, pg_extern};

/// The columns of `idem_export`.
pub struct Exported;

impl Shape for Exported {
    const SQL: &'static str = moving::COLUMNS;
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_export(
    session: Option<&str>,
    reason: Option<&str>,
    prefix: default!(Option<&str>, "NULL"),
) -> Result<Filled<'static, Exported>> {
    enter("idem_export");
    let (session, reason) = (required("session", session)?, required("reason", reason)?);
    Ok(Filled::by(export::export(session, reason, prefix)?))
}

/// Begins an import; gives the statement to execute.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn import_begin(session: Option<&str>, query: Option<&str>, reason: Option<&str>) -> Result<String> {
    enter("idempotence.import_begin");
    let (session, query) = (required("session", session)?, required("query", query)?);
    Ok(import::begin(session, query, required("reason", reason)?)?)
}

/// Imports a row; gives what became of it.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn import_row(
    import: Option<i64>,
    key: Option<&str>,
    response: Option<Jsonb>,
    failed: Option<bool>,
    recorded_at: Option<Timestamptz>,
    expires_at: Option<Timestamptz>,
    payload: Option<Jsonb>,
    fingerprint: Option<Uuid>,
    status: Option<&str>,
    token: Option<i64>,
    attempt: Option<i32>,
    begun_at: Option<Timestamptz>,
    leased_until: Option<Timestamptz>,
    point: Option<&str>,
    state: Option<Jsonb>,
) -> Result<i32> {
    enter("idempotence.import_row");
    let row = ImportedRow {
        key,
        response,
        failed,
        recorded_at: recorded_at.map(|at| at.0),
        expires_at: expires_at.map(|at| at.0),
        payload,
        fingerprint: fingerprint.map(|fingerprint| *fingerprint.as_bytes()),
        status,
        token,
        attempt,
        begun_at: begun_at.map(|at| at.0),
        leased_until: leased_until.map(|at| at.0),
        point,
        state,
    };
    let taken = import::row(required("import", import)?, &row)?;
    pg::check_memory()?;
    Ok(taken as i32)
}

/// Ends the import and notes it.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn import_end() -> Result<()> {
    enter("idempotence.import_end");
    Ok(import::end()?)
}
