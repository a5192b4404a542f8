//! Redaction: takes the response of a request away, and the state of its checkpoint, and keeps that it was done. So it is
//! not executed again. A replay of it has no response.
//!
//! A redaction holds the request's lock. So nobody executes the request meanwhile, and the sweep moves nothing of it.
//! `store/outcome.rs` says what it does to an outcome's row, and what those do who read without the lock.

use crate::domain::class::Class;
use crate::domain::identity::Digest;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::names;
use crate::requests::find;
use crate::requests::keeping;
use crate::requests::numbered::Numbered;
use crate::requests::repair;
use crate::requests::request::Request;
use crate::store::checkpoint;
use crate::store::lease;
use crate::store::rel::Snapshot;
use crate::store::reply;

/// Redacts a request. Tells whether there was anything to take away.
pub fn redact(request: &Request<'_>, reason: &str) -> Result<bool, Error> {
    repair::check_reason(reason)?;
    request.check_not_inbox()?;
    let numbered = request.numbered();
    // Ended or not, it is shared, so that the sweep does not delete it meanwhile.
    if numbered.is_some_and(|numbered| !names::client_session_lock(&numbered.session.id).share(guc::wait_us())) {
        return Err(Error::WaitRanOut { what: request.name().to_string(), hint: WAIT_BY_SETTING });
    }
    let hint = "Record or release it: what this transaction does of it is not to be redacted yet.";
    let lock = repair::lock_for_repair(request, "idem_redact", hint)?;
    match numbered {
        Some(numbered) => redact_numbered(request, numbered, &lock, reason),
        None => repair::note_found("redact", request, reason, redact_keyed(request, lock)?.as_deref()),
    }
}

/// Redacts a request of a standing session; tells what was taken away. The caller has the claim.
pub(super) fn redact_keyed(request: &Request<'_>, digest: Digest) -> Result<Option<String>, Error> {
    // Whoever has a lease may need the state, and may write another one.
    repair::check_not_leased(request, keeping::lease(request, &digest, Snapshot::Itself)?.as_ref())?;
    let (outcome, checkpoint) = keeping::redact(request, digest)?;
    Ok(outcome.map(of_outcome).or(checkpoint.then(of_checkpoint)))
}

/// Redacts a request of a client session. Any number of a range stands for the range, which the audit names by its first
/// number.
fn redact_numbered(request: &Request<'_>, numbered: &Numbered<'_>, lock: &Digest, reason: &str) -> Result<bool, Error> {
    let stream = numbered.stream();
    let kept = lease::find(stream, lock, Snapshot::Itself)?.filter(|kept| request.is_of(kept));
    repair::check_not_leased(request, kept.as_ref())?;
    let reply = find::answering(numbered)?;
    let range = reply.as_ref().map(|reply| reply.kept.range).or_else(|| kept.as_ref()?.range());
    let named = Request::Numbered(numbered.with_range(range.unwrap_or(numbered.range)));
    let mut found = checkpoint::redact(&named.probe(named.digest()))?.then(of_checkpoint);
    if let Some((reply, outcome)) = reply.as_ref().and_then(|reply| Some((reply, reply.outcome.as_ref()?)))
        && outcome.response.is_some()
    {
        reply::redact(stream, reply, outcome)?;
        found = Some(of_outcome(outcome.class));
    }
    repair::note_found("redact", &named, reason, found.as_deref())
}

fn of_checkpoint() -> String {
    "state of checkpoint".into()
}

fn of_outcome(class: Class) -> String {
    format!("response of {} outcome", class.status())
}
