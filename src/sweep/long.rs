//! The sweep's step for `outcome_long`: it deletes the outcomes that have expired.

use crate::domain::limits::EXPIRY_GRACE_US;
use crate::error::Error;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::exclusive;
use crate::store::outcome_long;
use crate::store::rel::{Access, Rel};
use crate::store::sql;
use crate::sweep::parts::Progress;

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
    let before = pg::now_us().saturating_sub(EXPIRY_GRACE_US);
    // Those that others have locked are no more than the server has places for locks, and hide no outcome behind them.
    let mut looked_at = 0;
    let ours = loop {
        let found = outcome_long::expired(before, limit, looked_at)?;
        let ours = outcome_long::lock_requests(&found);
        looked_at += found.len();
        if !ours.is_empty() || found.len() < limit {
            break ours;
        }
    };
    if !ours.is_empty() {
        let deleted = outcome_long::delete(&ours, before)?;
        // Those that an inbox is renewing are left.
        return Ok(Progress::counted(deleted, "expired long-lived outcomes deleted", deleted > 0));
    }
    if looked_at == 0
        && !outcome_long::is_any()?
        && exclusive::lock_alone(Table::OutcomeLong)
        && !outcome_long::is_any()?
    {
        sql::execute("TRUNCATE ONLY idempotence.outcome_long", &[])?;
    }
    Ok(progress)
}
