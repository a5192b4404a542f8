//! The SQL functions that tell what is known of requests: for people on call, and for the owner of a session.

use super::call::{Result, by_key, required};
use crate::pg::{self, Filled, Jsonb, Shape, Timestamptz};
use crate::requests::explain;
use crate::requests::listing;
use crate::store::{self, locked};
use pgrx::datum::Uuid;
use pgrx::{default, pg_extern};
use std::borrow::Cow;

/// How long to wait for a table of ours that somebody has locked.
const LOCKED_AT_MOST_US: i64 = 1_000_000;

by_key! {
    "idem_explain": idem_explain_text, idem_explain_bigint, idem_explain_uuid;
    fn(session: Option<&str>, request: key, stream: default!(Option<&str>, "NULL")) -> Result<Jsonb> {
        pg::begin_call();
        let (session, request) = (required("session", session)?, required("request", request)?);
        let look = || explain::explain(session, &request, stream);
        // A table that somebody has locked is what whoever asks here has to know of.
        let told = pg::bounded(Some(LOCKED_AT_MOST_US), look).unwrap_or_else(|| Err(locked::error()))?;
        pg::check_memory()?;
        Ok(Jsonb::of_text(&told))
    }
}

/// The columns of `idem_outcomes`.
pub struct Outcomes;

impl Shape for Outcomes {
    const SQL: &'static str = store::listing::COLUMNS;
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_outcomes(
    session: Option<&str>,
    prefix: default!(Option<&str>, "NULL"),
    status: default!(Option<&str>, "NULL"),
    since: default!(Option<Timestamptz>, "NULL"),
    before: default!(Option<Timestamptz>, "NULL"),
    most: default!(Option<i32>, "100"),
) -> Result<Filled<'static, Outcomes>> {
    let period = [since, before].map(|at| at.map(|at| at.0));
    let outcomes = listing::outcomes(required("session", session)?, prefix, status, period, required("most", most)?)?;
    Ok(Filled::by(outcomes))
}
