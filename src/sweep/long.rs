//! The sweep's step for `outcome_long`, which has the outcomes that outlive the segment which was the current one when they
//! were recorded: it deletes those that have expired.
//!
//! It does so under the request's lock, also in an inbox. It only tries for that lock, and leaves an outcome whose lock is
//! held, or that an inbox is renewing, for the next time. So it waits for nobody.
//!
//! The statements are SQL, which also serves whatever a DBA has added to the table.

use crate::domain::identity::{Digest, SessionId};
use crate::domain::limits::EXPIRY_GRACE_US;
use crate::error::Error;
use crate::lock::Tag;
use crate::pg::{self, Timestamptz};
use crate::store::catalog::Table;
use crate::store::exclusive;
use crate::store::rel::{Access, Rel};
use crate::store::sql::{self, ids};
use crate::sweep::parts::Progress;
use pgrx::datum::Uuid;

/// Outcomes that had expired at $2, at most $1, the oldest first. The oldest $3 are left out.
const OLDEST: &str = "SELECT o.digest FROM ONLY idempotence.outcome_long o
    WHERE o.expires_at OPERATOR(pg_catalog.<=) $2 ORDER BY o.expires_at LIMIT $1 OFFSET $3";

/// Deletes those of the outcomes $1 that had expired at $2.
const DELETE: &str = "
    DELETE FROM ONLY idempotence.outcome_long WHERE digest OPERATOR(pg_catalog.=) ANY (ARRAY(
      SELECT o.digest FROM ONLY idempotence.outcome_long o
      WHERE o.digest OPERATOR(pg_catalog.=) ANY ($1) AND o.expires_at OPERATOR(pg_catalog.<=) $2 FOR UPDATE SKIP LOCKED))";

/// Deletes at most `limit` outcomes that have expired. Truncates the table when nothing is left in it.
pub fn delete_expired(limit: usize) -> Result<Progress, Error> {
    let mut progress = Progress::default();
    if Rel::open(Table::OutcomeLong, Access::Read).is_empty() {
        return Ok(progress);
    }
    // The statements that follow do not wait behind VACUUM FULL then.
    if !Rel::try_lock(Table::OutcomeLong) {
        let holders =
            "SELECT idempotence.holders(ARRAY['idempotence.outcome_long'::pg_catalog.regclass::pg_catalog.oid], NULL)";
        progress.delay("outcomes cannot be deleted", holders)?;
        return Ok(progress);
    }
    let before = Timestamptz(pg::now_us().saturating_sub(EXPIRY_GRACE_US));
    // Those that others have locked are no more than the server has places for locks, and hide no outcome behind them.
    let mut looked_at = 0;
    let ours = loop {
        let found = sql::column::<Uuid>(OLDEST, &[(limit as i64).into(), before.into(), (looked_at as i64).into()])?;
        let digests = found.iter().map(|digest| *digest.as_bytes());
        let ours: Vec<SessionId> = digests.filter(|digest| Tag::request(&Digest(*digest)).try_acquire()).collect();
        looked_at += found.len();
        if !ours.is_empty() || found.len() < limit {
            break ours;
        }
    };
    if !ours.is_empty() {
        let deleted = sql::execute(DELETE, &[ids(&ours).into(), before.into()])?;
        // Those that an inbox is renewing are left.
        return Ok(Progress::counted(deleted, "expired long-lived outcomes deleted", deleted > 0));
    }
    if looked_at == 0 && !is_any()? && exclusive::lock_alone(Table::OutcomeLong) && !is_any()? {
        sql::execute("TRUNCATE ONLY idempotence.outcome_long", &[])?;
    }
    Ok(progress)
}

/// Whether there is any outcome. The query uses the index on `expires_at`, since such a scan also removes the entries
/// of dead rows.
fn is_any() -> Result<bool, Error> {
    let query = "SELECT o.digest FROM ONLY idempotence.outcome_long o ORDER BY o.expires_at LIMIT 1";
    sql::first::<Uuid>(query).map(|found| found.is_some())
}
