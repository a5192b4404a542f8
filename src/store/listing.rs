//! The outcomes of one session as a list, chosen by key, status or time. The planner chooses the way: by an index that a
//! DBA has added, or through all outcomes.

use crate::domain::class::Class;
use crate::error::Error;
use crate::model::Session;
use crate::pg::Timestamptz;
use crate::store::segment;
use crate::store::sql;
use pgrx::datum::Uuid;
use pgrx::spi::{self, SpiHeapTupleData};

/// Which outcomes are listed.
pub struct Listing<'a> {
    /// What the key, or the number in decimal, begins with.
    pub prefix: Option<&'a str>,
    /// How the request ended.
    pub class: Option<Class>,
    /// The earliest time of the record.
    pub since: Option<Timestamptz>,
    /// The time before which it was recorded.
    pub before: Option<Timestamptz>,
    /// How many, beginning with the one that was recorded last.
    pub most: usize,
    /// Only what lives at this moment is listed.
    pub living_at: i64,
    /// Whether responses and fingerprints are shown.
    pub in_full: bool,
}

/// An outcome in the list.
pub struct Listed {
    /// The key or first number.
    pub request: String,
    /// How the request ended.
    pub class: Option<Class>,
    /// The response, as the text of a jsonb value.
    pub response: Option<String>,
    /// The size of the response as it is stored.
    pub response_bytes: Option<i32>,
    /// The fingerprint of the payload.
    pub fingerprint: Option<Uuid>,
    /// The name of the role that recorded it.
    pub recorded_by: String,
    /// When it was recorded.
    pub recorded_at: Timestamptz,
    /// When it expires.
    pub expires_at: Option<Timestamptz>,
    /// The stream of a numbered request.
    pub stream: Option<String>,
    /// The last number of a numbered request.
    pub last: Option<i64>,
}

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

/// Lists outcomes of a session, that which was recorded last first.
pub fn of_session(session: &Session, wanted: &Listing<'_>) -> Result<Vec<Listed>, Error> {
    let (id, tables) = match session {
        Session::Standing(session) => (session.id, of_keys()),
        Session::Client(session) => (session.id, OF_NUMBERS.to_owned()),
    };
    // The responses are read last, so that those of outcomes that are not listed are not read.
    let query = format!(
        "SELECT o.key,
                o.class,
                CASE WHEN $8 THEN o.response::pg_catalog.text END,
                pg_catalog.pg_column_size(o.response),
                CASE WHEN $8 THEN o.fingerprint END,
                o.recorded_by, o.recorded_at,
                CASE WHEN o.expires_at OPERATOR(pg_catalog.<>) 'infinity' THEN o.expires_at END,
                o.stream, o.last
         FROM (SELECT o.* FROM ({tables}) o
               WHERE o.session OPERATOR(pg_catalog.=) $1 AND o.expires_at OPERATOR(pg_catalog.>) $2
                 AND ($3 IS NULL OR o.key OPERATOR(pg_catalog.^@) $3)
                 AND ($4 IS NULL OR o.class OPERATOR(pg_catalog.=) $4)
                 AND ($5 IS NULL OR o.recorded_at OPERATOR(pg_catalog.>=) $5)
                 AND ($6 IS NULL OR o.recorded_at OPERATOR(pg_catalog.<) $6)
               ORDER BY o.recorded_at DESC, o.key LIMIT $7) o
         ORDER BY o.recorded_at DESC, o.key"
    );
    let arguments = [
        Uuid::from_bytes(id).into(),
        Timestamptz(wanted.living_at).into(),
        wanted.prefix.into(),
        wanted.class.map(|class| class.letter() as i8).into(),
        wanted.since.into(),
        wanted.before.into(),
        (wanted.most as i64).into(),
        wanted.in_full.into(),
    ];
    sql::rows(&query, &arguments, read)
}

fn read(row: &SpiHeapTupleData<'_>) -> Result<Listed, spi::Error> {
    Ok(Listed {
        request: row.get(1)?.unwrap_or_default(),
        class: row.get::<i8>(2)?.and_then(|letter| Class::of_letter(letter as u8)),
        response: row.get(3)?,
        response_bytes: row.get(4)?,
        fingerprint: row.get(5)?,
        recorded_by: row.get(6)?.unwrap_or_default(),
        recorded_at: row.get(7)?.unwrap_or(Timestamptz(0)),
        expires_at: row.get(8)?,
        stream: row.get(9)?,
        last: row.get(10)?,
    })
}
