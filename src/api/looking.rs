//! The SQL functions that tell what is known of requests: for people on call, and for the owner of a session.

use super::call::{AsKey, by_key};
use super::null::required;
use crate::error::or_raise;
use crate::pg::{self, Jsonb, Timestamptz};
use crate::requests::explain;
use crate::requests::listing::{self, AskedListing};
use pgrx::datum::Uuid;
use pgrx::iter::TableIterator;
use pgrx::{default, name, pg_extern};

by_key! {
    "idem_explain": idem_explain_text, idem_explain_bigint, idem_explain_uuid;
    fn(session: Option<&str>, request: key, stream: default!(Option<&str>, "NULL")) -> Jsonb {
        pg::begin_call();
        let told = or_raise((|| {
            let (session, request) = (required("session", session)?, required("request", request)?);
            let told = explain::explain(session, &request.key(), stream)?;
            pg::check_memory()?;
            Ok(told)
        })());
        Jsonb::of_text(&told)
    }
}

#[pg_extern(volatile, parallel_unsafe)]
#[allow(clippy::type_complexity, reason = "pgrx reads the columns from the type")]
fn idem_outcomes(
    session: Option<&str>,
    prefix: default!(Option<&str>, "NULL"),
    status: default!(Option<&str>, "NULL"),
    since: default!(Option<Timestamptz>, "NULL"),
    before: default!(Option<Timestamptz>, "NULL"),
    most: default!(Option<i32>, "100"),
) -> TableIterator<
    'static,
    (
        name!(request, String),
        name!(status, Option<String>),
        name!(response, Option<Jsonb>),
        name!(response_bytes, Option<i32>),
        name!(fingerprint, Option<Uuid>),
        name!(recorded_by, String),
        name!(recorded_at, Timestamptz),
        name!(expires_at, Option<Timestamptz>),
        name!(stream, Option<String>),
        name!(last, Option<i64>),
    ),
> {
    let listed = or_raise((|| {
        let session = required("session", session)?;
        let most = required("most", most)?;
        listing::outcomes(session, &AskedListing { prefix, status, since, before, most })
    })());
    TableIterator::new(listed.into_iter().map(|outcome| {
        (
            outcome.request,
            outcome.class.map(|class| class.status().to_owned()),
            outcome.response.as_deref().map(Jsonb::of_text),
            outcome.response_bytes,
            outcome.fingerprint,
            outcome.recorded_by,
            outcome.recorded_at,
            outcome.expires_at,
            outcome.stream,
            outcome.last,
        )
    }))
}
