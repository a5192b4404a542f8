//! How many client sessions a role may have at work.
//!
//! Counting takes as long as there are sessions, so a backend counts rarely: what is left to the limit,
//! divided by the backends that may be registering as well, can be given without counting again.

use crate::error::Error;
use crate::guc;
use crate::pg;
use crate::store::cache;
use crate::store::live;
use pgrx::pg_sys;

/// How many more sessions a backend may register before it counts.
#[derive(Clone, Copy)]
pub struct Share {
    /// What the limit was.
    limit: i64,
    left: i64,
    /// When it was counted. Others come and go.
    at: i64,
}

/// So long a count holds.
const HOLDS_US: i64 = 1_000_000;

/// Takes a place for one more session of the owner.
pub fn take(owner: pg_sys::Oid) -> Result<(), Error> {
    let limit = guc::max_sessions_per_role();
    let now_us = pg::now_us();
    if take_from_share(owner, limit, now_us) {
        return Ok(());
    }
    let count = live::count(owner);
    if count >= limit {
        return Err(Error::LimitExceeded {
            what: format!("the number of client sessions of role \"{}\"", pg::role_name(owner).unwrap_or_default()),
            found: format!("{count} at work"),
            limit: limit.to_string(),
            hint: "Close sessions that are done with (idem_close), register with a shorter timeout, or raise idempotence.max_sessions_per_role.",
        });
    }
    let share = Share { limit, left: (limit - count) / pg::max_backends(), at: now_us };
    cache::with(|cache| cache.quota.put(owner, share));
    Ok(())
}

fn take_from_share(owner: pg_sys::Oid, limit: i64, now_us: i64) -> bool {
    cache::with(|cache| match cache.quota.get_mut(&owner) {
        Some(share) if share.limit == limit && share.left > 1 && now_us - share.at < HOLDS_US => {
            share.left -= 1;
            true
        }
        _ => false,
    })
}
