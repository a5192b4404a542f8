//! Lookup: tells what is known of a request, without a claim or a lock. It waits for others only if it is asked to.

use crate::domain::identity::Digest;
use crate::domain::sequence::Placed;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::open;
use crate::pg::{self, Deadline};
use crate::requests::answer::{IN_PROGRESS, Ticket};
use crate::requests::find::{self, Seeker};
use crate::requests::keeping;
use crate::requests::request::Request;
use crate::requests::waiting::Waiting;

/// Looks a request up, also in a client session that has ended. While others are at work on it, this waits for what
/// comes of that, up to `wait_us`; 0 waits for nobody. It never takes the claim, whoever lets go of it: where nobody is at
/// work any more, the answer is what is known then.
pub fn lookup(request: &Request<'_>, wait_us: Option<i64>) -> Result<Ticket, Error> {
    let deadline = Deadline::after(wait_us);
    // Standbys lag a little behind at any moment. So whoever does not wait for others waits for them all the same.
    let confirmed_by = if wait_us == Some(0) { Deadline::after(guc::wait_us()) } else { deadline };
    let mut waiting = Waiting::until(deadline, request);
    loop {
        let known = look(request, confirmed_by)?;
        // What comes is newer than a snapshot that is kept, and nobody waits for himself.
        if known.status != IN_PROGRESS
            || deadline.left_us() == Some(0)
            || pg::keeps_snapshot()
            || open::holds(request.request_key())
        {
            return Ok(known);
        }
        let again = match known.leased_until.filter(|until| *until > pg::now_us()) {
            Some(until) => waiting.sleep(&request.lock(), until),
            // Whoever has the claim may be taking over. A lease that ran out is nobody's work.
            None if known.leased_until.is_some() && !is_claimed(request) => false,
            None => match request.in_journal() {
                None => waiting.wait_for_end(&Tag::request(&request.lock())),
                Some(kept) => kept.wait_for_others(request.unfinished_until(pg::now_us()), deadline),
            },
        };
        if !again {
            return Ok(known);
        }
        if let Some(kept) = request.in_journal() {
            kept.row_anew()?;
        }
    }
}

/// Whether another transaction has the claim. A standby does not see those of the primary, nor does anybody the claims in
/// a journal.
fn is_claimed(request: &Request<'_>) -> bool {
    !pg::in_recovery() && request.in_journal().is_none() && Tag::request(&request.lock()).is_held_by_another()
}

fn look(request: &Request<'_>, confirmed_by: Deadline) -> Result<Ticket, Error> {
    let asked_at = pg::now_us();
    request.check_known()?;
    // The lock is looked at first and the outcome after it, so that a commit in between is not missed.
    let lock = request.lock();
    let mut held = open::holds(request.request_key()) || is_claimed(request);
    if let Some(known) = find_outcome(request, &lock, asked_at, confirmed_by)? {
        return Ok(known);
    }
    if let (Some(kept), false) = (request.in_journal(), held) {
        // Here it takes a write to find out. What is read next is read after it. A lease tells without.
        let row = kept.row()?;
        let lease = row.as_ref().and_then(|row| row.lease.as_ref());
        let leased = lease.is_some_and(|lease| lease.lease.runs_at(asked_at));
        // A transaction that keeps its snapshot cannot lock a row that is newer. Somebody was at work on it, or still is.
        let is_newer = row.is_some_and(|row| !row.visible);
        let asks = !pg::read_only() && !leased;
        held = asks && (is_newer || kept.is_held_by_another(request.unfinished_until(asked_at)));
    }
    match find_unfinished(request, &lock, asked_at, held)? {
        known if known.leased_until.is_some() => Ok(known),
        // The lease or the checkpoint may have made way for the outcome since that was looked for. Or the outcome was
        // being redacted, by whoever has the claim.
        known => Ok(find_outcome(request, &lock, asked_at, confirmed_by)?.unwrap_or(known)),
    }
}

/// What the outcome says, if there is or was one.
fn find_outcome(
    request: &Request<'_>,
    lock: &Digest,
    asked_at: i64,
    confirmed_by: Deadline,
) -> Result<Option<Ticket>, Error> {
    let found = find::find(request, lock, asked_at, Seeker::Inquirer)?;
    let outcome = found.outcome.filter(|outcome| outcome.lives_at(asked_at));
    let Placed { place, visible } = found.placed;
    match outcome {
        _ if place.is_over() && !visible => Err(Error::Unserializable(request.name())),
        Some(outcome) if !outcome.visible => Err(Error::Unserializable(request.name())),
        Some(outcome) => {
            let durable = pg::wait_until_durable(outcome.writer, pg::Durability::OfCaller, asked_at, || confirmed_by);
            Ok(Some(if durable { Ticket::done(outcome) } else { Ticket::in_progress() }))
        }
        None => Ok(place.is_over().then(|| Ticket { status: "discarded", ..Ticket::default() })),
    }
}

/// What is known of a request that has no outcome. `held` tells whether a transaction has its claim.
fn find_unfinished(request: &Request<'_>, lock: &Digest, asked_at: i64, held: bool) -> Result<Ticket, Error> {
    let (lease, checkpoint) = keeping::unfinished(request, lock, asked_at)?;
    let leased_until = lease.map(|lease| lease.lease.until);
    // It may take a write to find out whether somebody is at work on the request, and this transaction may only read.
    let cannot_tell = request.in_journal().is_some() && pg::read_only();
    let (leased_until, status) = match leased_until {
        // In a session that has ended nobody can complete what a lease that ran out was for.
        Some(until) if until <= asked_at && request.session_has_ended()? => (None, "suspended"),
        Some(_) => (leased_until, IN_PROGRESS),
        None if held => (None, IN_PROGRESS),
        // No outcome is here yet, at most a checkpoint. More may be on its way from the primary.
        None if pg::in_recovery() || cannot_tell => (None, "not_here"),
        None if checkpoint.is_some() => (None, "suspended"),
        None => (None, "unknown"),
    };
    Ok(Ticket { status, leased_until, checkpoint, ..Ticket::default() })
}
