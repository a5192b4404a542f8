//! Repairs by hand. Each takes a reason and is noted in `idempotence.audit`. A caller that may execute these functions is
//! an admin and needs no right to the session, except that whoever owns a session may redact and forget its requests.
//!
//! Of a session that is bound to another node, a repair works on what is here. Where it finds nothing, it says which node
//! the session belongs to.
//!
//! A redaction takes the response of a request away, and the state of its checkpoint, and keeps that it was done. So it is
//! not executed again. A replay of it has no response. Like other repairs it holds the request's lock. So nobody executes the
//! request meanwhile, and the sweep moves nothing of it. `store/outcome.rs` says what it does to an outcome's row, and what
//! those do who read without the lock.

use crate::arguments;
use crate::domain::class::Class;
use crate::domain::decision::Decision;
use crate::domain::identity::{self, Digest};
use crate::domain::lease::Lease;
use crate::domain::limits::REASON_CHARS_MAX;
use crate::error::{Error, RequestName, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::model::{Session, StandingSession};
use crate::names;
use crate::open::{self, RequestKey};
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::decide::{Aim, Asked};
use crate::requests::find::{self, Seeker};
use crate::requests::finish;
use crate::requests::keeping;
use crate::requests::numbered::{Numbered, Numbering};
use crate::requests::request::Request;
use crate::requests::start;
use crate::requests::waiting;
use crate::sessions::resolve;
use crate::store::audit;
use crate::store::checkpoint;
use crate::store::granted;
use crate::store::inbox;
use crate::store::lease::{self, Holder, NewLease, StoredLease};
use crate::store::outcome::Outcome;
use crate::store::persistence::{self, What};
use crate::store::rel::Snapshot;
use crate::store::reply;
use crate::store::restore;
use crate::store::secret;
use crate::store::witness;
use crate::wake;
use pgrx::pg_sys;
use std::rc::Rc;

/// The hint where a lease is in the way of a repair, which does not wait for it.
const AFTER_LEASE: &str =
    "Try again when the lease has run out. Or end it: idem_force_release(session, request, reason, live => true).";

/// Forgets the outcome and what is unfinished of a request, so that the request may be executed again. Tells whether
/// there was anything to forget.
pub fn forget(session_name: &str, key: &str, reason: &str, numbering: Numbering<'_>) -> Result<bool, Error> {
    check_reason(reason)?;
    let session = session_to_forget(session_name)?;
    resolve::check_owned(&Session::Standing(Rc::clone(&session)), "forget its requests")?;
    let request = Request::of(Session::Standing(Rc::clone(&session)), key, numbering)?;
    let hint = "Record or release it; what is not recorded needs no forgetting.";
    let digest = lock_for_repair(&request, "idem_forget", hint)?;
    let found = if session.inbox {
        // No other call on an inbox takes the lock, so the deletion may have to wait for a row.
        let waited = || Error::WaitRanOut { what: request.name().to_string(), hint: WAIT_BY_SETTING };
        pg::bounded_or_error(guc::wait_us(), || forget_in_inbox(digest), waited)?
    } else {
        forget_all(&request, digest)?
    };
    note_found("forget", &request, reason, found.as_deref())
}

/// The session of a request to be forgotten: any standing one, also a dropped one. The caller checks the right.
pub(super) fn session_to_forget(name: &str) -> Result<Rc<StandingSession>, Error> {
    resolve::even_dropped(name).ok_or_else(|| match identity::client_session(name) {
        Some(_) => Error::Invalid {
            message: format!("a request of client session \"{name}\" cannot be forgotten"),
            detail: "That a number was done is told by what its slot keeps.".into(),
            hint: "Let its client send the operation again under a number of its own.",
        },
        None => resolve::unknown(name),
    })
}

/// Deletes what an inbox keeps of a key and tells what that was. The caller has the request's lock, which keeps the sweep
/// away. It may wait for a row that another transaction is renewing.
pub(super) fn forget_in_inbox(digest: Digest) -> Result<Option<String>, Error> {
    Ok(inbox::delete(&digest, pg::now_us()).then(|| "succeeded outcome".into()))
}

/// Deletes what is kept of the request and tells what that was. The caller has the claim.
pub(super) fn forget_all(request: &Request<'_>, digest: Digest) -> Result<Option<String>, Error> {
    let kept = keeping::lease(request, &digest, Snapshot::Itself)?;
    check_not_leased(request, kept.as_ref())?;
    let lease = kept.filter(|kept| request.is_of(kept)).map(|kept| lease_in_words(request, &digest, &kept));
    let (outcome, checkpoint) = keeping::forget(request, digest)?;
    let outcome = outcome.map(|class| format!("{} outcome", class.status()));
    Ok(outcome.or(lease).or(checkpoint.then(|| "checkpoint".into())))
}

/// Redacts a request. Tells whether there was anything to take away.
pub fn redact(request: &Request<'_>, reason: &str) -> Result<bool, Error> {
    check_reason(reason)?;
    request.check_not_inbox()?;
    let numbered = request.numbered();
    // Ended or not, it is shared, so that the sweep does not delete it meanwhile.
    if numbered.is_some_and(|numbered| !names::client_session_lock(&numbered.session.id).share(guc::wait_us())) {
        return Err(Error::WaitRanOut { what: request.name().to_string(), hint: WAIT_BY_SETTING });
    }
    let hint = "Record or release it: what this transaction does of it is not to be redacted yet.";
    let lock = lock_for_repair(request, "idem_redact", hint)?;
    match numbered {
        Some(numbered) => redact_numbered(request, numbered, &lock, reason),
        None => note_found("redact", request, reason, redact_keyed(request, lock)?.as_deref()),
    }
}

/// Redacts a request of a standing session; tells what was taken away. The caller has the claim.
pub(super) fn redact_keyed(request: &Request<'_>, digest: Digest) -> Result<Option<String>, Error> {
    // Whoever has a lease may need the state, and may write another one.
    check_not_leased(request, keeping::lease(request, &digest, Snapshot::Itself)?.as_ref())?;
    let (outcome, checkpoint) = keeping::redact(request, digest)?;
    Ok(redacted_in_words(outcome, checkpoint))
}

/// Redacts a request of a client session. Any number of a range stands for the range, which the audit names by its first
/// number.
fn redact_numbered(request: &Request<'_>, numbered: &Numbered<'_>, lock: &Digest, reason: &str) -> Result<bool, Error> {
    let stream = numbered.stream();
    let kept = lease::find(stream, lock, Snapshot::Itself)?.filter(|kept| request.is_of(kept));
    check_not_leased(request, kept.as_ref())?;
    let reply = find::answering(numbered)?;
    let range = reply.as_ref().map(|reply| reply.kept.range).or_else(|| kept.as_ref()?.range());
    let named = Request::Numbered(numbered.with_range(range.unwrap_or(numbered.range)));
    let checkpoint = checkpoint::redact(&named.probe(named.digest()))?;
    let mut redacted = None;
    if let Some((reply, outcome)) = reply.as_ref().and_then(|reply| Some((reply, reply.outcome.as_ref()?)))
        && outcome.response.is_some()
    {
        reply::redact(stream, reply);
        redacted = Some(outcome.class);
    }
    note_found("redact", &named, reason, redacted_in_words(redacted, checkpoint).as_deref())
}

fn redacted_in_words(outcome: Option<Class>, checkpoint: bool) -> Option<String> {
    let outcome = outcome.map(|class| format!("response of {} outcome", class.status()));
    outcome.or(checkpoint.then(|| "state of checkpoint".into()))
}

/// A lease that a repair has found, with whoever has or had it: the repair takes that name away.
fn lease_in_words(request: &Request<'_>, lock: &Digest, kept: &StoredLease) -> String {
    let state = if kept.lease.runs_at(pg::now_us()) { "had not run out" } else { "ran out" };
    let holder = waiting::holder_of_lease(request, lock).map(|Holder { role, application, .. }| {
        format!(", of role {role}{}", if application.is_empty() { application } else { format!(" ({application})") })
    });
    format!("lease that {state}, attempt {}{}", kept.lease.attempt, holder.unwrap_or_default())
}

/// Takes away a lease that ran out, as if its request had never been begun with it. Ends one that has not run out, if
/// `live` says so: its holder is superseded, and the next begin takes the request over. Tells whether there was a lease.
pub fn force_release(asked: &Request<'_>, reason: &str, live: bool) -> Result<bool, Error> {
    check_reason(reason)?;
    asked.check_not_inbox()?;
    let lock = lock_for_repair(asked, "idem_force_release", OF_OTHERS)?;
    let found = keeping::lease(asked, &lock, Snapshot::Itself)?.filter(|found| asked.is_of(found));
    let now_us = pg::now_us();
    if !live {
        check_not_leased(asked, found.as_ref())?;
    }
    let told = found.as_ref().map(|found| lease_in_words(asked, &lock, found));
    found.map_or(Ok(()), |found| end_lease(asked, &lock, &found, now_us))?;
    note_found("force_release", asked, reason, told.as_deref())
}

/// Takes away a lease that ran out, and supersedes one that has not. The caller has the request's lock.
pub(super) fn end_lease(request: &Request<'_>, lock: &Digest, found: &StoredLease, now_us: i64) -> Result<(), Error> {
    if found.lease.runs_at(now_us) {
        let superseded = start::supersede(request, found.lease, now_us, None)?;
        // Nobody takes it over by this, and it is unfinished since it was begun.
        let lease = Lease { attempt: found.lease.attempt, begun_at: found.lease.begun_at, ..superseded };
        let holder = waiting::holder_of_lease(request, lock);
        keeping::save_lease(request, &NewLease { holder, ..found.with(lease, request.stream(), lock) })?;
    } else {
        keeping::delete_lease(request, lock)?;
    }
    wake::at_commit(lock);
    Ok(())
}

/// Records the outcome of a request that is unfinished: a lease of it ran out, or it stopped at a checkpoint. That of one that
/// was given up takes the place of this failure, which nobody has decided.
pub fn force_record(
    request: &Request<'_>,
    class: Class,
    response: Option<Jsonb>,
    reason: &str,
) -> Result<Outcome, Error> {
    if response.is_none() && reason.trim_start().starts_with(['{', '[']) {
        return Err(Error::Invalid {
            message: "the reason looks like a response".into(),
            detail: "The third argument of idem_force_record() is the reason, and no response was given.".into(),
            hint: "Name the arguments: reason => '...', response => '...'.",
        });
    }
    check_reason(reason)?;
    request.check_not_inbox()?;
    let lock = lock_for_repair(request, "idem_force_record", OF_OTHERS)?;
    let (asked_at, deadline) = (pg::now_us(), Deadline::after(guc::wait_us()));
    let asked = Asked { request, lock, asked_at, fingerprint: None, aim: Aim::Settle, deadline };
    let name = || request.name();
    let in_doubt = || Error::WaitRanOut { what: name().to_string(), hint: WAIT_BY_SETTING };
    let look = || asked.find_and_decide(Seeker::LockHolder, false)?.ok_or_else(in_doubt);
    let mut found = look()?;
    let given_up =
        found.decision == Decision::Replay && found.kept.outcome.as_ref().map_or(Ok(false), witness::was_given_up)?;
    if given_up {
        keeping::forget(request, lock)?;
        found = look()?;
    }
    let what = match (found.decision, &found.kept.outcome, &found.lease) {
        (Decision::Replay, Some(outcome), _) => {
            let recorded_at = pg::describe_moment(outcome.recorded_at);
            return Err(Error::AlreadyDone { name: name(), class: outcome.class, recorded_at });
        }
        (Decision::Leased, _, Some(kept)) => return Err(leased(name(), kept)),
        (Decision::Execute { taken_over: true, .. }, _, Some(kept)) => lease_in_words(request, &lock, kept),
        (Decision::Execute { from_checkpoint: true, .. }, _, _) => "checkpoint".into(),
        _ if given_up => "failed outcome, given up".into(),
        _ => {
            request.check_here()?;
            return Err(Error::NothingUnfinished { name: name() });
        }
    };
    start::start(&asked, found)?.ok_or_else(in_doubt)?;
    let outcome = finish::record(request, class, response, None, None)?;
    note("force_record", request, reason, &what);
    Ok(outcome)
}

/// Refuses a repair while the request's lease has not run out.
fn check_not_leased(request: &Request<'_>, kept: Option<&StoredLease>) -> Result<(), Error> {
    let running = kept.filter(|kept| kept.lease.runs_at(pg::now_us()));
    running.map_or(Ok(()), |kept| Err(leased(request.name(), kept)))
}

fn leased(name: RequestName, kept: &StoredLease) -> Error {
    Error::Leased { name, until: pg::describe_moment(kept.lease.until), hint: AFTER_LEASE }
}

/// The hint where the request is the transaction's own.
const OF_OTHERS: &str = "Record or release it; a repair is for what others have left behind.";

/// Takes the request's lock for a repair. Gives the digest that is locked.
fn lock_for_repair(request: &Request<'_>, function: &'static str, if_own: &'static str) -> Result<Digest, Error> {
    check_writable(function)?;
    if open::holds(request.request_key()) {
        return Err(Error::AlreadyBegun { name: request.name(), hint: if_own });
    }
    let lock = request.lock();
    if let Some(kept) = request.in_journal() {
        let until = request.unfinished_until(pg::now_us());
        kept.lock_after_others(until, Deadline::after(guc::wait_us()))?;
    } else if !Tag::request(&lock).acquire(guc::wait_us()) {
        return Err(waiting::ran_out(request.name().to_string(), &Tag::request(&lock), WAIT_BY_SETTING));
    }
    Ok(lock)
}

/// Refuses a transaction that cannot note a repair.
pub(super) fn check_writable(function: &'static str) -> Result<(), Error> {
    arguments::check_writable(function, || "A repair is noted in idempotence.audit.".into())
}

/// Notes what a repair has found, and tells whether it has found anything. One that has found nothing has changed nothing,
/// and leaves no row; the request may be another node's then.
fn note_found(action: &str, request: &Request<'_>, reason: &str, found: Option<&str>) -> Result<bool, Error> {
    match found {
        Some(found) => note(action, request, reason, found),
        None => request.check_here()?,
    }
    Ok(found.is_some())
}

fn note(action: &str, request: &Request<'_>, reason: &str, found: &str) {
    let RequestKey { session, stream, request } = request.request_key();
    let request = if stream.is_empty() { request.to_owned() } else { format!("{stream}/{request}") };
    audit::note(action, session, &request, Some(reason), found);
}

/// Deletes the rows of the audit from before a moment; gives how many. What is deleted cannot be told from what never
/// was, so this is noted itself.
pub fn purge_audit(before: i64, reason: &str) -> Result<usize, Error> {
    check_reason(reason)?;
    check_writable("idem_purge_audit")?;
    let purged = audit::delete_before(before)?;
    if purged > 0 {
        let found = format!("{purged} rows from before {}", pg::describe_moment(before));
        audit::note("purge_audit", "", "", Some(reason), &found);
    }
    Ok(purged)
}

/// Makes tables logged or unlogged; gives whether that has changed.
pub fn set_persistence(what: What, unlogged: bool) -> Result<bool, Error> {
    arguments::check_writable("idem_set_persistence", || "A table is rewritten.".into())?;
    let changed = persistence::choose(what, unlogged)?;
    if changed {
        let (now, former) = if unlogged { ("unlogged", "logged") } else { ("logged", "unlogged") };
        let found = format!("{} were {former}, and are {now} now", what.0);
        audit::note("set_persistence", "", "", None, &found);
    }
    Ok(changed)
}

/// Notes that a role was granted a level; `None`: that its rights were taken away.
pub fn note_grant(role: pg_sys::Oid, level: Option<&str>) -> Result<(), Error> {
    let Some(name) = pg::role_name(role) else { return Err(Error::NoSuchRole { role: role.to_u32() }) };
    let (action, found) = match level {
        Some(level) => {
            granted::note(&name, level)?;
            ("grant", format!("level {level} to role {name}"))
        }
        None => {
            granted::forget(&name)?;
            ("revoke", format!("all levels from role {name}"))
        }
    };
    audit::note(action, "", "", None, &found);
    Ok(())
}

/// Accepts that a restore brought rows without their sessions. Tells whether there was anything to accept. Rows of sessions
/// that another key has made are not to be accepted: their requests would be executed again.
pub fn accept_restore(reason: &str) -> Result<bool, Error> {
    check_reason(reason)?;
    arguments::check_writable("idem_accept_restore", || "A decision is noted in idempotence.audit.".into())?;
    let what = || "a restore by another transaction, or a step of the sweep,".into();
    Tag::sweep().acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, what)?;
    secret::check_alone()?;
    let accepted = restore::accept()?;
    if accepted {
        let found = "rows restored, perhaps without their sessions";
        audit::note("accept_restore", "", "", Some(reason), found);
    }
    Ok(accepted)
}

pub(super) fn check_reason(reason: &str) -> Result<(), Error> {
    if reason.trim().is_empty() {
        return Err(Error::Invalid {
            message: "the reason is empty".into(),
            detail: "A repair takes a reason, which idempotence.audit keeps.".into(),
            hint: "Say in a few words why it is done, for whoever reads the audit later.",
        });
    }
    let hint = "Say it in fewer words, or refer to where it is told in full.";
    arguments::check_chars("the reason", reason, REASON_CHARS_MAX, hint)
}
