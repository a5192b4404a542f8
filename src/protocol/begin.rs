//! Begin: check-and-set. Either the caller gets the claim, or the answer.

use crate::domain::decision::{Decision, Facts, Fingerprint, decide};
use crate::domain::identity::Digest;
use crate::error::Error;
use crate::lock::Tag;
use crate::open;
use crate::pg::{self, Jsonb};
use crate::protocol::request::{self, Request};
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::outcome::{self, Outcome};
use crate::store::rel::Snapshot;

/// What begin found.
pub enum Begun {
    /// The caller holds the claim, and goes on from the checkpoint, if there is one.
    Started(Option<Checkpoint>),
    /// It was done: this was the answer.
    Replay(Outcome),
    /// Another transaction holds the claim, and the wait ran out.
    InProgress,
}

/// Begins a request; `wait_us` as in [`request::wait_us`].
pub fn begin(request: &Request<'_>, payload: Option<Jsonb>, wait_us: Option<i64>) -> Result<Begun, Error> {
    request.check_sort(false)?;
    // Expiry is judged at this moment, before any wait: whoever came in time gets the answer.
    let asked_at = pg::now_us();
    request.check_time(asked_at)?;
    let fingerprint = request::fingerprint(request, payload)?;
    if open::holds(&request.session.name, &request.key) {
        let hint = "Call idem_begin() once: (idem_begin(...)).* calls it once per column; write SELECT * FROM idem_begin(...).";
        return Err(Error::AlreadyBegun { name: request.name(), hint });
    }
    let digest = request.digest();
    let asked = Asked { request, digest, asked_at, fingerprint };
    if pg::read_only() {
        return asked.replay_only();
    }

    let claim = Tag::request(&digest);
    if !claim.try_acquire() {
        // A replay never waits: whoever has the lock, a committed outcome stands.
        if let Some(outcome) = asked.replay()? {
            return Ok(Begun::Replay(outcome));
        }
        if !claim.acquire(wait_us) {
            return Ok(Begun::InProgress);
        }
    }
    let begun = asked.under_the_lock()?;
    if let Begun::Replay(_) = begun {
        claim.release();
    }
    Ok(begun)
}

/// A call of begin.
struct Asked<'a> {
    request: &'a Request<'a>,
    digest: Digest,
    asked_at: i64,
    fingerprint: Option<Fingerprint>,
}

/// What was found, and what to do about it.
struct Found {
    decision: Decision,
    outcome: Option<Outcome>,
    checkpoint: Option<Checkpoint>,
    /// An expired outcome or any checkpoint is there, for the record to clear away.
    leftovers: bool,
}

impl Asked<'_> {
    /// Looks at all that is kept and decides. Errors of the decision are raised here, for all callers.
    fn look(&self) -> Result<Found, Error> {
        let wanted = self.request.wanted(self.digest);
        let outcome = outcome::find(&wanted, self.asked_at, Snapshot::Itself)?;
        // What is done has no checkpoint: its record took it away.
        let done = outcome.as_ref().is_some_and(|found| found.outcome.expires_at > self.asked_at);
        let checkpoint = if done { None } else { checkpoint::find(&wanted, Snapshot::Itself)? };
        let ttl_us = self.request.session.ttl_us();
        let decision = decide(&Facts {
            asked_at: self.asked_at,
            fingerprint: self.fingerprint,
            outcome: outcome.as_ref().map(outcome::Found::facts),
            checkpoint: checkpoint.as_ref().map(checkpoint::Found::facts),
            time_key_expires_at: self.request.key_time_us.map(|time_us| time_us.saturating_add(ttl_us)),
        });
        match decision {
            Decision::PayloadMismatch => return Err(Error::PayloadMismatch(self.request.name())),
            Decision::Unserializable => return Err(Error::Unserializable(self.request.name())),
            Decision::KeyTooOld => {
                let ttl = request::describe_us(ttl_us);
                return Err(Error::KeyTooOld { name: self.request.name(), ttl });
            }
            Decision::Replay | Decision::Start | Decision::Continue => {}
        }
        Ok(Found {
            decision,
            leftovers: outcome.is_some() || checkpoint.is_some(),
            outcome: outcome.map(|found| found.outcome),
            checkpoint: checkpoint.map(|found| found.checkpoint),
        })
    }

    /// The answer, if there is one. Nothing can be said of what is not there: its inserter may be at work.
    fn replay(&self) -> Result<Option<Outcome>, Error> {
        match self.look() {
            Ok(found) if found.decision == Decision::Replay => Ok(found.outcome),
            // Nothing of the kind is certain before the lock is had.
            Ok(_) | Err(Error::KeyTooOld { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// On a standby and in a read-only transaction: the answer, or a refusal.
    fn replay_only(&self) -> Result<Begun, Error> {
        let found = self.look()?;
        match (found.decision, found.outcome) {
            (Decision::Replay, Some(outcome)) => Ok(Begun::Replay(outcome)),
            _ => Err(Error::ReadOnly {
                function: "idem_begin",
                detail: format!("No outcome of {} is kept here, so it would have to be executed.", self.request.name()),
            }),
        }
    }

    /// With the lock held nothing about the request changes any more.
    fn under_the_lock(&self) -> Result<Begun, Error> {
        let found = self.look()?;
        if let (Decision::Replay, Some(outcome)) = (found.decision, found.outcome) {
            return Ok(Begun::Replay(outcome));
        }
        let checkpoint = found.checkpoint.filter(|_| found.decision == Decision::Continue);
        let kept = checkpoint.as_ref().and_then(|checkpoint| checkpoint.fingerprint);
        open::begin(
            &self.request.session,
            &self.request.key,
            open::Open { digest: self.digest, fingerprint: self.fingerprint.or(kept), leftovers: found.leftovers },
        );
        Ok(Begun::Started(checkpoint))
    }
}
