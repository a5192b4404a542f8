//! What starting a request does: it goes on the open list and, if the caller wants a lease, gets one.

use crate::domain::allowance::Kind;
use crate::domain::class::Class;
use crate::domain::decision::Decision;
use crate::domain::lease::Lease;
use crate::domain::limits::DEPTH_MAX;
use crate::domain::sequence::{Place, Range};
use crate::error::Error;
use crate::guc;
use crate::open::{self, Leftovers, Numbers, OpenRequest, State};
use crate::pg::{self, Jsonb};
use crate::requests::answer::{Begun, Start};
use crate::requests::decide::{Aim, Asked, Decided, refuse_beside_another};
use crate::requests::finish;
use crate::requests::keeping;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::sessions::liveness;
use crate::sessions::quota;
use crate::sessions::save::Ack;
use crate::store::checkpoint::Checkpoint;
use crate::store::lease::NewLease;
use crate::transaction;
use serde_json::Value;

/// Starts the request that was decided to be executed, settled or given up. The caller has its lock. `None`: another
/// transaction has the client session alone.
pub fn start(asked: &Asked<'_>, found: Decided) -> Result<Option<Begun>, Error> {
    let (request, decision) = (asked.request, found.decision);
    let numbers = match request {
        Request::Keyed(_) => None,
        Request::Numbered(numbered) => {
            refuse_beside_another(numbered, &asked.lock)?;
            if !liveness::attend(&numbered.session)? {
                return Ok(None);
            }
            Some(numbers(numbered, &found))
        }
    };
    let (outcome, checkpoint, lease) =
        (found.kept.outcome.is_some(), found.checkpoint.is_some(), found.lease.is_some());
    let leftovers = Leftovers { outcome, checkpoint, lease };
    let (taken_over, goes_on) = match decision {
        Decision::Execute { taken_over, from_checkpoint } => (taken_over, from_checkpoint),
        // The last words of a request that is given up tell how far it was.
        Decision::GiveUp => (false, true),
        _ => (false, false),
    };
    let checkpoint = found.checkpoint.filter(|_| goes_on);
    let former = found.lease.filter(|lease| request.is_of(lease));
    // The payload that the request came with before, as its checkpoint or a lease that counts tells.
    let lease_counts = taken_over || decision == Decision::GiveUp;
    let of_checkpoint = checkpoint.as_ref().and_then(|checkpoint| checkpoint.fingerprint);
    let fingerprint_before = of_checkpoint.or_else(|| former.as_ref().filter(|_| lease_counts)?.fingerprint);
    let attempts = former.as_ref().map_or(0, |former| former.lease.attempt);
    let mut open = OpenRequest {
        lock: asked.lock,
        digest: found.digest,
        numbers,
        fingerprint: asked.fingerprint.or(fingerprint_before),
        leftovers,
        token: None,
    };
    let lease = match (decision, asked.aim) {
        // The record that follows deletes the former lease.
        (_, Aim::Settle) | (Decision::GiveUp, _) => None,
        // A former lease that does not count any more is superseded all the same.
        _ => take_lease(asked, &open, former.map(|former| former.lease), taken_over)?,
    };
    open.token = lease.map(|lease| lease.token);
    if open::begin(request.session(), request.request_key(), open, asked.asked_at) {
        transaction::come_first();
    }
    if lease.is_some() {
        // The record comes in another transaction, so the locks that it takes are given back.
        open::finish(request.request_key(), State::Saved);
    } else if let Some(claimed) = found.kept.claimed {
        claimed.keep();
    }
    if decision == Decision::GiveUp {
        return give_up(request, open, attempts, checkpoint.as_ref()).map(Some);
    }
    let attempt = if taken_over { attempts.saturating_add(1) } else { 1 };
    Ok(Some(Begun::Started(Start { checkpoint, taken_over, attempt, lease })))
}

/// Records that all attempts were begun and none was completed, and how far they got. The state is left out where the
/// response would be too large or nested too deeply with it.
fn give_up(
    request: &Request<'_>,
    open: OpenRequest,
    attempts: i32,
    checkpoint: Option<&Checkpoint>,
) -> Result<Begun, Error> {
    /// More than a point and the names of the members take.
    const BESIDE_STATE: usize = 4096;
    let state = checkpoint.and_then(|checkpoint| checkpoint.state);
    let state = state.filter(|state| state.raw_bytes().saturating_add(BESIDE_STATE) <= guc::max_response_bytes());
    let state = state.filter(|state| !state.is_deeper_than(DEPTH_MAX - 1));
    let members = [
        Some(format!("\"attempts\": {attempts}")),
        checkpoint.map(|checkpoint| format!("\"point\": {}", Value::from(checkpoint.point.as_str()))),
        state.map(|state| format!("\"state\": {}", state.to_text())),
    ];
    let members: Vec<String> = members.into_iter().flatten().collect();
    let response = Jsonb::of_text(&format!("{{{}}}", members.join(", ")));
    finish::record_open(request, open, Class::GivenUp, Some(response), None).map(Begun::GivenUp)
}

/// The numbers of a request that starts. Settling adopts the range that the request was begun with before.
fn numbers(request: &Numbered<'_>, found: &Decided) -> Numbers {
    let Place::Next(slot) = found.kept.placed.place else { unreachable!("a number that starts is due") };
    let range = match found.range_begun {
        Some(Range { last, .. }) => Range { last, ..request.range },
        None => request.range,
    };
    Numbers { range, slot, acked: request.acked, former: found.kept.former }
}

/// Gives the caller a lease. A caller without one still supersedes a former lease that ran out.
fn take_lease(
    asked: &Asked<'_>,
    open: &OpenRequest,
    former: Option<Lease>,
    taken_over: bool,
) -> Result<Option<Lease>, Error> {
    let request = asked.request;
    let lease_us = if let Aim::Execute { lease_us } = asked.aim { lease_us } else { None };
    if let (Some(_), Request::Numbered(numbered), Some(numbers)) = (lease_us, request, open.numbers) {
        // The lease outlasts this transaction, and so do the session and what the client has said.
        let ack = Ack::of(&numbered.session, numbered.stream(), numbers, asked.deadline)?;
        ack.save_session()?;
        ack.note()?;
    }
    if lease_us.is_some() && open.leftovers.outcome {
        // It has expired. The record comes later, and need not look for it.
        keeping::clear_expired(request, open.digest)?;
    }
    let now_us = pg::now_us();
    let lease = match (former, lease_us) {
        (Some(former), _) if taken_over => supersede(request, former, now_us, lease_us)?,
        (Some(former), _) => Lease { attempt: 1, ..supersede(request, former, now_us, lease_us)? },
        (None, Some(lease_us)) => {
            if request.in_journal().is_none() {
                quota::take(pg::current_role(), Kind::Lease)?;
            }
            Lease::first(now_us, lease_us)
        }
        (None, None) => return Ok(None),
    };
    let new = NewLease {
        of: request.stream(),
        lock: &open.lock,
        request: request.key(),
        last: open.numbers.map(|numbers| numbers.range.last),
        fingerprint: open.fingerprint,
        lease,
        is_first: !open.leftovers.lease,
        holder: None,
    };
    keeping::save_lease(request, &new)?;
    Ok(lease_us.map(|_| lease))
}

/// The lease that supersedes a former one. Its token is higher. Only a token that was written by hand can be too high for
/// that; such a lease is not superseded, since then its holder could complete the request beside the next one.
pub fn supersede(request: &Request<'_>, former: Lease, now_us: i64, lease_us: Option<i64>) -> Result<Lease, Error> {
    former.superseded(now_us, lease_us).ok_or_else(|| Error::Corrupted {
        message: format!("{} has a lease with token {}, and no token is higher", request.name(), former.token),
    })
}
