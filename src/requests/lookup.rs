//! Lookup: tells what is known of a request, without a claim or a lock.

use crate::domain::decision::Eligibility;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::open;
use crate::pg::{self, Deadline};
use crate::requests::find::{self, Seeker};
use crate::requests::request::Request;
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;

/// What is known.
pub enum Known {
    /// The request was done, with this outcome.
    Outcome(Outcome),
    /// The request is discarded: it was done or skipped, and its answer is no longer kept.
    Discarded,
    /// This or another transaction has the claim, or the outcome is not yet durable.
    InProgress(Option<Checkpoint>),
    /// On a standby: no outcome is here yet, at most a checkpoint. More may be on its way from the primary.
    NotHere(Option<Checkpoint>),
    /// The request stopped at a checkpoint, and nobody is at work on it. Only the primary gives this answer.
    Suspended(Checkpoint),
    /// Nothing is kept of the request. Only the primary gives this answer.
    Unknown,
}

/// Looks a request up, also in a client session that has ended.
pub fn lookup(request: &Request<'_>) -> Result<Known, Error> {
    let asked_at = pg::now_us();
    request.check_known()?;
    // The lock is looked at first and the outcome after it, so that a commit in between is not missed. A standby does
    // not see the locks of the primary.
    let lock = request.lock();
    let in_recovery = pg::in_recovery();
    let held = open::holds(request.request_key()) || !in_recovery && Tag::request(&lock).is_held_by_another();

    let found = find::find(request, &lock, asked_at, Seeker::Inquirer)?;
    let outcome = found.outcome.filter(|outcome| outcome.lives_at(asked_at));
    match (outcome, found.eligibility) {
        (Some(_) | None, Eligibility::Discarded { visible: false }) => {
            return Err(Error::Unserializable(request.name()));
        }
        (Some(_), _) if !found.visible => return Err(Error::Unserializable(request.name())),
        (Some(outcome), _) => {
            let durable = pg::wait_until_durable(outcome.writer, asked_at, || Deadline::after(guc::wait_us()));
            return Ok(if durable { Known::Outcome(outcome) } else { Known::InProgress(None) });
        }
        (None, Eligibility::Discarded { visible: true }) => return Ok(Known::Discarded),
        (None, Eligibility::Due { .. } | Eligibility::OutOfSequence { .. }) => {}
    }
    let checkpoint = checkpoint::find(&request.probe(request.digest()), Snapshot::LatestMvcc)?
        .map(|found| found.checkpoint)
        .filter(|checkpoint| request.checkpoint_expires_at(checkpoint.written_at) > asked_at);
    Ok(match checkpoint {
        checkpoint if held => Known::InProgress(checkpoint),
        checkpoint if in_recovery => Known::NotHere(checkpoint),
        Some(checkpoint) => Known::Suspended(checkpoint),
        None => Known::Unknown,
    })
}
