//! The SQL functions that repair many requests or the audit.

use super::null::required;
use crate::error::or_raise;
use crate::pg::{self, Timestamptz};
use crate::requests::repair;
use crate::requests::repair_set::{self, Repaired};
use pgrx::{default, notice, pg_extern};

#[pg_extern(volatile, parallel_unsafe)]
fn idem_forget_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    most: default!(Option<i32>, "1000"),
) -> i64 {
    or_raise((|| {
        let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
        repair_set::forget(session, prefix, required("reason", reason)?, required("most", most)?).map(told)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_redact_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    most: default!(Option<i32>, "1000"),
) -> i64 {
    or_raise((|| {
        let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
        repair_set::redact(session, prefix, required("reason", reason)?, required("most", most)?).map(told)
    })())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_force_release_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    live: default!(Option<bool>, "false"),
    most: default!(Option<i32>, "1000"),
) -> i64 {
    or_raise((|| {
        let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
        let (reason, live, most) = (required("reason", reason)?, required("live", live)?, required("most", most)?);
        repair_set::force_release(session, prefix, reason, live, most).map(told)
    })())
}

/// The number of requests that were repaired. A notice tells of those that were left out.
fn told(repaired: Repaired) -> i64 {
    match repaired.left_out {
        0 => {}
        1 => notice!("1 request is at work and was left out"),
        left_out => notice!("{left_out} requests are at work and were left out"),
    }
    i64::try_from(repaired.done).unwrap_or(i64::MAX)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_purge_audit(before: Option<Timestamptz>, reason: Option<&str>) -> i64 {
    or_raise((|| {
        // All that is there came after the year 2000 and before now.
        let before = required("before", before)?.0.clamp(0, pg::now_us());
        repair::purge_audit(before, required("reason", reason)?).map(|purged| purged as i64)
    })())
}
