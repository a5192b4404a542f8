//! The outcomes of one session as a list, chosen by key, status or time. The planner chooses the way: by an index that a
//! DBA has added, or through all outcomes.

use crate::domain::class::Class;
use crate::model::Session;
use crate::pg;
use crate::store::segment;
use pgrx::spi::quote_literal;
use uuid::Uuid;

/// The columns that [`query`] gives.
pub const COLUMNS: &str = "TABLE (request text, status text, response jsonb, response_bytes integer, fingerprint uuid, recorded_by text, recorded_at timestamptz, expires_at timestamptz, stream text, last bigint)";

/// The outcomes of standing sessions.
fn of_keys() -> String {
    segment::each_outcome(|table| {
        format!(
            "SELECT session, recorded_at, expires_at, recorded_by, class, key, fingerprint, response,
                    NULL::pg_catalog.text AS stream, NULL::pg_catalog.int8 AS last FROM {table}"
        )
    })
}

/// The table with the outcomes of client sessions. A reply whose response was dropped is none.
const OF_NUMBERS: &str = "
    SELECT session, recorded_at, 'infinity'::pg_catalog.timestamptz AS expires_at, recorded_by, class,
           first::pg_catalog.text COLLATE pg_catalog.\"C\" AS key, fingerprint, response, stream, last
    FROM idempotence.reply WHERE class OPERATOR(pg_catalog.<>) 'd'";

/// The query for outcomes of a session that live, that which was recorded last first, and `most` of them: those whose key, or
/// number in decimal, begins with the prefix, which ended so, and which were recorded in this period. `in_full`: with responses
/// and fingerprints.
pub fn query(
    session: &Session,
    prefix: Option<&str>,
    class: Option<Class>,
    [since, before]: [Option<i64>; 2],
    most: usize,
    in_full: bool,
) -> String {
    let (id, tables) = match session {
        Session::Standing(session) => (session.id, of_keys()),
        Session::Client(session) => (session.id, OF_NUMBERS.to_owned()),
    };
    let moment = |us: i64| format!("{}::pg_catalog.timestamptz", quote_literal(pg::describe_moment(us)));
    let conditions = [
        prefix.map(|prefix| format!("o.key OPERATOR(pg_catalog.^@) {}", quote_literal(prefix))),
        class.map(|class| {
            let letters = Class::ALL.into_iter().filter(|other| other.status() == class.status()).map(Class::letter);
            let letters: String = letters.map(char::from).collect();
            format!("pg_catalog.strpos('{letters}', o.class::pg_catalog.text) OPERATOR(pg_catalog.>) 0")
        }),
        since.map(|since| format!("o.recorded_at OPERATOR(pg_catalog.>=) {}", moment(since))),
        before.map(|before| format!("o.recorded_at OPERATOR(pg_catalog.<) {}", moment(before))),
    ];
    let conditions: String = conditions.into_iter().flatten().map(|condition| format!(" AND {condition}")).collect();
    let id = Uuid::from_bytes(id).hyphenated();
    let full = |column: &str| if in_full { format!("o.{column}") } else { "NULL".into() };
    // The responses are read last, so that those of outcomes that are not listed are not read.
    format!(
        "SELECT o.key::pg_catalog.text,
                CASE WHEN o.class OPERATOR(pg_catalog.=) 's' THEN 'succeeded'
                     WHEN o.class OPERATOR(pg_catalog.=) 'c' THEN 'cancelled' ELSE 'failed' END::pg_catalog.text,
                {}::pg_catalog.jsonb, pg_catalog.pg_column_size(o.response), {}::pg_catalog.uuid,
                o.recorded_by::pg_catalog.text, o.recorded_at,
                CASE WHEN o.expires_at OPERATOR(pg_catalog.<>) 'infinity' THEN o.expires_at END,
                o.stream::pg_catalog.text, o.last
         FROM (SELECT o.* FROM ({tables}) o
               WHERE o.session OPERATOR(pg_catalog.=) '{id}'
                 AND o.expires_at OPERATOR(pg_catalog.>) (SELECT pg_catalog.clock_timestamp()){conditions}
               ORDER BY o.recorded_at DESC, o.key LIMIT {most}) o
         ORDER BY o.recorded_at DESC, o.key",
        full("response"),
        full("fingerprint")
    )
}
