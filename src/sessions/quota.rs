//! The limits on what a role may make: on client sessions at work, on ended client sessions that have a row only for their
//! end, on standing sessions, and on leases.
//!
//! Counting takes longer the more sessions there are, so a backend counts rarely, see `domain/allowance.rs`.

use crate::domain::allowance::{Allowance, Kind};
use crate::error::Error;
use crate::guc;
use crate::pg;
use crate::store::cache;
use crate::store::lease;
use crate::store::session::{client, standing};
use crate::store::session_live;
use pgrx::pg_sys;

/// Takes a place for one more session of the owner, or lease of its holder.
pub fn take(owner: pg_sys::Oid, kind: Kind) -> Result<(), Error> {
    let (limit, things, counted, hint) = about(kind);
    let now_us = pg::now_us();
    let has_some = |allowance: &mut Allowance| allowance.take(limit, now_us);
    if cache::with(|cache| cache.quota.get_mut(&(owner, kind)).is_some_and(has_some)) {
        return Ok(());
    }
    let count = match kind {
        Kind::Client => session_live::count(owner),
        Kind::Ended => client::count_ended_unsaved(owner),
        Kind::Standing => standing::count(owner, limit),
        Kind::Lease => lease::count(owner, limit),
    };
    if count >= limit {
        let what = format!("the number of {things} of role \"{}\"", pg::role_name(owner).unwrap_or_default());
        return Err(Error::LimitExceeded { what, found: format!("{count}{counted}"), limit: limit.to_string(), hint });
    }
    let allowance = Allowance::after_count(limit, count, pg::max_backends(), now_us, pg::now_us());
    cache::with(|cache| cache::put(&mut cache.quota, (owner, kind), allowance));
    Ok(())
}

/// The limit, what it limits, what of that is counted, and what to do about it.
fn about(kind: Kind) -> (i64, &'static str, &'static str, &'static str) {
    match kind {
        Kind::Client => (
            guc::max_sessions_per_role(),
            "client sessions",
            " at work",
            "Close sessions that are done with (idem_close), register with a shorter timeout, or raise idempotence.max_sessions_per_role.",
        ),
        Kind::Ended => (
            guc::max_sessions_per_role(),
            "ended client sessions",
            " that had no outcome, and were fenced or had a request_id",
            "Register once, when a client starts: such a session is known for idempotence.retention after its end. Or register without client and request_id, or raise idempotence.max_sessions_per_role.",
        ),
        Kind::Standing => (
            guc::max_standing_sessions_per_role(),
            "standing sessions",
            ", dropped ones included",
            "A session is a series of requests, not one of them: use few, with many keys. Or raise idempotence.max_standing_sessions_per_role.",
        ),
        Kind::Lease => (
            guc::max_leases_per_role(),
            "leases",
            ", those that ran out included",
            "Record, settle or release what is unfinished (view unfinished); an admin ends many with idem_force_release_prefix(). Or raise idempotence.max_leases_per_role.",
        ),
    }
}
