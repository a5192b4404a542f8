//! How many client sessions a role may have at work, how many that left a row for nothing but their end, and
//! how many standing sessions.
//!
//! Counting takes as long as there are sessions, so a backend counts rarely: what is left to the limit,
//! divided by the backends that may be making sessions as well, can be given without counting again.

use crate::error::Error;
use crate::guc;
use crate::pg;
use crate::store::{cache, client, live, session};
use pgrx::pg_sys;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sort {
    /// Client sessions at work.
    Client,
    /// Client sessions that ended without an outcome, and are known for that.
    Ended,
    /// Standing sessions, dropped ones too: their rows stay.
    Standing,
}

/// How many more sessions a backend may make before it counts.
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
pub fn take(owner: pg_sys::Oid, sort: Sort) -> Result<(), Error> {
    let limit = match sort {
        Sort::Client | Sort::Ended => guc::max_sessions_per_role(),
        Sort::Standing => guc::max_standing_sessions_per_role(),
    };
    let now_us = pg::now_us();
    if take_from_share(owner, sort, limit, now_us) {
        return Ok(());
    }
    let count = match sort {
        Sort::Client => live::count(owner),
        Sort::Ended => client::count_ended_unsaved(owner),
        Sort::Standing => session::count(owner, limit),
    };
    if count >= limit {
        return Err(exceeded(owner, sort, count, limit));
    }
    let share = Share { limit, left: (limit - count) / pg::max_backends(), at: now_us };
    cache::with(|cache| cache.quota.put((owner, sort), share));
    Ok(())
}

fn take_from_share(owner: pg_sys::Oid, sort: Sort, limit: i64, now_us: i64) -> bool {
    cache::with(|cache| match cache.quota.get_mut(&(owner, sort)) {
        Some(share) if share.limit == limit && share.left > 1 && now_us - share.at < HOLDS_US => {
            share.left -= 1;
            true
        }
        _ => false,
    })
}

fn exceeded(owner: pg_sys::Oid, sort: Sort, count: i64, limit: i64) -> Error {
    let role = pg::role_name(owner).unwrap_or_default();
    let (sessions, found, hint) = match sort {
        Sort::Client => (
            "client",
            format!("{count} at work"),
            "Close sessions that are done with (idem_close), register with a shorter timeout, or raise idempotence.max_sessions_per_role.",
        ),
        Sort::Ended => (
            "ended client",
            format!("{count} that had no outcome, and were fenced or had a request_id"),
            "Register once, when a client starts: such a session is known for idempotence.retention after its end. Or register without client and request_id, or raise idempotence.max_sessions_per_role.",
        ),
        Sort::Standing => (
            "standing",
            format!("{count}, dropped ones included"),
            "A session is a series of requests, not one of them: use few, with many keys. Or raise idempotence.max_standing_sessions_per_role.",
        ),
    };
    let what = format!("the number of {sessions} sessions of role \"{role}\"");
    Error::LimitExceeded { what, found, limit: limit.to_string(), hint }
}
