//! What a call that begins a request finds, and what it decides: the decision table with the facts from the tables.

use crate::arguments;
use crate::domain::decision::{Decision, Facts, Fingerprint, decide};
use crate::domain::identity::Digest;
use crate::domain::sequence::{Order, Place, Placed, Range};
use crate::error::Error;
use crate::open;
use crate::pg::{self, Deadline};
use crate::requests::find::{self, KeptRequest, Seeker};
use crate::requests::keeping;
use crate::requests::keyed::Keyed;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::sessions::liveness::{self, Life};
use crate::store::checkpoint::Checkpoint;
use crate::store::lease::StoredLease;
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;

/// What the caller wants a request for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// To execute it, with a lease of this length or in this transaction.
    Execute {
        /// The length of the lease.
        lease_us: Option<i64>,
    },
    /// To execute it in this transaction, and only if it starts from the beginning.
    Claim,
    /// To settle it: it is never to be executed, unless it was.
    Settle,
}

impl Aim {
    /// The function that has this aim.
    pub fn function(self) -> &'static str {
        match self {
            Aim::Execute { .. } => "idem_begin",
            Aim::Claim => "idem_claim",
            Aim::Settle => "idem_settle",
        }
    }
}

/// What was asked, and when.
pub struct Asked<'a> {
    /// The request.
    pub request: &'a Request<'a>,
    /// The digest that is locked for it.
    pub lock: Digest,
    /// When the call came, before any wait.
    pub asked_at: i64,
    /// The fingerprint of the payload, if one was given.
    pub fingerprint: Option<Fingerprint>,
    /// What for.
    pub aim: Aim,
    /// Until when the call waits for others.
    pub deadline: Deadline,
}

/// What is kept of the request, and the decision about it.
pub struct Decided {
    /// The decision, which is not one to refuse.
    pub decision: Decision,
    /// The outcome, and the place in the stream.
    pub kept: KeptRequest,
    /// The checkpoint, expired or not.
    pub checkpoint: Option<Checkpoint>,
    /// The lease under the request's lock, run out or not. It may be that of another number in the lane.
    pub lease: Option<StoredLease>,
    /// The digest of the request.
    pub digest: Digest,
    /// The numbers that the request was begun with before, if it is a range.
    pub range_begun: Option<Range>,
}

impl Asked<'_> {
    /// Finds all that is kept of the request and decides. `None`: it is undecided whether the session is alive. A
    /// decision to refuse is returned as its error. `starts` tells that the caller has the lock and starts the request at once
    /// if it is to be executed: then [`liveness::attend`] looks whether the session is alive.
    pub fn find_and_decide(&self, seeker: Seeker, starts: bool) -> Result<Option<Decided>, Error> {
        let request = self.request;
        let mut kept = find::find(request, &self.lock, self.asked_at, seeker)?;
        let digest = match request {
            Request::Keyed(_) => self.lock,
            Request::Numbered(_) => request.digest(),
        };
        // A request with an outcome has neither checkpoint nor lease: the record deleted them.
        let done = kept.outcome.as_ref().is_some_and(|outcome| outcome.lives_at(self.asked_at));
        let (checkpoint, lease) = match done {
            true => (None, None),
            false => {
                let snapshot = if seeker == Seeker::LockHolder { Snapshot::Itself } else { Snapshot::LatestMvcc };
                let lease = keeping::lease(request, &self.lock, snapshot)?;
                (keeping::checkpoint(request, &request.probe(digest), Snapshot::Itself)?, lease)
            }
        };
        let own_lease = lease.as_ref().filter(|lease| lease.request == request.key());
        // A range that the request was begun with before goes on as the same range or not at all.
        let last = checkpoint.as_ref().and_then(|checkpoint| checkpoint.last).or_else(|| own_lease?.last);
        let begun = request.range().zip(last).map(|(range, last)| Range { last, ..range });
        if let (Place::Next(_), Some(begun)) = (kept.placed.place, begun)
            && self.aim != Aim::Settle
            && request.range() != Some(begun)
        {
            kept.placed = Placed { place: Place::Overlaps(begun), visible: true };
        }
        let decision = decide(&self.facts(&kept, checkpoint.as_ref(), lease.as_ref()));
        let is_attended = starts && matches!(decision, Decision::Execute { .. } | Decision::GiveUp);
        // Every request of a client session that has ended is refused, whatever is kept of the request.
        if let (Request::Numbered(numbered), false) = (request, is_attended)
            && liveness::check(&numbered.session)? == Life::Undecided
        {
            return Ok(None);
        }
        self.check_allowed(decision, kept.placed.place)?;
        Ok(Some(Decided { decision, kept, checkpoint, lease, digest, range_begun: begun }))
    }

    /// What the decision rests on.
    fn facts(&self, kept: &KeptRequest, checkpoint: Option<&Checkpoint>, lease: Option<&StoredLease>) -> Facts {
        let request = self.request;
        let lease_facts = lease.map(|lease| lease.facts(request.key(), request.unfinished_until(lease.lease.until)));
        Facts {
            asked_at: self.asked_at,
            fingerprint: self.fingerprint,
            outcome: kept.outcome.as_ref().map(Outcome::facts),
            checkpoint: checkpoint.map(|checkpoint| {
                // A checkpoint counts at least as long as the lease of its request does.
                let until = lease_facts.filter(|lease| lease.own).map_or(i64::MIN, |own| own.until);
                checkpoint.facts(request.unfinished_until(checkpoint.written_at.max(until)))
            }),
            now: if lease.is_some() { pg::now_us() } else { self.asked_at },
            lease: lease_facts,
            max_attempts: request.max_attempts().filter(|_| self.aim != Aim::Settle),
            time_key_expires_at: request.keyed().and_then(Keyed::key_expires_at_us),
            placed: kept.placed,
        }
    }

    /// Turns a decision to refuse into its error.
    fn check_allowed(&self, decision: Decision, place: Place) -> Result<(), Error> {
        let name = || self.request.name();
        Err(match (decision, self.request) {
            (Decision::Replay | Decision::Execute { .. } | Decision::Leased | Decision::GiveUp, _) => return Ok(()),
            (Decision::PayloadMismatch, _) => Error::PayloadMismatch(name()),
            (Decision::Unserializable, Request::Numbered(_)) if !matches!(place, Place::Kept(_)) => {
                Error::BuildsOnUnseen(name())
            }
            (Decision::Unserializable, _) => Error::Unserializable(name()),
            (Decision::KeyTooOld, Request::Keyed(request)) => {
                Error::KeyTooOld { name: name(), ttl: arguments::describe_us(request.session.ttl_us()) }
            }
            (Decision::Discarded, Request::Numbered(request)) => {
                Error::Discarded { name: name(), window: request.session.window }
            }
            (_, request) => {
                if let Request::Numbered(request) = request {
                    // If another request of this transaction is in the way, that is the more helpful error.
                    refuse_beside_another(request, &self.lock)?;
                }
                out_of_sequence(request, place)
            }
        })
    }
}

/// Refuses a request if this transaction has another open request in the same lane. The lane's lock does not keep the
/// two apart, since the transaction already has it, but they must not be at work at the same time.
pub fn refuse_beside_another(request: &Numbered<'_>, lock: &Digest) -> Result<(), Error> {
    let Some(other) = open::at_work_under(lock, i64::MAX) else { return Ok(()) };
    let lane = if request.session.order == Order::Any { "slot" } else { "stream" };
    let detail = format!("Its {lane} is taken by {other}, which this transaction has begun and not yet recorded.");
    Err(Error::OutOfSequence { name: request.name(), detail, hint: "Record or release that one first." })
}

fn out_of_sequence(request: &Request<'_>, place: Place) -> Error {
    const BEFORE: &str = "Send what comes before it first, or give that up with idem_ack(). idem_position() tells where the stream stands.";
    const SAME: &str = "A retry must be of the same numbers. idem_position() tells where the stream stands.";
    let (detail, hint) = match (request, place) {
        (Request::Numbered(request), Place::Ahead(number)) if request.session.order == Order::Any => {
            let window = request.session.window;
            (format!("Number {number}, a window of {window} before it, is neither recorded nor acknowledged."), BEFORE)
        }
        (_, Place::Ahead(number)) => (format!("The next number of its stream is {number}."), BEFORE),
        (_, Place::Overlaps(Range { first, last })) => {
            let numbers =
                if first == last { format!("number {first}") } else { format!("the numbers {first} to {last}") };
            (format!("It overlaps {numbers}, which came before, without being the same request."), SAME)
        }
        _ => ("It does not follow what its stream has accepted.".into(), BEFORE),
    };
    Error::OutOfSequence { name: request.name(), detail, hint }
}
