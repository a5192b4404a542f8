//! `idempotence.outcome_long`: the few outcomes that outlived their segment. Each comes here once in its
//! life, moved by the sweep, and is deleted by it when it has expired.
//!
//! Both are done under the requests' locks, inboxes' too, which are only tried for: what is in use is left
//! for the next time. So the sweep waits for nobody here: all others that change an outcome once its segment
//! is closed (a record that replaces an expired one, `idem_forget`) have its request's lock.
//!
//! Written by SQL, which serves whatever a DBA has added to these tables.

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

/// Takes the lock to write a table, if nobody is in the way. So no statement waits behind VACUUM FULL.
pub fn try_lock(table: Table) -> bool {
    rel::try_lock(cache::oid(table), pg_sys::RowExclusiveLock)
}

/// Those whose request's lock could be had; to the end of the transaction.
pub fn locked(digests: &[Digest]) -> Vec<SessionId> {
    digests.iter().filter(|digest| Tag::request(digest).try_acquire()).map(|digest| digest.0).collect()
}

/// Moves outcomes from a segment here; whether all of them could be had. The caller has the locks to write
/// both tables, and this transaction has begun after all backends were told that there is something here.
pub fn move_here(segment: usize, digests: &[Digest]) -> Result<(usize, bool), Error> {
    let ours = locked(digests);
    let all = ours.len() == digests.len();
    if ours.is_empty() {
        return Ok((0, all));
    }
    // What an inbox may have left here under the same key has expired since, or there were no other.
    let clear = "DELETE FROM ONLY idempotence.outcome_long WHERE digest OPERATOR(pg_catalog.=) ANY ($1)";
    sql::execute(clear, &[ids(&ours).into()])?;
    let columns = "digest, session, recorded_at, expires_at, recorded_by, class, key, fingerprint, token, response";
    let statement = format!(
        "WITH moved AS (DELETE FROM ONLY idempotence.outcome_{segment} WHERE digest OPERATOR(pg_catalog.=) ANY ($1) RETURNING *)
         INSERT INTO idempotence.outcome_long ({columns}) SELECT {columns} FROM moved ORDER BY digest"
    );
    as_ours(|| sql::execute(&statement, &[ids(&ours).into()])).map(|_| (ours.len(), all))
}

/// Outcomes that had expired at `before`, at most `limit`.
pub fn expired(before: i64, limit: usize) -> Result<Vec<Digest>, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o
        WHERE o.expires_at OPERATOR(pg_catalog.<=) $2 ORDER BY o.expires_at LIMIT $1";
    let found = sql::column::<Uuid>(query, &[(limit as i64).into(), moment(before).into()])?;
    Ok(found.iter().map(|digest| Digest(*digest.as_bytes())).collect())
}

/// Whether there is any, found by the index on their ends, from which a scan takes off what is dead.
pub fn is_any() -> Result<bool, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o ORDER BY o.expires_at LIMIT 1";
    sql::first::<Uuid>(query).map(|found| found.is_some())
}

/// Deletes those of the outcomes that had expired at `before`; how many. The caller has their requests' locks.
pub fn delete(digests: &[SessionId], before: i64) -> Result<usize, Error> {
    let statement = "DELETE FROM ONLY idempotence.outcome_long
        WHERE digest OPERATOR(pg_catalog.=) ANY ($1) AND expires_at OPERATOR(pg_catalog.<=) $2";
    sql::execute(statement, &[ids(digests).into(), moment(before).into()])
}

/// Whether the table has no page.
pub fn is_blank() -> bool {
    Rel::open(Table::OutcomeLong, Access::Read).is_empty()
}

/// Truncates the table. The caller has it alone.
pub fn truncate() -> Result<(), Error> {
    sql::execute("TRUNCATE ONLY idempotence.outcome_long", &[]).map(drop)
}
