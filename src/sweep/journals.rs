//! The sweep's step for journals: it deletes what has expired, a journal in a transaction.
//!
//! Rows are deleted as the table's owner, and only if the session's owner has that role's privileges: a table may have
//! changed hands since the session was made.

use crate::domain::limits::KEEP_SLACK_US;
use crate::error::Error;
use crate::journal::table::{self, Journal};
use crate::open;
use crate::pg::{self, Sight, Statement};
use crate::store::{rel, sql, sweep as noted};
use crate::sweep::parts::Progress;
use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{self, INT8OID, TIMESTAMPTZOID};
use std::collections::VecDeque;

/// How long the deletion of a batch may take. It is shorter than the time after which PostgreSQL looks for a deadlock, so
/// that nobody else becomes the victim.
const BATCH_US: i64 = 500_000;

/// How many batches of a journal a sweep deletes. Somebody may insert as many expired rows as are deleted.
const BATCHES: u16 = 1000;

/// The journals that this process has still to look through, and how many batches of each it has deleted.
static LEFT: pg::Own<VecDeque<(String, u16)>> = pg::Own::new();

/// Deletes about `limit` expired rows of a journal. The journals take turns, in an order by chance: a process that comes to
/// grief over one of them does not always leave the same ones for later.
pub fn delete(limit: usize) -> Result<Progress, Error> {
    if LEFT.with(|left| left.is_empty()) {
        let query = "SELECT s.journal FROM idempotence.session s WHERE s.journal IS NOT NULL AND s.ended_at IS NULL GROUP BY s.journal ORDER BY pg_catalog.random()";
        let all = sql::column::<String>(query, &[])?;
        noted::forget_failed(&all)?;
        LEFT.with(|left| left.extend(all.into_iter().map(|name| (name, 0))));
    }
    let Some((journal, batches)) = LEFT.with(VecDeque::pop_front) else { return Ok(Progress::default()) };
    let rows = delete_for_any(&journal, limit)?;
    let more = LEFT.with(|left| {
        if rows.as_ref().is_ok_and(|rows| *rows >= limit) && batches + 1 < BATCHES {
            left.push_back((journal.clone(), batches + 1));
        }
        !left.is_empty()
    });
    noted::save_failed(&journal, rows.as_ref().err().map(String::as_str))?;
    Ok(match rows {
        Ok(rows) => Progress::counted(rows, "expired rows of a journal deleted", more),
        Err(why) => {
            let delayed = vec![format!("what has expired in journal {journal} cannot be deleted yet: {why}")];
            Progress { done: Vec::new(), delayed, more }
        }
    })
}

/// Deletes for the first owner of a session for whom it can be done. The error within tells in words why it could be for none.
fn delete_for_any(journal: &str, limit: usize) -> Result<Result<usize, String>, Error> {
    let query = "SELECT DISTINCT s.owner::pg_catalog.oid FROM idempotence.session s WHERE s.journal OPERATOR(pg_catalog.=) $1 AND s.ended_at IS NULL";
    let mut why = Ok(0);
    for session_owner in sql::column::<pg_sys::Oid>(query, &[journal.into()])? {
        // As the session's owner, whoever sweeps: what is noted is what hinders the worker, and not a right that a caller lacks.
        let delete = || pg::as_role(session_owner, || delete_for(journal, session_owner, limit));
        why = Err(match pg::undone_on_error(BATCH_US, delete) {
            Ok(Ok(rows)) => return Ok(Ok(rows)),
            Ok(Err(Error::UnfitJournal { detail, .. })) => detail,
            Ok(Err(_)) => "there is no such table".into(),
            Err(Some(message)) => message,
            Err(None) => TOO_LONG.into(),
        });
    }
    Ok(why)
}

/// Why a batch was given up.
const TOO_LONG: &str = "it takes longer than 0.5 s; somebody is at work on such rows, or no index on expires_at helps";

/// Deletes about `limit` expired rows, if whoever owns the session has the rights of the table's owner.
fn delete_for(name: &str, session_owner: pg_sys::Oid, limit: usize) -> Result<usize, Error> {
    let refused = |why: &str| Error::UnfitJournal { journal: name.into(), detail: why.into() };
    let journal = table::find(name)?;
    if !pg::has_privileges(session_owner, journal.owner) {
        return Err(refused("the table is another role's"));
    }
    // Nobody waits here for whoever has the table to himself.
    let lock = |table| rel::try_lock(table, pg_sys::RowExclusiveLock);
    let is_open = || open::unrecorded().is_some();
    let had_open = is_open();
    let now_us = pg::now_us().saturating_sub(KEEP_SLACK_US);
    let delete = || match journal.is_local {
        true => delete_here(&journal, now_us, limit),
        false => delete_elsewhere(&journal, now_us, limit),
    };
    let deleted = pg::as_role(journal.owner, || table::execute(&journal, lock, delete))?;
    if is_open() && !had_open {
        // Raised, so that the batch is undone: its commit would fail, and with it the whole visit of the worker.
        let message = "a trigger of it begins a request, and does not record it".into();
        Error::Invalid { message, detail: String::new(), hint: "" }.raise();
    }
    deleted.map(|rows| rows as usize).ok_or_else(|| refused("somebody has locked the table"))
}

/// What has expired. $1 is the present moment, less the slack that time keys ahead of the clock need.
const EXPIRED: &str =
    "j.expires_at OPERATOR(pg_catalog.<=) $1 AND (j.leased_until IS NULL OR j.leased_until OPERATOR(pg_catalog.<=) $1)";

/// Passes by the rows that somebody is at work on.
fn delete_here(journal: &Journal, now_us: i64, limit: usize) -> u64 {
    let (rows, tenant) = (journal.rows(), &journal.tenant);
    let delete = format!(
        "DELETE FROM {rows} d USING (SELECT j.{tenant} AS tenant, j.session, j.request FROM {rows} j WHERE {EXPIRED}
                                     ORDER BY j.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) e
         WHERE d.{tenant} OPERATOR(pg_catalog.=) e.tenant AND d.session OPERATOR(pg_catalog.=) e.session
           AND d.request OPERATOR(pg_catalog.=) e.request"
    );
    execute(&delete, now_us, INT8OID, limit as i64).0
}

/// A batch ends at a moment, and not at a number of rows: a table that is distributed is not deleted from by a LIMIT.
fn delete_elsewhere(journal: &Journal, now_us: i64, limit: usize) -> u64 {
    let name = &journal.name;
    let last = format!("SELECT j.expires_at FROM {name} j WHERE {EXPIRED} ORDER BY j.expires_at OFFSET $2 LIMIT 1");
    let delete = format!("DELETE FROM {name} j WHERE {EXPIRED} AND j.expires_at OPERATOR(pg_catalog.<=) $2");
    let upto = execute(&last, now_us, INT8OID, limit.saturating_sub(1) as i64).1.unwrap_or(now_us);
    execute(&delete, now_us, TIMESTAMPTZOID, upto).0
}

/// Executes a statement for the moment $1 and the number or moment $2. Gives how many rows it processed, and the
/// moment that it returned.
fn execute(statement: &str, now_us: i64, of: BuiltinOid, number: i64) -> (u64, Option<i64>) {
    let statement = Statement::prepare(statement, &[TIMESTAMPTZOID.value(), of.value()]);
    let values = [Some(now_us.into()), Some(number.into())];
    let mut moment = None;
    (statement.execute(&values, Sight::OfTransaction, |row| moment = row.get(0)), moment)
}
