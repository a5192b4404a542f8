//! What is kept of the requests of a standing session, in one query, for a session that goes on at another server.

use crate::domain::identity::SessionId;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::{checkpoint, lease, outcome_columns, segment};
use pgrx::spi;
use uuid::Uuid;

/// Whether the transaction's snapshot does not see something that the query would have to give.
pub fn any_unseen(session: &SessionId) -> bool {
    let open = |table| Rel::open(table, Access::Read);
    segment::all().any(|table| open(table).any_unseen::<{ outcome_columns::COLUMNS }>(session))
        || open(Table::Checkpoint).any_unseen::<{ checkpoint::COLUMNS }>(session)
        || open(Table::Lease).any_unseen::<{ lease::COLUMNS }>(session)
}

/// The columns that [`query`] gives.
pub const COLUMNS: &str = "TABLE (key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz, expires_at timestamptz, attempt integer, begun_at timestamptz, leased_until timestamptz, point text, state jsonb)";

/// The query for what lives of the requests whose keys begin with `prefix`, and for what is unfinished. A row of an
/// unfinished request has both its lease and its checkpoint.
pub fn query(session: &SessionId, prefix: &str) -> String {
    let (session, prefix) = (Uuid::from_bytes(*session).hyphenated(), spi::quote_literal(prefix));
    let of = |key: &str| {
        format!("t.session OPERATOR(pg_catalog.=) '{session}' AND t.{key} OPERATOR(pg_catalog.^@) {prefix}")
    };
    let living = segment::each_outcome(|table| {
        format!(
            "SELECT t.key::pg_catalog.text,
                    CASE WHEN t.class OPERATOR(pg_catalog.=) 's' THEN 'succeeded'
                         WHEN t.class OPERATOR(pg_catalog.=) 'c' THEN 'cancelled' ELSE 'failed' END::pg_catalog.text,
                    t.response, t.fingerprint, t.token, t.recorded_at, t.expires_at,
                    NULL::pg_catalog.int4, NULL::pg_catalog.timestamptz, NULL::pg_catalog.timestamptz,
                    NULL::pg_catalog.text, NULL::pg_catalog.jsonb
             FROM {table} t
             WHERE {} AND t.expires_at OPERATOR(pg_catalog.>) (SELECT pg_catalog.clock_timestamp())",
            of("key")
        )
    });
    let of = of("request");
    let unfinished = format!(
        "SELECT COALESCE(l.request, c.request), 'unfinished', NULL, COALESCE(c.fingerprint, l.fingerprint), l.token,
                c.written_at, NULL, l.attempt, l.begun_at, l.leased_until, c.point, c.state
         FROM (SELECT t.* FROM idempotence.lease t WHERE {of}) l
         FULL JOIN (SELECT t.* FROM idempotence.checkpoint t WHERE {of}) c ON c.digest OPERATOR(pg_catalog.=) l.digest"
    );
    format!("{living} UNION ALL {unfinished}")
}
