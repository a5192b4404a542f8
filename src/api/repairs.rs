//! The SQL functions that repair one request or many, most of them for admins, the audit and the state after a restore, and
//! which tables are logged.

use super::call::{Result, by_any_number, by_key, enter, in_stream, required, with_request};
use crate::domain::class::Class;
use crate::error::{Error, or_raise};
use crate::pg::{self, Jsonb, Timestamptz};
use crate::requests::repair;
use crate::requests::repair_set::{self, Repaired};
use crate::requests::request::Rules;
use crate::store::persistence;
use pgrx::datum::Uuid;
use pgrx::{default, notice, pg_extern};
use std::borrow::Cow;

by_key! {
    "idem_forget": idem_forget_text, idem_forget_bigint, idem_forget_uuid;
    fn(session: Option<&str>, request: key, reason: Option<&str>, stream: default!(Option<&str>, "NULL")) -> Result<bool> {
        let (session, request) = (required("session", session)?, required("request", request)?);
        Ok(repair::forget(session, &request, required("reason", reason)?, in_stream(stream))?)
    }
}

by_key! {
    "idem_redact": idem_redact_text, idem_redact_bigint, idem_redact_uuid;
    fn(session: Option<&str>, request: key, reason: Option<&str>, stream: default!(Option<&str>, "NULL")) -> bool {
        or_raise(with_request(Rules::OfRedaction, session, request, by_any_number(stream), |request| {
            repair::redact(request, required("reason", reason)?)
        }))
    }
}

by_key! {
    "idem_force_release": idem_force_release_text, idem_force_release_bigint, idem_force_release_uuid;
    fn(
        session: Option<&str>,
        request: key,
        reason: Option<&str>,
        stream: default!(Option<&str>, "NULL"),
        live: default!(Option<bool>, "false"),
    ) -> bool {
        or_raise(with_request(Rules::OfRepair, session, request, in_stream(stream), |request| {
            repair::force_release(request, required("reason", reason)?, required("live", live)?)
        }))
    }
}

by_key! {
    "idem_force_record": idem_force_record_text, idem_force_record_bigint, idem_force_record_uuid;
    fn(
        session: Option<&str>,
        request: key,
        reason: Option<&str>,
        response: default!(Option<Jsonb>, "NULL"),
        failed: default!(Option<bool>, "false"),
        stream: default!(Option<&str>, "NULL"),
    ) -> Option<Timestamptz> {
        let outcome = with_request(Rules::OfRepair, session, request, in_stream(stream), |request| {
            let class = if required("failed", failed)? { Class::Failed } else { Class::Succeeded };
            repair::force_record(request, class, response, required("reason", reason)?)
        });
        or_raise(outcome).expires_at.map(Timestamptz)
    }
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_set_persistence(what: Option<&str>, persistence: Option<&str>) -> Result<bool> {
    enter("idem_set_persistence");
    let (name, persistence) = (required("what", what)?, required("persistence", persistence)?);
    let what = persistence::ALL.into_iter().find(|(what, _)| *what == name);
    if let (Some(what), "logged" | "unlogged") = (what, persistence) {
        return Ok(repair::set_persistence(what, persistence == "unlogged")?);
    }
    let [name, persistence] = [name, persistence].map(|word| word.chars().take(64).collect::<String>());
    Err(Error::Invalid {
        message: "there is no such persistence".into(),
        detail: format!("Found \"{name}\" for what and \"{persistence}\" for persistence."),
        hint: "What is claims or sessions, and its persistence is logged or unlogged.",
    })?
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_forget_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    most: default!(Option<i32>, "1000"),
) -> Result<i64> {
    enter("idem_forget_prefix");
    let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
    Ok(told(repair_set::forget(session, prefix, required("reason", reason)?, required("most", most)?)?))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_redact_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    most: default!(Option<i32>, "1000"),
) -> Result<i64> {
    enter("idem_redact_prefix");
    let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
    Ok(told(repair_set::redact(session, prefix, required("reason", reason)?, required("most", most)?)?))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_force_release_prefix(
    session: Option<&str>,
    prefix: Option<&str>,
    reason: Option<&str>,
    live: default!(Option<bool>, "false"),
    most: default!(Option<i32>, "1000"),
) -> Result<i64> {
    enter("idem_force_release_prefix");
    let (session, prefix) = (required("session", session)?, required("prefix", prefix)?);
    let (reason, live, most) = (required("reason", reason)?, required("live", live)?, required("most", most)?);
    Ok(told(repair_set::force_release(session, prefix, reason, live, most)?))
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
fn idem_purge_audit(before: Option<Timestamptz>, reason: Option<&str>) -> Result<i64> {
    enter("idem_purge_audit");
    // All that is there came after the year 2000 and before now.
    let before = required("before", before)?.0.clamp(0, pg::now_us());
    Ok(repair::purge_audit(before, required("reason", reason)?)? as i64)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_accept_restore(reason: Option<&str>) -> Result<bool> {
    enter("idem_accept_restore");
    Ok(repair::accept_restore(required("reason", reason)?)?)
}
