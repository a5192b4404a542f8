//! What the tables keep of a request that is explained.

use crate::domain::identity::Digest;
use crate::domain::sequence::Range;
use crate::error::Error;
use crate::pg;
use crate::requests::find::{self, Seeker};
use crate::requests::keeping;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::requests::waiting;
use crate::store::checkpoint::Checkpoint;
use crate::store::lease::StoredLease;
use crate::store::outcome::Outcome;
use crate::store::witness::{self, Record};
use serde_json::{Value, json};

/// What the tables keep of a request.
pub struct Kept {
    /// When it was asked for.
    pub asked_at: i64,
    /// The digest that is locked for it.
    lock: Digest,
    /// The outcome, expired or not.
    pub outcome: Option<Outcome>,
    /// Whether it was given up: all attempts that its session allows were begun, and none was completed.
    pub given_up: bool,
    /// How that was recorded.
    record: Option<Record>,
    /// The request's own lease, if it counts.
    pub lease: Option<StoredLease>,
    /// The request's checkpoint, if it counts.
    pub checkpoint: Option<Checkpoint>,
}

impl Kept {
    /// Finds what is kept of a request; `lock` is the digest that is locked for it.
    pub fn of(request: &Request<'_>, lock: Digest) -> Result<Kept, Error> {
        let asked_at = pg::now_us();
        let found = find::find(request, &lock, asked_at, Seeker::Inquirer)?;
        let record = match request {
            Request::Keyed(_) => witness::record(&lock)?,
            Request::Numbered(numbered) => witness::record_of_number(numbered.stream(), numbered.range.first)?,
        };
        let lives = found.outcome.as_ref().is_some_and(|outcome| outcome.lives_at(asked_at));
        let given_up = found.outcome.as_ref().map_or(Ok(false), witness::was_given_up)?;
        let (outcome, lease, checkpoint) = (found.outcome, None, None);
        let mut kept = Kept { asked_at, lock, outcome, given_up, record, lease, checkpoint };
        if !lives && !found.placed.place.is_over() {
            (kept.lease, kept.checkpoint) = keeping::unfinished(request, &kept.lock, kept.asked_at)?;
        }
        Ok(kept)
    }

    /// The request with the numbers that it has, if it is numbered: a retry comes with these.
    pub fn exact<'a>(&self, request: &Request<'a>) -> Option<Request<'a>> {
        let Request::Numbered(asked) = request else { return None };
        let recorded = self.record.as_ref().and_then(|record| record.numbers);
        let range = recorded
            .map(|(first, last)| Range { first, last })
            .or_else(|| self.lease.as_ref()?.range())
            .or_else(|| Some(Range { last: self.checkpoint.as_ref()?.last?, ..asked.range }))
            .unwrap_or(asked.range);
        Some(Request::Numbered(Numbered { by_any_number: false, ..asked.with_range(range) }))
    }

    /// Whether the response was taken away, which was done last at `redacted_at`.
    pub fn is_redacted(&self, redacted_at: Option<i64>) -> bool {
        let since = |outcome: &Outcome| outcome.response.is_none() && redacted_at >= Some(outcome.recorded_at);
        self.outcome.as_ref().is_some_and(since)
    }

    /// What was recorded.
    pub fn outcome(&self, redacted: bool) -> Option<Value> {
        let (outcome, record) = (self.outcome.as_ref()?, self.record.as_ref());
        Some(json!({
            "status": outcome.class.status(),
            // An expired one counts as absent.
            "expired": !outcome.lives_at(self.asked_at),
            "given_up": self.given_up,
            "redacted": redacted,
            "expires_at": outcome.expires_at.map(pg::iso_moment),
            "recorded_at": pg::iso_moment(outcome.recorded_at),
            "recorded_by": record.map(|record| &record.by),
            // The size of the response as it is stored.
            "response_bytes": record.and_then(|record| record.response_bytes),
        }))
    }

    /// What was begun, committed, and is not done.
    pub fn unfinished(&self, request: &Request<'_>) -> Result<Option<Value>, Error> {
        let since = match (&self.lease, &self.checkpoint) {
            (Some(lease), _) => lease.lease.begun_at,
            (None, Some(checkpoint)) => checkpoint.written_at,
            (None, None) => return Ok(None),
        };
        let lease = self.lease.as_ref().map(|lease| lease.lease);
        let holder = lease.and_then(|_| waiting::holder_of_lease(request, &self.lock));
        let state = match lease {
            Some(lease) if lease.runs_at(self.asked_at) => "leased",
            // In a session that has ended nobody can complete what a lease was for.
            Some(_) if !request.session_has_ended()? => "run out",
            _ => "suspended",
        };
        let (holder, application) = holder.map(|holder| (holder.role, holder.application)).unzip();
        Ok(Some(json!({
            "last": request.range().map(|range| range.last),
            "point": self.checkpoint.as_ref().map(|checkpoint| &checkpoint.point),
            // When the holder was given the lease, or the checkpoint was written.
            "since": pg::iso_moment(since),
            // As in the view `unfinished`.
            "state": state,
            // The role that has the lease, or had it last.
            "holder": holder,
            "attempt": lease.map(|lease| lease.attempt),
            "application": application,
            "leased_until": lease.map(|lease| pg::iso_moment(lease.until)),
        })))
    }
}
