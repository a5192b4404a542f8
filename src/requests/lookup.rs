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
use crate::store::lease;
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;

/// What is known.
pub enum Known {
    /// The request was done, with this outcome.
    Outcome(Outcome),
    /// The request is discarded: it was done or skipped, and its answer is no longer kept.
    Discarded,
    /// This or another transaction has the claim, or somebody has a lease, which may have run out, or the outcome is not
    /// yet durable.
    InProgress {
        /// Where the request stopped.
        checkpoint: Option<Checkpoint>,
        /// When the lease of its holder runs out or ran out; `None`: a transaction has the claim.
        leased_until: Option<i64>,
    },
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
            return Ok(if durable { Known::Outcome(outcome) } else { Known::IN_PROGRESS });
        }
        (None, Eligibility::Discarded { visible: true }) => return Ok(Known::Discarded),
        (None, Eligibility::Due { .. } | Eligibility::OutOfSequence { .. }) => {}
    }
    let checkpoint = checkpoint::find(&request.probe(request.digest()), Snapshot::LatestMvcc)?
        .map(|found| found.checkpoint)
        .filter(|checkpoint| request.unfinished_until(checkpoint.written_at) > asked_at);
    let lease = lease::find(request.stream(), &lock, Snapshot::LatestMvcc)?
        .filter(|lease| lease.request == request.key())
        .map(|lease| lease.lease.until)
        .filter(|until| request.unfinished_until(*until) > asked_at);
    Ok(match (lease, checkpoint) {
        (leased_until @ Some(_), checkpoint) => Known::InProgress { checkpoint, leased_until },
        (None, checkpoint) if held => Known::InProgress { checkpoint, leased_until: None },
        (None, checkpoint) if in_recovery => Known::NotHere(checkpoint),
        (None, Some(checkpoint)) => Known::Suspended(checkpoint),
        (None, None) => Known::Unknown,
    })
}

impl Known {
    /// In progress, and nothing more is known.
    pub const IN_PROGRESS: Known = Known::InProgress { checkpoint: None, leased_until: None };
}
