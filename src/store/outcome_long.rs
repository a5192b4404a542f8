//! `idempotence.outcome_long`: the few outcomes that outlived their segment. The sweep moves an outcome here once in
//! its life at most, and deletes it when it has expired.
//!
//! The sweep moves and deletes an outcome under its request's lock, also in an inbox. It only tries for that lock, and
//! leaves an outcome whose lock is held for the next time. Whoever else changes an outcome in a closed segment (a
//! record that replaces an expired one, `idem_forget`) also has the request's lock. So the sweep waits for nobody here.
//!
//! The statements are SQL, which also serves whatever a DBA has added to these tables.

use crate::domain::identity::{Digest, SessionId};
use crate::error::Error;
use crate::lock::Tag;
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::rel::{self, Access, Rel};
use crate::store::sql::{self, ids, moment};
use crate::store::write::as_ours;
use pgrx::datum::Uuid;
use pgrx::pg_sys;

/// All columns of an outcome.
const COLUMNS: &str = "digest, session, recorded_at, expires_at, class, key, recorded_by, fingerprint, token, response";

/// Takes the lock to write a table if no conflicting lock is held; gives whether it did. The statements that follow do
/// not wait behind VACUUM FULL then.
pub fn try_lock(table: Table) -> bool {
    rel::try_lock(cache::oid(table), pg_sys::RowExclusiveLock)
}

/// Locks the requests, to the end of the transaction; gives those whose lock was free.
pub fn lock_requests(digests: &[Digest]) -> Vec<SessionId> {
    digests.iter().filter(|digest| Tag::request(digest).try_acquire()).map(|digest| digest.0).collect()
}

/// Moves outcomes from a segment to this table, except those whose request's lock is held. Gives how many were moved,
/// and whether those were all. The caller has the locks to write both tables. This transaction has begun after all
/// backends were told that this table may have outcomes.
pub fn move_here(segment: usize, digests: &[Digest]) -> Result<(usize, bool), Error> {
    let ours = lock_requests(digests);
    let all = ours.len() == digests.len();
    if ours.is_empty() {
        return Ok((0, all));
    }
    // An inbox may have left an outcome here under the same key. It has expired: otherwise the key would not have been
    // noted again in the segment.
    let clear = "DELETE FROM ONLY idempotence.outcome_long WHERE digest OPERATOR(pg_catalog.=) ANY ($1)";
    sql::execute(clear, &[ids(&ours).into()])?;
    let statement = format!(
        "WITH moved AS (DELETE FROM ONLY idempotence.outcome_{segment} WHERE digest OPERATOR(pg_catalog.=) ANY ($1) RETURNING *)
         INSERT INTO idempotence.outcome_long ({COLUMNS}) SELECT {COLUMNS} FROM moved ORDER BY digest"
    );
    as_ours(|| sql::execute(&statement, &[ids(&ours).into()])).map(|_| (ours.len(), all))
}

/// Outcomes that had expired at `before`, at most `limit`, the oldest first.
pub fn expired(before: i64, limit: usize) -> Result<Vec<Digest>, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o
        WHERE o.expires_at OPERATOR(pg_catalog.<=) $2 ORDER BY o.expires_at LIMIT $1";
    let found = sql::column::<Uuid>(query, &[(limit as i64).into(), moment(before).into()])?;
    Ok(found.iter().map(|digest| Digest(*digest.as_bytes())).collect())
}

/// Whether there is any outcome. The query uses the index on `expires_at`, since such a scan also removes the entries
/// of dead rows.
pub fn is_any() -> Result<bool, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o ORDER BY o.expires_at LIMIT 1";
    sql::first::<Uuid>(query).map(|found| found.is_some())
}

/// Deletes those of the outcomes that had expired at `before`; gives how many of each session. The caller has the
/// requests' locks.
pub fn delete(digests: &[SessionId], before: i64) -> Result<Vec<(SessionId, u64)>, Error> {
    let statement = "WITH gone AS (
          DELETE FROM ONLY idempotence.outcome_long
          WHERE digest OPERATOR(pg_catalog.=) ANY ($1) AND expires_at OPERATOR(pg_catalog.<=) $2 RETURNING session)
        SELECT g.session, pg_catalog.count(*) FROM gone g GROUP BY g.session";
    let gone = sql::changing(statement, &[ids(digests).into(), moment(before).into()], |row| {
        Ok(row.get::<Uuid>(1)?.zip(row.get::<i64>(2)?))
    })?;
    Ok(gone.iter().flatten().map(|(id, count)| (*id.as_bytes(), count.unsigned_abs())).collect())
}

/// Whether the table has no page.
pub fn is_blank() -> bool {
    Rel::open(Table::OutcomeLong, Access::Read).is_empty()
}

/// Truncates the table. The caller has locked it exclusively.
pub fn truncate() -> Result<(), Error> {
    sql::execute("TRUNCATE ONLY idempotence.outcome_long", &[]).map(drop)
}

#[cfg(test)]
mod tests {
    use crate::store::tuple::columns_in_sql;

    #[test]
    fn an_outcome_moves_with_all_its_columns() {
        assert_eq!(super::COLUMNS.split(", ").collect::<Vec<_>>(), columns_in_sql("outcome_0"));
    }
}
