//! Which client sessions the sweep has something to do with. What is found here is looked at again under
//! the session's lock: it was chosen without one.

use crate::domain::cursor::Cursor;
use crate::domain::identity::SessionId;
use crate::domain::limits::SIGNS_A_TIMEOUT;
use crate::error::Error;
use crate::store::catalog::Table;
use crate::store::sql::{self, ids, moment};
use crate::sweep::parts::{self, Part};
use pgrx::datum::Uuid;

/// Saved sessions that have not ended and are not at work, as after a crash.
pub fn not_at_work(from: Cursor, limit: usize) -> Result<Part, Error> {
    // OFFSET 0: a look for each of them, however many are at work.
    let condition = "t.name IS NULL AND t.ended_at IS NULL
        AND NOT EXISTS (SELECT FROM idempotence.session_live l WHERE l.id OPERATOR(pg_catalog.=) t.id OFFSET 0)";
    parts::find(Table::Session, "id", from, limit, condition, Vec::new())
}

/// Sessions at work whose clock has run out, none of which can have done so before the server was up.
pub fn silent(from: Cursor, limit: usize, now_us: i64, up_since: i64) -> Result<Part, Error> {
    let condition = format!(
        "GREATEST(t.last_seen, $3) OPERATOR(pg_catalog.+) (t.timeout OPERATOR(pg_catalog.*) (1.0 OPERATOR(pg_catalog.+) (1.0 OPERATOR(pg_catalog./) {SIGNS_A_TIMEOUT}))::pg_catalog.float8)
         OPERATOR(pg_catalog.<=) $2"
    );
    let arguments = vec![moment(now_us).into(), moment(up_since).into()];
    parts::find(Table::SessionLive, "id", from, limit, &condition, arguments)
}

/// Sessions that ended before a moment, the oldest first.
pub fn ended_before(us: i64, limit: usize) -> Result<Vec<SessionId>, Error> {
    let query = "
        SELECT s.id FROM idempotence.session s
        WHERE s.name IS NULL AND s.ended_at OPERATOR(pg_catalog.<=) $2
        ORDER BY s.ended_at LIMIT $1";
    let arguments = [(limit as i64).into(), moment(us).into()];
    Ok(sql::column::<Uuid>(query, &arguments)?.iter().map(|id| *id.as_bytes()).collect())
}

/// Deletes what ended sessions leave behind, at most `limit` rows: replies, what was said of streams, and
/// when none of these is left, the sessions themselves. How many rows, and how many sessions.
pub fn delete(sessions: &[SessionId], limit: usize) -> Result<(usize, usize), Error> {
    let mut rows = 0;
    for table in ["reply", "stream"] {
        let statement = format!(
            "DELETE FROM idempotence.{table} WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
               SELECT r.ctid FROM idempotence.{table} r WHERE r.session OPERATOR(pg_catalog.=) ANY ($1) LIMIT $2))"
        );
        rows += sql::execute(&statement, &[ids(sessions).into(), ((limit - rows) as i64).into()])?;
        if rows >= limit {
            return Ok((rows, 0));
        }
    }
    // Every backend then drops what it remembers of them.
    let statement = "
        DELETE FROM idempotence.session WHERE id OPERATOR(pg_catalog.=) ANY ($1) AND ended_at IS NOT NULL";
    let gone = &sessions[..sessions.len().min(limit - rows)];
    let deleted = sql::execute(statement, &[ids(gone).into()])?;
    Ok((rows + deleted, deleted))
}

/// A session with a role that is gone.
pub struct Ownerless {
    /// Its id.
    pub id: SessionId,
    /// Of a standing session.
    pub name: Option<String>,
}

/// Whether the role in a column was dropped.
fn is_gone(column: &str) -> String {
    format!(
        "({column}::pg_catalog.oid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) {column}::pg_catalog.oid))"
    )
}

/// Sessions whose owner, or the role that they are lent to, is gone, and where to go on.
pub fn ownerless(from: Cursor, limit: usize) -> Result<(Vec<Ownerless>, Option<Cursor>), Error> {
    let condition = format!("({} OR {})", is_gone("t.owner"), is_gone("t.usable_by"));
    let part = parts::find(Table::Session, "id", from, limit, &condition, Vec::new())?;
    let ownerless = part.ids.into_iter().map(|id| Ok(Ownerless { id, name: name_of(&id)? }));
    Ok((ownerless.collect::<Result<_, Error>>()?, part.next))
}

/// The name of a standing session, or of its tombstone.
pub fn name_of(id: &SessionId) -> Result<Option<String>, Error> {
    let query = "SELECT s.name FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) $1";
    Ok(sql::column::<String>(query, &[Uuid::from_bytes(*id).into()])?.pop())
}

/// Leaves sessions whose owner is gone to superusers, and ends loans to roles that are gone. The caller has
/// their locks.
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
