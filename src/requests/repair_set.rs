//! Repairs of all requests of a session whose keys begin with a prefix, a bounded number in a call. Each request is
//! repaired under its lock, which is only tried for: a request at work is left out, and counted.

use crate::domain::identity::{self, Digest};
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::model::{Session, StandingSession};
use crate::open;
use crate::pg;
use crate::requests::keeping;
use crate::requests::keyed::{Keyed, check_sort, refuse_journal};
use crate::requests::repair;
use crate::requests::request::Request;
use crate::requests::waiting;
use crate::sessions::resolve;
use crate::store::audit;
use crate::store::by_prefix::{self, Wanted};
use crate::store::rel::Snapshot;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;

/// What a call has done.
pub struct Repaired {
    /// How many requests it has repaired.
    pub done: usize,
    /// How many it has left out, since somebody is at work on them.
    pub left_out: usize,
}

/// How long to wait for a row of an inbox that somebody is renewing: hardly.
const ROW_WAIT_US: i64 = 1_000;

/// Forgets requests, as `idem_forget` does one.
pub fn forget(session: &str, prefix: &str, reason: &str, most: i32) -> Result<Repaired, Error> {
    repair::check_reason(reason)?;
    let session = repair::session_to_forget(session)?;
    let forget = |request: &Request<'_>, digest, _: &mut BTreeSet<String>| {
        let found = match session.inbox {
            true => pg::bounded(Some(ROW_WAIT_US), || repair::forget_in_inbox(digest)).transpose()?,
            false => Some(repair::forget_all(request, digest)?),
        };
        Ok(found.map(|found| found.is_some()))
    };
    repair_each("idem_forget_prefix", &session, Wanted::Anything, prefix, reason, most, forget)
}

/// Redacts requests, as `idem_redact` does one.
pub fn redact(session: &str, prefix: &str, reason: &str, most: i32) -> Result<Repaired, Error> {
    let session = match resolve::owned_or_any(session, resolve::REDACT)? {
        Session::Standing(session) => session,
        Session::Client(session) => {
            let hint = "Redact them one by one: idem_redact(session, number, reason).";
            return Err(numbered(&session.name, "redacted", hint));
        }
    };
    repair::check_reason(reason)?;
    check_sort(&session, false)?;
    let redact = |request: &Request<'_>, digest, _: &mut BTreeSet<String>| {
        repair::redact_keyed(request, digest).map(|found| Some(found.is_some()))
    };
    repair_each("idem_redact_prefix", &session, Wanted::Contents, prefix, reason, most, redact)
}

/// Ends leases, as `idem_force_release` does one: those that have not run out, or those that ran out.
pub fn force_release(session: &str, prefix: &str, reason: &str, live: bool, most: i32) -> Result<Repaired, Error> {
    repair::check_reason(reason)?;
    if identity::client_session(session).is_some() {
        let hint = "Release them one by one: idem_force_release(session, number, reason).";
        return Err(numbered(session, "released", hint));
    }
    let session = repair::session_to_forget(session)?;
    check_sort(&session, false)?;
    let release = |request: &Request<'_>, digest, holders: &mut BTreeSet<String>| {
        let now_us = pg::now_us();
        let found = keeping::lease(request, &digest, Snapshot::Itself)?;
        let found = found.filter(|found| found.lease.runs_at(now_us) == live);
        let Some(found) = found else { return Ok(Some(false)) };
        holders.extend(waiting::holder_of_lease(request, &digest).map(|holder| holder.role));
        repair::end_lease(request, &digest, &found, now_us)?;
        Ok(Some(true))
    };
    repair_each("idem_force_release_prefix", &session, Wanted::Lease { live }, prefix, reason, most, release)
}

fn numbered(session: &str, what: &str, hint: &'static str) -> Error {
    Error::Invalid {
        message: format!("requests of client session \"{session}\" cannot be {what} by a prefix"),
        detail: "They are named by numbers.".into(),
        hint,
    }
}

/// Repairs a set of requests. `repair_one` repairs one of them and tells whether there was anything to repair, or gives `None`
/// if somebody is at work on it. It adds the roles whose leases it has ended, which the audit tells besides.
fn repair_each(
    function: &'static str,
    session: &Rc<StandingSession>,
    wanted: Wanted,
    prefix: &str,
    reason: &str,
    most: i32,
    repair_one: impl Fn(&Request<'_>, Digest, &mut BTreeSet<String>) -> Result<Option<bool>, Error>,
) -> Result<Repaired, Error> {
    refuse_journal(session, function)?;
    let most = check_most(most)?;
    repair::check_writable(function)?;
    let prefix = session.prefix_as_kept(prefix);
    let mut repaired = Repaired { done: 0, left_out: 0 };
    let mut holders = BTreeSet::new();
    by_prefix::visit(&session.id, &prefix, wanted, |key| {
        let (session, key) = (Rc::clone(session), Cow::Borrowed(key));
        let request = Request::Keyed(Keyed { session, key, key_time_us: None, journal: None });
        match pg::in_own_memory(|| try_one(&request, |digest| repair_one(&request, digest, &mut holders)))? {
            Some(found) => repaired.done += usize::from(found),
            None => repaired.left_out += 1,
        }
        Ok(if repaired.done < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    if (repaired.done, repaired.left_out) == (0, 0) {
        session.check_here()?;
    }
    if repaired.done > 0 {
        let mut found = format!("{} done, {} at work and left out", repaired.done, repaired.left_out);
        if !holders.is_empty() {
            let holders: Vec<_> = holders.into_iter().collect();
            found += &format!("; leases of role {}", holders.join(", "));
        }
        audit::note(function.trim_start_matches("idem_"), &session.name, &prefix, Some(reason), &found);
    }
    Ok(repaired)
}

/// Repairs a request, if nobody is at work on it; tells whether there was anything to repair.
fn try_one(
    request: &Request<'_>,
    repair_one: impl FnOnce(Digest) -> Result<Option<bool>, Error>,
) -> Result<Option<bool>, Error> {
    if open::holds(request.request_key()) {
        return Ok(None);
    }
    let digest = request.digest();
    let lock = Tag::request(&digest);
    if !open::with_room(|| request.name(), || lock.try_acquire())? {
        return Ok(None);
    }
    let done = match repair_one(digest) {
        Err(Error::Leased { .. }) => Ok(None),
        done => done,
    };
    if !matches!(done, Ok(Some(true))) {
        // Nothing was written under it.
        lock.release();
    }
    done
}

/// One transaction may lock this many requests.
fn check_most(most: i32) -> Result<usize, Error> {
    let limit = guc::max_locks();
    match usize::try_from(most) {
        Ok(most) if (1..=limit).contains(&most) => Ok(most),
        Ok(most) if most > limit => Err(Error::LimitExceeded {
            what: "the number of requests in one call".into(),
            found: most.to_string(),
            limit: format!("{limit}, as idempotence.max_lock_share says"),
            hint: "Call it again and again, until it gives 0.",
        }),
        _ => Err(Error::Invalid {
            message: "argument \"most\" is not positive".into(),
            detail: format!("Found {most}."),
            hint: "Say how many requests one call may take; each is locked to the end of the transaction.",
        }),
    }
}
