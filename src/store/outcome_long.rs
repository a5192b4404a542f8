//! `idempotence.outcome_long`: the outcomes that outlive the segment which was the current one when they were recorded.
//! The sweep deletes each when it has expired.
//!
//! It does so under the request's lock, also in an inbox. It only tries for that lock, and leaves an outcome whose lock is
//! held, or that an inbox is renewing, for the next time. So it waits for nobody.
//!
//! The statements are SQL, which also serves whatever a DBA has added to the table.

use crate::domain::identity::{Digest, SessionId};
use crate::error::Error;
use crate::lock::Tag;
use crate::pg::Timestamptz;
use crate::store::sql::{self, ids};
use pgrx::datum::Uuid;

/// Locks the requests, to the end of the transaction; gives those whose lock was free.
pub fn lock_requests(digests: &[Digest]) -> Vec<SessionId> {
    digests.iter().filter(|digest| Tag::request(digest).try_acquire()).map(|digest| digest.0).collect()
}

/// Outcomes that had expired at `before`, at most `limit`, the oldest first. The oldest `skipped` are left out.
pub fn expired(before: i64, limit: usize, skipped: usize) -> Result<Vec<Digest>, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o
        WHERE o.expires_at OPERATOR(pg_catalog.<=) $2 ORDER BY o.expires_at LIMIT $1 OFFSET $3";
    let found =
        sql::column::<Uuid>(query, &[(limit as i64).into(), Timestamptz(before).into(), (skipped as i64).into()])?;
    Ok(found.iter().map(|digest| Digest(*digest.as_bytes())).collect())
}

/// Whether there is any outcome. The query uses the index on `expires_at`, since such a scan also removes the entries
/// of dead rows.
pub fn is_any() -> Result<bool, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o ORDER BY o.expires_at LIMIT 1";
    sql::first::<Uuid>(query).map(|found| found.is_some())
}

/// Deletes those of the outcomes that had expired at `before`; gives how many. The caller has the requests' locks.
pub fn delete(digests: &[SessionId], before: i64) -> Result<usize, Error> {
    let statement = "
        DELETE FROM ONLY idempotence.outcome_long WHERE digest OPERATOR(pg_catalog.=) ANY (ARRAY(
          SELECT o.digest FROM ONLY idempotence.outcome_long o
          WHERE o.digest OPERATOR(pg_catalog.=) ANY ($1) AND o.expires_at OPERATOR(pg_catalog.<=) $2 FOR UPDATE SKIP LOCKED))";
    sql::execute(statement, &[ids(digests).into(), Timestamptz(before).into()])
}
