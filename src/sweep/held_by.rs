//! Who keeps the sweep from a table, in words.

use crate::error::Error;
use crate::store::sql;

/// Who keeps a segment from its next state, as the view tells.
fn told_by(query: &str) -> Result<String, Error> {
    let held_by = sql::first::<String>(query)?;
    Ok(held_by.map_or("whoever held it has just let go".into(), |held_by| format!("held by {held_by}")))
}

pub fn of_segment(segment: usize) -> Result<String, Error> {
    told_by(&format!("SELECT held_by FROM idempotence.segments WHERE segment OPERATOR(pg_catalog.=) {segment}"))
}

/// Who keeps the sweep from `outcome_long`.
pub fn of_outcome_long() -> Result<String, Error> {
    told_by("SELECT idempotence.holders(ARRAY['idempotence.outcome_long'::pg_catalog.regclass::pg_catalog.oid], NULL)")
}
