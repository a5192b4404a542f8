//! The sweep's steps for sessions: put back to work, end, delete, clear of dropped roles, and forget.
//!
//! The sessions are found without a lock. So each step takes the lock of each session and looks at it again.

use crate::domain::cursor::Cursor;
use crate::domain::end::End;
use crate::domain::identity::SessionId;
use crate::domain::limits::SIGNS_A_TIMEOUT;
use crate::error::Error;
use crate::guc;
use crate::model::ClientSession;
use crate::names;
use crate::pg::{self, Timestamptz};
use crate::sessions::liveness;
use crate::store::catalog::Table;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use crate::store::sql::{self, ids};
use crate::sweep::parts::{self, Done, Progress};
use crate::sweep::tombstones;
use pgrx::datum::Uuid;

/// Puts saved sessions back to work, each with a full fresh timeout from the moment when the server came up or
/// the sessions were restored. Ends the sessions whose timeout has passed since that moment. Returns the number
/// put back, and where to go on.
///
/// The session's lock is shared here. That keeps out whoever resumes, fences or ends the session, since they
/// need its lock alone. The lock for signs of life keeps out whoever gives one at the same time. A session whose
/// clock has run out is not shared: that would look like use. Its lock is taken alone, to end it.
pub fn restore(from: Cursor, batch: usize) -> Done {
    let last_seen = liveness::restored_at();
    // OFFSET 0 keeps the planner from making a join of it, which might read all sessions at work.
    let not_at_work = "t.name IS NULL AND t.ended_at IS NULL
        AND NOT EXISTS (SELECT FROM idempotence.session_live l WHERE l.id OPERATOR(pg_catalog.=) t.id OFFSET 0)";
    let (ids, next) = parts::find(Table::Session, "id", from, batch, not_at_work, Vec::new())?;
    let restored = ids.iter().filter(|id| restore_one(id, last_seen)).count();
    Ok((restored, next))
}

fn restore_one(id: &SessionId, last_seen: i64) -> bool {
    let run_out = |session: &ClientSession| liveness::clock_has_run_out(session, last_seen);
    // Since it was found, it may have ended, or its own client has put it to work.
    let not_at_work = || saved::find(id).filter(|saved| saved.ended.is_none() && live::find(id).is_none());
    let lock = names::client_session_lock(id);
    let Some(found) = not_at_work() else { return false };
    if run_out(&found.session) {
        if lock.try_acquire()
            && let Some(saved) = not_at_work()
            && run_out(&saved.session)
        {
            liveness::end(&saved.session, End::Expired);
        }
        return false;
    }
    if !lock.try_share() || !names::sign_of_life_lock(id).try_acquire() {
        return false;
    }
    let Some(saved) = not_at_work() else { return false };
    live::save(&saved.session, last_seen);
    true
}

/// Ends sessions whose client has fallen silent and that no transaction uses. Returns the number ended, and
/// where to go on.
pub fn end_silent(from: Cursor, batch: usize) -> Done {
    let now_us = pg::now_us();
    // Before the server came up no session's time passes.
    let silent = format!(
        "GREATEST(t.last_seen, $3) OPERATOR(pg_catalog.+) (t.timeout OPERATOR(pg_catalog.*) (1.0 OPERATOR(pg_catalog.+) (1.0 OPERATOR(pg_catalog./) {SIGNS_A_TIMEOUT}))::pg_catalog.float8)
         OPERATOR(pg_catalog.<=) $2"
    );
    let arguments = vec![Timestamptz(now_us).into(), Timestamptz(pg::up_since().unwrap_or(now_us)).into()];
    let (ids, next) = parts::find(Table::SessionLive, "id", from, batch, &silent, arguments)?;
    let ended = ids.iter().filter(|id| end_if_silent(id)).count();
    Ok((ended, next))
}

fn end_if_silent(id: &SessionId) -> bool {
    // No transaction uses it if its lock can be taken alone.
    let live = names::client_session_lock(id).try_acquire().then(|| live::find(id)).flatten();
    let silent = live.filter(|live| liveness::clock_has_run_out(&live.session, live.last_seen));
    silent.map(|live| liveness::end(&live.session, End::Expired)).is_some()
}

/// Deletes sessions that ended a retention ago, with all that they leave behind, which are rows up to a batch.
pub fn delete_ended() -> Result<Progress, Error> {
    let batch = guc::sweep_batch();
    let before_us = pg::now_us().saturating_sub(guc::retention_us());
    // The longest ended first.
    let query = "
        SELECT s.id FROM idempotence.session s
        WHERE s.name IS NULL AND s.ended_at OPERATOR(pg_catalog.<=) $2
        ORDER BY s.ended_at LIMIT $1 OFFSET $3";
    // What others have locked hides nothing behind it. For each such row they hold a lock on its lane, so there are few.
    let mut looked_at = 0;
    loop {
        let arguments = [(batch as i64).into(), Timestamptz(before_us).into(), (looked_at as i64).into()];
        let found = sql::column::<Uuid>(query, &arguments)?;
        let ended: Vec<SessionId> = found.iter().map(|id| *id.as_bytes()).collect();
        let (rows, deleted) = if ended.is_empty() { (0, 0) } else { delete(&ended, batch)? };
        looked_at += ended.len();
        if rows > 0 || ended.len() < batch {
            return Ok(Progress::counted(deleted, "ended client sessions deleted", rows >= batch));
        }
    }
}

/// Deletes at most `limit` rows that ended sessions leave behind: replies first, then streams, and when none
/// of these is left, the sessions themselves. A row that somebody has locked, by a redaction for example, is left for the
/// next time, and its session with it. Returns the number of rows, and how many of them are sessions.
fn delete(sessions: &[SessionId], limit: usize) -> Result<(usize, usize), Error> {
    let mut rows = 0;
    for table in [Table::Reply, Table::Stream] {
        if rows < limit {
            let table = table.name();
            let statement = format!(
                "DELETE FROM idempotence.{table} WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
                   SELECT r.ctid FROM idempotence.{table} r WHERE r.session OPERATOR(pg_catalog.=) ANY ($1) LIMIT $2
                   FOR UPDATE SKIP LOCKED))"
            );
            rows += sql::execute(&statement, &[ids(sessions).into(), ((limit - rows) as i64).into()])?;
        }
    }
    if rows >= limit {
        return Ok((rows, 0));
    }
    // The trigger `forget_cached` has every backend drop the sessions that it remembers.
    let statement = "
        DELETE FROM idempotence.session WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY(
          SELECT s.id FROM idempotence.session s
          WHERE s.id OPERATOR(pg_catalog.=) ANY ($1) AND s.ended_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM idempotence.reply r WHERE r.session OPERATOR(pg_catalog.=) s.id)
            AND NOT EXISTS (SELECT FROM idempotence.stream r WHERE r.session OPERATOR(pg_catalog.=) s.id)
          FOR UPDATE OF s SKIP LOCKED))";
    let gone = &sessions[..sessions.len().min(limit - rows)];
    let deleted = sql::execute(statement, &[ids(gone).into()])?;
    Ok((rows + deleted, deleted))
}

/// The condition that a column names a role which was dropped.
fn is_gone(column: &str) -> String {
    format!(
        "({column}::pg_catalog.oid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) {column}::pg_catalog.oid))"
    )
}

/// Takes dropped roles out of sessions: a session without an owner is left to superusers, and a loan to a dropped
/// role ends. The bare number of a dropped role may be given to another role some day. Returns the number of
/// sessions, and where to go on.
pub fn clear_owners(from: Cursor, batch: usize) -> Done {
    let ownerless = format!("({} OR {})", is_gone("t.owner"), is_gone("t.usable_by"));
    with_locks(&ownerless, from, batch, |sessions| {
        let (owner, borrower) = (is_gone("owner"), is_gone("usable_by"));
        let statement = format!(
            "UPDATE idempotence.session
             SET owner = CASE WHEN {owner} THEN 0::pg_catalog.oid::pg_catalog.regrole ELSE owner END,
                 usable_by = CASE WHEN {borrower} THEN NULL ELSE usable_by END
             WHERE id OPERATOR(pg_catalog.=) ANY ($1) AND ({owner} OR {borrower})"
        );
        sql::execute(&statement, &[ids(sessions).into()])
    })
}

/// Takes tombstones on to their next stage, see `tombstones.rs`. Returns the number of sessions that were
/// forgotten, and where to go on.
pub fn forget_dropped(from: Cursor, batch: usize) -> Done {
    with_locks(tombstones::NOT_FOR_EVER, from, batch, tombstones::advance)
}

/// Calls `work` for those sessions of the next part, of which a condition is true, whose locks are free, and takes these. The lock
/// of a standing session keeps out whoever makes it again.
fn with_locks(condition: &str, from: Cursor, batch: usize, work: fn(&[SessionId]) -> Result<usize, Error>) -> Done {
    let (ids, next) = parts::find(Table::Session, "id", from, batch, condition, Vec::new())?;
    let mut locked = Vec::new();
    for id in ids {
        let query = "SELECT s.name FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) $1";
        let name = sql::column::<String>(query, &[Uuid::from_bytes(id).into()])?.pop();
        let lock = name.map_or_else(|| names::client_session_lock(&id), |name| names::standing_session_lock(&name));
        if lock.try_acquire() {
            locked.push(id);
        }
    }
    let count = if locked.is_empty() { 0 } else { work(&locked)? };
    Ok((count, next))
}
