//! Deletes what has expired in journals.
//!
//! A journal belongs to a user, and so do its triggers. So its owner deletes here, and can do nothing else meanwhile, as
//! when PostgreSQL maintains a table. Rows are deleted only if the session's owner has the privileges of the table's owner:
//! a table may have changed hands since the session was made.

use super::table::{self, Journal};
use crate::domain::cursor::Cursor;
use crate::domain::limits::KEEP_SLACK_US;
use crate::error::Error;
use crate::pg::{self, Sight, Statement};
use crate::store::sql;
use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{INT8OID, TIMESTAMPTZOID};

/// How long the deletion of a batch may take. A user's journal may be wherever the user likes, and its triggers may do what
/// they like. It is shorter than the time after which PostgreSQL looks for a deadlock, so that nobody else becomes the victim.
const BATCH_US: i64 = 500_000;

/// How many batches of a journal are deleted before it is the turn of the next one: its triggers may insert as many rows as
/// are deleted.
const BATCHES_MAX: u16 = 1000;

/// What was deleted.
#[derive(Default)]
pub struct Deleted {
    /// How many rows.
    pub rows: usize,
    /// Why nothing was deleted from a journal, in words.
    pub failed: Option<String>,
    /// Where to go on; `None`: that was the last journal.
    pub next: Option<Cursor>,
}

/// Deletes about `limit` expired rows of one journal. The page of `from` counts the journals, its item the batches of that
/// one.
pub fn delete(from: Cursor, limit: usize) -> Result<Deleted, Error> {
    let query = "SELECT s.journal, s.owner::pg_catalog.oid FROM idempotence.session s WHERE s.journal IS NOT NULL AND s.ended_at IS NULL GROUP BY 1, 2 ORDER BY 1, 2";
    let of_owners = sql::pairs::<String, pg_sys::Oid>(query, &[])?;
    let journals: Vec<_> = of_owners.chunk_by(|one, other| one.0 == other.0).collect();
    let Some(of_owners) = journals.get(from.page as usize) else { return Ok(Deleted::default()) };
    let other = Cursor { page: from.page + 1, item: 0 };
    let other = Some(other).filter(|other| (other.page as usize) < journals.len());
    let mut why = None;
    for (name, session_owner) in *of_owners {
        match pg::undone_on_error(BATCH_US, || delete_for(name, *session_owner, limit)) {
            Ok(Ok(Some(rows))) => {
                let again = rows >= limit && from.item < BATCHES_MAX;
                let next = if again { Some(Cursor { item: from.item + 1, ..from }) } else { other };
                return Ok(Deleted { rows, failed: None, next });
            }
            Ok(Ok(None)) => why = Some("the table is another role's".to_owned()),
            Ok(Err(_)) => why = Some("there is no such table, or it does not fit".to_owned()),
            Err(Some(message)) => why = Some(message),
            Err(None) => why = Some(TOO_LONG.to_owned()),
        }
    }
    let failed = why
        .zip(of_owners.first())
        .map(|(why, (name, _))| format!("what has expired in journal {name} cannot be deleted yet: {why}"));
    Ok(Deleted { rows: 0, failed, next: other })
}

/// Why a batch was given up.
const TOO_LONG: &str = "it takes longer than 0.5 s; somebody is at work on such rows, a trigger takes its time, or no index on expires_at helps";

/// Deletes about `limit` expired rows, if whoever owns the session has the rights of the table's owner. `None`: not so.
fn delete_for(name: &str, session_owner: pg_sys::Oid, limit: usize) -> Result<Option<usize>, Error> {
    let journal = table::find(name)?;
    if !pg::has_privileges(session_owner, journal.owner) {
        return Ok(None);
    }
    let now_us = pg::now_us().saturating_sub(KEEP_SLACK_US);
    let deleted = pg::as_owner_alone(journal.owner, || match journal.is_local {
        true => delete_here(&journal, now_us, limit),
        false => delete_elsewhere(&journal, now_us, limit),
    });
    Ok(Some(deleted as usize))
}

/// What has expired. $1 is the present moment, less the slack that time keys ahead of the clock need.
const EXPIRED: &str =
    "j.expires_at OPERATOR(pg_catalog.<=) $1 AND (j.leased_until IS NULL OR j.leased_until OPERATOR(pg_catalog.<=) $1)";

/// Passes by the rows that somebody is at work on.
fn delete_here(journal: &Journal, now_us: i64, limit: usize) -> u64 {
    let (name, tenant) = (&journal.name, &journal.tenant);
    let delete = Statement::prepare(
        &format!(
            "DELETE FROM {name} d USING (SELECT j.{tenant} AS tenant, j.session, j.request FROM {name} j WHERE {EXPIRED}
                                         ORDER BY j.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) e
             WHERE d.{tenant} OPERATOR(pg_catalog.=) e.tenant AND d.session OPERATOR(pg_catalog.=) e.session
               AND d.request OPERATOR(pg_catalog.=) e.request"
        ),
        &[TIMESTAMPTZOID.value(), INT8OID.value()],
    );
    delete.execute(&[Some(now_us.into()), Some((limit as i64).into())], Sight::OfTransaction, |_| ()).0
}

/// A batch ends at a moment, and not at a number of rows: a table that is distributed is not deleted from by a LIMIT.
fn delete_elsewhere(journal: &Journal, now_us: i64, limit: usize) -> u64 {
    let name = &journal.name;
    let last = Statement::prepare(
        &format!("SELECT j.expires_at FROM {name} j WHERE {EXPIRED} ORDER BY j.expires_at OFFSET $2 LIMIT 1"),
        &[TIMESTAMPTZOID.value(), INT8OID.value()],
    );
    let delete = Statement::prepare(
        &format!("DELETE FROM {name} j WHERE {EXPIRED} AND j.expires_at OPERATOR(pg_catalog.<=) $2"),
        &[TIMESTAMPTZOID.value(), TIMESTAMPTZOID.value()],
    );
    let place = limit.saturating_sub(1) as i64;
    let found = last.execute(&[Some(now_us.into()), Some(place.into())], Sight::OfTransaction, |row| row.int8(0));
    let upto: i64 = found.1.flatten().unwrap_or(now_us);
    delete.execute(&[Some(now_us.into()), Some(upto.into())], Sight::OfTransaction, |_| ()).0
}
