//! Deletes what has expired in journals.
//!
//! A journal belongs to a user, and so do its triggers. So its owner deletes here, and can do nothing else meanwhile, as
//! when PostgreSQL maintains a table. A batch is bounded by a moment and not by a LIMIT, since a journal may be
//! distributed over many servers.

use super::table::{self, Journal};
use crate::domain::limits::KEEP_SLACK_US;
use crate::error::Error;
use crate::pg::{self, Sight, Statement};
use crate::store::sql;
use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{INT8OID, TIMESTAMPTZOID};
use pgrx::spi::Spi;
use std::rc::Rc;

/// How long a deletion may take, with its waits for those who are at work on an expired row.
const PATIENCE_US: i64 = 5_000_000;

/// What was deleted.
#[derive(Default)]
pub struct Deleted {
    /// How many rows.
    pub rows: usize,
    /// Whether there are more.
    pub more: bool,
    /// Of which journals nothing was deleted, and why, in words.
    pub failed: Vec<String>,
}

/// Deletes about `limit` expired rows of each journal that a session has.
pub fn delete(limit: usize) -> Result<Deleted, Error> {
    let query = "SELECT DISTINCT s.journal FROM idempotence.session s WHERE s.journal IS NOT NULL ORDER BY 1";
    let mut deleted = Deleted::default();
    for name in sql::column::<String>(query, &[])? {
        let why = match table::find(&name).map(|journal| pg::undone_on_error(|| delete_in(&journal, limit))) {
            Ok(Ok(Some(rows))) => {
                deleted.rows += rows;
                deleted.more |= rows >= limit;
                continue;
            }
            Ok(Ok(None)) => "somebody is at work on such rows".to_owned(),
            Ok(Err(message)) => message,
            Err(_) => "there is no such table, or it does not fit".to_owned(),
        };
        deleted.failed.push(format!("what has expired in journal {name} cannot be deleted yet: {why}"));
    }
    Ok(deleted)
}

/// Deletes about `limit` expired rows. `None`: the table is gone, or a wait took too long.
fn delete_in(journal: &Rc<Journal>, limit: usize) -> Option<usize> {
    let owner = owner(journal.oid)?;
    let now_us = pg::now_us().saturating_sub(KEEP_SLACK_US);
    let expired = "j.expires_at OPERATOR(pg_catalog.<=) $1 AND (j.leased_until IS NULL OR j.leased_until OPERATOR(pg_catalog.<=) $1)";
    let last = Statement::prepare(
        &format!("SELECT j.expires_at FROM {} j WHERE {expired} ORDER BY j.expires_at OFFSET $2 LIMIT 1", journal.name),
        &[TIMESTAMPTZOID.value(), INT8OID.value()],
    );
    let delete = Statement::prepare(
        &format!("DELETE FROM {} j WHERE {expired} AND j.expires_at OPERATOR(pg_catalog.<=) $2", journal.name),
        &[TIMESTAMPTZOID.value(), TIMESTAMPTZOID.value()],
    );
    let work = || {
        pg::as_owner_alone(owner, || {
            let place = limit.saturating_sub(1) as i64;
            let arguments = [Some(now_us.into()), Some(place.into())];
            let found = last.execute(&arguments, Sight::OfTransaction, |row| row.int8(0)).1.flatten();
            let upto: i64 = found.unwrap_or(now_us);
            delete.execute(&[Some(now_us.into()), Some(upto.into())], Sight::OfTransaction, |_| ()).0
        })
    };
    pg::tentatively(Some(PATIENCE_US), work, |_| true).map(|deleted| deleted as usize)
}

fn owner(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let query = "SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) $1";
    Spi::get_one_with_args(query, &[table.into()]).ok().flatten()
}
