//! What a begin would answer now. The decision is made by the code of begin itself, but without the request's lock and
//! without writing anything.

use crate::domain::class::Class;
use crate::domain::decision::Decision;
use crate::error::Error;
use crate::lock::{Held, Tag};
use crate::names;
use crate::open;
use crate::pg::{self, Deadline, Durability};
use crate::requests::decide::{Aim, Asked, Decided, refuse_beside_another};
use crate::requests::find::{KeptRequest, Seeker};
use crate::requests::keyed::check_sort;
use crate::requests::request::Request;

/// How long it may take to find out whether somebody is at work on a request in a journal.
const AT_MOST_US: i64 = 1_000_000;

/// The answer of a begin that does not wait.
pub enum Answer {
    /// It starts the request.
    Started,
    /// It takes the request over, as this attempt.
    TakenOver(i32),
    /// It hands out the outcome.
    Replay(Class),
    /// It records that the request has failed after so many attempts.
    GivenUp(i32),
    /// In progress: a transaction has the request's lock.
    Held,
    /// In progress: somebody has a lease until this moment. It may be that of another number in the same stream.
    Leased(i64),
    /// In progress: a transaction has the client session alone, or all that is known of it.
    SessionTaken,
    /// In progress: the outcome is not yet as durable as a commit here would be.
    NotDurable,
}

/// Foresees a begin with the payload that the request came with first, or with none. An error is what it would raise.
pub fn begin(request: &Request<'_>) -> Result<Answer, Error> {
    let asked_at = pg::now_us();
    if let Request::Keyed(keyed) = request {
        if keyed.session.dropped_at.is_some() {
            return Err(Error::NoSuchSession { session: keyed.session.name.clone() });
        }
        keyed.session.check_here()?;
        check_sort(&keyed.session, false)?;
        keyed.check_time(asked_at)?;
    }
    if open::holds(request.request_key()) {
        let hint = "It is open in this very transaction: record or release it.";
        return Err(Error::AlreadyBegun { name: request.name(), hint });
    }
    let (aim, deadline) = (Aim::Execute { lease_us: None }, Deadline::after(Some(0)));
    let asked = Asked { request, lock: request.lock(), asked_at, fingerprint: None, aim, deadline };
    // The lock is looked at before the tables, so that a commit in between is not missed.
    let locked = request.in_journal().is_none() && !pg::in_recovery() && Tag::request(&asked.lock).is_held_by_another();
    // In a journal it takes a write to find out, so that is not done for a request that has an outcome. Who may only read the
    // journal cannot find out.
    let held = || {
        let Some(kept) = request.in_journal() else { return locked };
        let ask = || kept.is_held_by_another(request.unfinished_until(asked_at));
        !pg::read_only() && pg::undone_on_error(AT_MOST_US, ask) == Ok(true)
    };
    match asked.find_and_decide(Seeker::Beginner, false) {
        Ok(Some(Decided { decision: Decision::Replay, kept: KeptRequest { outcome: Some(outcome), .. }, .. })) => {
            let durable = pg::wait_until_durable(outcome.writer, Durability::OfCaller, asked_at, || deadline);
            Ok(if durable { Answer::Replay(outcome.class) } else { Answer::NotDurable })
        }
        Ok(None) | Err(Error::SessionInDoubt { .. }) => Ok(Answer::SessionTaken),
        Ok(Some(_)) | Err(Error::OutOfSequence { .. }) if pg::in_recovery() => Err(Error::ReadOnly {
            function: "idem_begin",
            detail: format!("No outcome of {} is kept here, so it would have to be executed.", request.name()),
        }),
        // As in begin: none of these is certain without the lock.
        Ok(_) | Err(Error::KeyTooOld { .. } | Error::OutOfSequence { .. }) if held() => Ok(Answer::Held),
        Ok(Some(found)) => start(&asked, &found),
        Err(error) => Err(error),
    }
}

/// What becomes of a begin that gets the request's lock and has no outcome to hand out.
fn start(asked: &Asked<'_>, found: &Decided) -> Result<Answer, Error> {
    let attempts = found.lease.as_ref().map_or(0, |lease| lease.lease.attempt);
    if let (Decision::Leased, Some(lease)) = (found.decision, &found.lease) {
        return Ok(Answer::Leased(lease.lease.until));
    }
    if let Request::Numbered(numbered) = asked.request {
        refuse_beside_another(numbered, &asked.lock)?;
        if names::client_session_lock(&numbered.session.id).held_by_others() == Held::Alone {
            return Ok(Answer::SessionTaken);
        }
    }
    Ok(match found.decision {
        Decision::GiveUp => Answer::GivenUp(attempts),
        Decision::Execute { taken_over: true, .. } => Answer::TakenOver(attempts.saturating_add(1)),
        _ => Answer::Started,
    })
}
