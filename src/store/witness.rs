//! What tables and server tell of one request beside what a decision about it rests on: who is at work, who recorded it,
//! who holds its lease, and how it was repaired. For people on call, so that none of it is read by another call.

use crate::domain::class::Class;
use crate::domain::identity::Digest;
use crate::error::Error;
use crate::lock::LockClass;
use crate::model::Stream;
use crate::pg::{self, Timestamptz};
use crate::store::outcome::Outcome;
use crate::store::segment;
use crate::store::sql;
use pgrx::datum::Uuid;
use pgrx::pg_sys;
use pgrx::spi::{self, SpiHeapTupleData};
use serde::Serialize;
use serde_json::{Value, json};

/// A transaction that has, or waits for, the lock of a request, as it is told.
#[derive(Serialize)]
pub struct Transaction {
    /// Whether it has the lock.
    #[serde(skip)]
    pub holds: bool,
    /// The process; `None`: the transaction is prepared.
    pub pid: Option<i32>,
    /// The role that the process was connected as, or that prepared the transaction.
    pub role: Option<String>,
    /// The `application_name`.
    pub application: Option<String>,
    /// The address of the client.
    pub client_addr: Option<String>,
    /// What the process does, as in `pg_stat_activity`.
    pub state: Option<String>,
    /// Since when it has the lock at most: when it began, or was prepared. One that waits: since when it waits.
    pub since: Option<Timestamptz>,
    /// What COMMIT PREPARED calls it.
    pub prepared: Option<String>,
    /// What the process waits for, as `type/event`.
    pub wait_event: Option<String>,
}

impl Transaction {
    /// Whether the process waits for an event whose name begins so.
    pub fn waits_for(&self, event: &str) -> bool {
        self.wait_event.as_ref().is_some_and(|waits_for| waits_for.starts_with(event))
    }
}

/// What a transaction holds that is at work on a request.
pub enum At<'a> {
    /// The request's lock.
    Lock(&'a Digest),
    /// Itself. Who waits for its end may wait for something else that it has done, and is nobody's business here.
    Transaction(pg_sys::TransactionId),
}

/// The transactions that hold this or wait for it, at most `most` of them: whoever has it comes first, and then who has
/// waited longest. Gives them, and how many wait, told of or not. A standby does not see those of the primary.
pub fn at_work(at: &At<'_>, most: usize) -> Result<(Vec<Transaction>, i64), Error> {
    let condition = match at {
        At::Lock(_) => "
            l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.database OPERATOR(pg_catalog.=) $2
            AND l.classid OPERATOR(pg_catalog.=) $3 AND l.objid OPERATOR(pg_catalog.=) $4 AND l.objsubid OPERATOR(pg_catalog.=) $5",
        At::Transaction(_) => "
            l.granted AND l.locktype OPERATOR(pg_catalog.=) 'transactionid' AND l.transactionid OPERATOR(pg_catalog.=) $2",
    };
    let query = format!("
        SELECT l.granted, l.pid, COALESCE(a.usename::pg_catalog.text, p.owner::pg_catalog.text), a.application_name,
               pg_catalog.host(a.client_addr), a.state,
               CASE WHEN l.granted THEN COALESCE(p.prepared, a.xact_start) ELSE l.waitstart END, p.gid,
               a.wait_event_type OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||) a.wait_event,
               pg_catalog.count(*) FILTER (WHERE NOT l.granted) OVER ()
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
        LEFT JOIN (SELECT v.virtualtransaction, v.gid, v.prepared, x.owner
                   FROM idempotence.prepared v JOIN pg_catalog.pg_prepared_xacts x ON x.gid OPERATOR(pg_catalog.=) v.gid) p
          ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
        WHERE {condition}
        ORDER BY l.granted DESC, l.waitstart, l.pid LIMIT $1");
    let mut arguments = vec![(most as i64).into()];
    match at {
        At::Lock(lock) => {
            let id = lock.lock_id();
            arguments.extend([
                pg::current_database().into(),
                pg_sys::Oid::from((id >> 32) as u32).into(),
                pg_sys::Oid::from(id as u32).into(),
                (LockClass::Request as i16).into(),
            ]);
        }
        At::Transaction(xid) => arguments.push((*xid).into()),
    }
    let rows = sql::rows(&query, &arguments, |row| Ok((transaction(row)?, row.get(10)?.unwrap_or(0))))?;
    let waiters = rows.first().map_or(0, |(_, waiters)| *waiters);
    Ok((rows.into_iter().map(|(transaction, _)| transaction).collect(), waiters))
}

/// The transaction at the root of what a process waits for; `None`: it waits for no lock. A prepared transaction has no
/// process, but a gid. The transaction may be anybody's, so the address of its client is not told.
pub fn blocker(pid: i32) -> Result<Option<Transaction>, Error> {
    let query = "
        SELECT true, CASE WHEN r.root OPERATOR(pg_catalog.<>) 0 THEN r.root END,
               COALESCE(a.usename::pg_catalog.text, p.owner::pg_catalog.text), a.application_name,
               NULL::pg_catalog.text, a.state, COALESCE(p.prepared, a.xact_start), r.prepared,
               a.wait_event_type OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||) a.wait_event
        FROM idempotence.root_blocker($1) r
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) r.root
        LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.gid OPERATOR(pg_catalog.=) r.prepared
        WHERE r.root IS NOT NULL";
    first(sql::rows(query, &[pid.into()], transaction))
}

fn transaction(row: &SpiHeapTupleData<'_>) -> Result<Transaction, spi::Error> {
    Ok(Transaction {
        holds: row.get(1)?.unwrap_or(false),
        pid: row.get(2)?,
        role: row.get(3)?,
        application: row.get(4)?,
        client_addr: row.get(5)?,
        state: row.get(6)?,
        since: row.get(7)?,
        prepared: row.get(8)?,
        wait_event: row.get(9)?,
    })
}

/// How an outcome was recorded.
pub struct Record {
    /// The role that did it.
    pub by: String,
    /// The size of the response as it is stored; `None`: there is none.
    pub response_bytes: Option<i32>,
    /// The first and the last number, of a numbered request.
    pub numbers: Option<(i64, i64)>,
}

/// The record of a keyed request that was done last, expired or not.
pub fn record(digest: &Digest) -> Result<Option<Record>, Error> {
    let query = format!(
        "SELECT o.recorded_by, pg_catalog.pg_column_size(o.response), NULL::pg_catalog.int8, NULL::pg_catalog.int8 FROM ({}) o
         WHERE o.digest OPERATOR(pg_catalog.=) $1 ORDER BY o.expires_at DESC LIMIT 1",
        segment::each_outcome(|table| format!("SELECT digest, recorded_by, response, expires_at FROM {table}"))
    );
    first(sql::rows(&query, &[Uuid::from_bytes(digest.0).into()], of_row))
}

/// The record of the numbered request that has this number among its numbers, whether its response was dropped or not.
pub fn record_of_number(of: Stream<'_>, number: i64) -> Result<Option<Record>, Error> {
    let query = "
        SELECT r.recorded_by, pg_catalog.pg_column_size(r.response), r.first, r.last
        FROM idempotence.reply r
        WHERE r.session OPERATOR(pg_catalog.=) $1 AND r.stream OPERATOR(pg_catalog.=) $2
          AND $3 OPERATOR(pg_catalog.>=) r.first AND $3 OPERATOR(pg_catalog.<=) r.last";
    let arguments = [Uuid::from_bytes(*of.session).into(), of.name.into(), number.into()];
    first(sql::rows(query, &arguments, of_row))
}

fn of_row(row: &SpiHeapTupleData<'_>) -> Result<Record, spi::Error> {
    let numbers = row.get(3)?.zip(row.get(4)?);
    Ok(Record { by: row.get(1)?.unwrap_or_default(), response_bytes: row.get(2)?, numbers })
}

/// Whether a request was given up: all attempts that its session allows were begun, and none was completed.
pub fn was_given_up(outcome: &Outcome) -> Result<bool, Error> {
    // A journal and an import have the status alone.
    let Some(response) = outcome.response.filter(|_| outcome.class == Class::Failed && outcome.token.is_none()) else {
        return Ok(outcome.class == Class::GivenUp);
    };
    let told = first(sql::rows("SELECT idempotence.is_of_given_up($1)", &[response.into()], |row| row.get(1)))?;
    Ok(told.flatten().unwrap_or(false))
}

/// The last repairs of a request, or of all requests whose keys begin as its key does, as JSON, the last one first; and when the
/// last of them that takes responses away took place. `request` is what the audit calls the request. Before `made_at` another
/// session, perhaps of another role, had the name.
pub fn repairs(
    session: &str,
    request: &str,
    made_at: i64,
    most: usize,
    with_reason: bool,
) -> Result<(Value, Option<i64>), Error> {
    let reason = if with_reason { ", a.reason" } else { "" };
    let query = format!("
        SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_strip_nulls(pg_catalog.to_jsonb(r)) ORDER BY r.at DESC)::pg_catalog.text,
               pg_catalog.max(r.at) FILTER (WHERE r.action OPERATOR(pg_catalog.^@) 'redact')
        FROM (SELECT a.at, a.by, a.login, a.action, a.found{reason} FROM idempotence.audit a
              WHERE a.session OPERATOR(pg_catalog.=) $1
                AND (a.request OPERATOR(pg_catalog.=) $2
                     OR a.action OPERATOR(pg_catalog.~~) '%prefix' AND $2 OPERATOR(pg_catalog.^@) a.request)
                AND a.at OPERATOR(pg_catalog.>=) $4
              ORDER BY a.at DESC LIMIT $3) r");
    let arguments = [session.into(), request.into(), (most as i64).into(), Timestamptz(made_at).into()];
    let found = first(sql::rows(&query, &arguments, |row| {
        Ok((row.get::<String>(1)?, row.get::<Timestamptz>(2)?.map(|at| at.0)))
    }))?;
    let (told, redacted_at) = found.unwrap_or_default();
    let broken = |error| Error::Corrupted { message: format!("the audit of a request is no JSON: {error}") };
    Ok((told.map_or(Ok(json!([])), |told| serde_json::from_str(&told)).map_err(broken)?, redacted_at))
}

fn first<T>(rows: Result<Vec<T>, Error>) -> Result<Option<T>, Error> {
    Ok(rows?.into_iter().next())
}
