//! Who holds the lock that keeps the sweep from a table, in words.

use crate::error::Error;
use crate::store::sql;

/// Makes words of the holders that a query names.
fn in_words(query: &str) -> Result<String, Error> {
    let held_by = sql::first::<String>(query)?;
    Ok(held_by.map_or("whoever held it has just let go".into(), |held_by| format!("held by {held_by}")))
}

/// Who keeps a segment from its next state, as the view `segments` says.
pub fn of_segment(segment: usize) -> Result<String, Error> {
    in_words(&format!("SELECT held_by FROM idempotence.segments WHERE segment OPERATOR(pg_catalog.=) {segment}"))
}

/// Who keeps the sweep from `outcome_long`.
pub fn of_outcome_long() -> Result<String, Error> {
    in_words("SELECT idempotence.holders(ARRAY['idempotence.outcome_long'::pg_catalog.regclass::pg_catalog.oid], NULL)")
}
