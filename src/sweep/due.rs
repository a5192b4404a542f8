//! The statements that find the sessions which the sweep works on, and those that change or delete them.
//!
//! The sessions are found without a lock. So the caller takes the lock of each session and looks at it again.

use crate::domain::cursor::Cursor;
use crate::domain::identity::SessionId;
use crate::domain::limits::SIGNS_A_TIMEOUT;
use crate::error::Error;
use crate::pg::Timestamptz;
use crate::store::catalog::Table;
use crate::store::sql::{self, ids};
use crate::sweep::parts::{self, Part};
use pgrx::datum::Uuid;

/// Finds saved client sessions that have not ended and are not at work, as after a crash.
pub fn not_at_work(from: Cursor, limit: usize) -> Result<Part, Error> {
    // OFFSET 0 keeps the planner from making a join of it, which might read all sessions at work.
    let condition = "t.name IS NULL AND t.ended_at IS NULL
        AND NOT EXISTS (SELECT FROM idempotence.session_live l WHERE l.id OPERATOR(pg_catalog.=) t.id OFFSET 0)";
    parts::find(Table::Session, "id", from, limit, condition, Vec::new())
}

/// Finds sessions at work whose clock has run out. Before `up_since` no session's time passes.
pub fn silent(from: Cursor, limit: usize, now_us: i64, up_since: i64) -> Result<Part, Error> {
    let condition = format!(
        "GREATEST(t.last_seen, $3) OPERATOR(pg_catalog.+) (t.timeout OPERATOR(pg_catalog.*) (1.0 OPERATOR(pg_catalog.+) (1.0 OPERATOR(pg_catalog./) {SIGNS_A_TIMEOUT}))::pg_catalog.float8)
         OPERATOR(pg_catalog.<=) $2"
    );
    let arguments = vec![Timestamptz(now_us).into(), Timestamptz(up_since).into()];
    parts::find(Table::SessionLive, "id", from, limit, &condition, arguments)
}

/// Finds at most `limit` client sessions that ended at this moment or before, the longest ended first. The first `skipped` are
/// left out.
pub fn ended_before(us: i64, limit: usize, skipped: usize) -> Result<Vec<SessionId>, Error> {
    let query = "
        SELECT s.id FROM idempotence.session s
        WHERE s.name IS NULL AND s.ended_at OPERATOR(pg_catalog.<=) $2
        ORDER BY s.ended_at LIMIT $1 OFFSET $3";
    let arguments = [(limit as i64).into(), Timestamptz(us).into(), (skipped as i64).into()];
    Ok(sql::column::<Uuid>(query, &arguments)?.iter().map(|id| *id.as_bytes()).collect())
}

/// Deletes at most `limit` rows that ended sessions leave behind: replies first, then streams, and when none
/// of these is left, the sessions themselves. A row that somebody has locked, by a redaction for example, is left for the
/// next time, and its session with it. Returns the number of rows, and how many of them are sessions.
pub fn delete(sessions: &[SessionId], limit: usize) -> Result<(usize, usize), Error> {
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

/// Finds sessions that name a dropped role, as their owner or as the role that they are lent to.
pub fn ownerless(from: Cursor, limit: usize) -> Result<Part, Error> {
    let condition = format!("({} OR {})", is_gone("t.owner"), is_gone("t.usable_by"));
    parts::find(Table::Session, "id", from, limit, &condition, Vec::new())
}

/// The name of a standing session, or of its tombstone.
pub fn name_of(id: &SessionId) -> Result<Option<String>, Error> {
    let query = "SELECT s.name FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) $1";
    Ok(sql::column::<String>(query, &[Uuid::from_bytes(*id).into()])?.pop())
}

/// Takes dropped roles out of these sessions. A session without an owner is left to superusers; a loan to a
/// dropped role ends. The caller holds the sessions' locks.
pub fn clear_owners(sessions: &[SessionId]) -> Result<usize, Error> {
    let (owner, borrower) = (is_gone("owner"), is_gone("usable_by"));
    let statement = format!(
        "UPDATE idempotence.session
         SET owner = CASE WHEN {owner} THEN 0::pg_catalog.oid::pg_catalog.regrole ELSE owner END,
             usable_by = CASE WHEN {borrower} THEN NULL ELSE usable_by END
         WHERE id OPERATOR(pg_catalog.=) ANY ($1) AND ({owner} OR {borrower})"
    );
    sql::execute(&statement, &[ids(sessions).into()])
}
