//! Settling: a binding verdict on a request whose answer was lost. If the request was done, its caller gets the outcome.
//! If it was not, it never shall be: that is recorded as its outcome, `cancelled`.
//! What is decided stands in `domain/decision.rs`, for settling as for a begin: where a begin would start the request, this
//! records.

use crate::domain::class::Class;
use crate::error::Error;
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::answer::{Begun, Ticket};
use crate::requests::begin;
use crate::requests::decide::Aim;
use crate::requests::find::{self, Seeker};
use crate::requests::finish;
use crate::requests::keeping;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::sessions::liveness;
use crate::store::lease;
use crate::store::rel::Snapshot;

/// Settles a request. Any number of a range that is leased stands for the range. Where the answer is `cancelled`, the request
/// is never executed. This call has recorded that, unless the client session has ended, where nothing is executed any more.
pub fn settle(request: &Request<'_>, wait_us: Option<i64>, response: Option<Jsonb>) -> Result<Ticket, Error> {
    let mut leased = None;
    if let Request::Numbered(numbered) = request {
        let lease = lease::find(request.stream(), &request.lock(), Snapshot::LatestMvcc)?;
        let range = lease.filter(|lease| request.is_of(lease)).and_then(|lease| lease.range());
        leased = range.map(|range| Request::Numbered(numbered.with_range(range)));
    }
    let request = leased.as_ref().unwrap_or(request);
    let deadline = Deadline::after(wait_us);
    let begun = match (begin::begin(request, None, wait_us, Aim::Settle), request) {
        (Err(Error::SessionEnded { how: Some(_), .. } | Error::SessionFenced { .. }), Request::Numbered(numbered)) => {
            return settle_in_ended(request, numbered, deadline);
        }
        (begun, _) => begun?,
    };
    let Begun::Started(start) = begun else { return Ok(begun.into()) };
    let outcome = finish::record(request, Class::Cancelled, response, None, None)?;
    keeping::keep_verdict_through_crash(request);
    // The attempt that a begin would have been is not one.
    let attempts = start.taken_over.then_some(start.attempt - 1);
    Ok(Ticket::cancelled(Some(outcome), attempts, start.checkpoint))
}

/// Settles a request of a client session that has ended, once it is certain that no crash brings the session back.
fn settle_in_ended(request: &Request<'_>, numbered: &Numbered<'_>, deadline: Deadline) -> Result<Ticket, Error> {
    if !liveness::make_end_certain(&numbered.session, Aim::Settle.function(), deadline)? {
        return Ok(Ticket::in_progress());
    }
    let (lock, asked_at) = (request.lock(), pg::now_us());
    let kept = find::find(request, &lock, asked_at, Seeker::Inquirer)?;
    match kept.outcome {
        Some(outcome) if !outcome.visible => return Err(Error::Unserializable(request.name())),
        Some(outcome) => {
            let durable = pg::wait_until_durable(outcome.writer, pg::Durability::Flushed, asked_at, || deadline);
            return Ok(if durable { Begun::Replay(outcome).into() } else { Ticket::in_progress() });
        }
        None if kept.placed.place.is_over() => {
            return Err(Error::Discarded { name: request.name(), window: numbered.session.window });
        }
        None => {}
    }
    let (lease, checkpoint) = keeping::unfinished(request, &lock, asked_at)?;
    finish::count(request, Class::Cancelled);
    Ok(Ticket::cancelled(None, lease.map(|lease| lease.lease.attempt), checkpoint))
}
