//! Begin, which checks and sets: the caller gets either the claim or the answer.
//!
//! Begin tries for the request's lock. With the lock it looks at all that is kept and decides. Without it, it looks for
//! a committed outcome, which it may replay at once; if there is none it waits for the lock, looks again and decides. A
//! request that starts goes on the open list and keeps the lock. Any other answer gives the lock back.

use crate::arguments;
use crate::domain::class::Answered;
use crate::domain::decision::{Decision, Eligibility, Facts, Fingerprint, decide};
use crate::domain::identity::Digest;
use crate::domain::sequence::{Order, Place, Range};
use crate::error::Error;
use crate::lock::Tag;
use crate::open::{self, Numbers, OpenRequest, answered};
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::find::{self, Seeker};
use crate::requests::numbered::Numbered;
use crate::requests::request::{self, Request};
use crate::sessions::liveness::{self, Life};
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;
use crate::transaction;

/// What begin answers.
pub enum Begun {
    /// The caller has the claim. It goes on from the checkpoint, if there is one.
    Started(Option<Checkpoint>),
    /// The request was done, with this outcome.
    Replay(Outcome),
    /// The wait ran out: another transaction has the claim, or the outcome is not yet durable.
    InProgress,
}

/// Begins a request. `wait_us` is the result of [`arguments::wait_us`].
pub fn begin(request: &Request<'_>, payload: Option<Jsonb>, wait_us: Option<i64>) -> Result<Begun, Error> {
    request.check_not_inbox()?;
    // Expiry is judged at this moment, before any wait. A caller that came in time gets the answer, however long it
    // waits.
    let asked_at = pg::now_us();
    if let Request::Keyed(keyed) = request {
        keyed.check_time(asked_at)?;
    }
    let fingerprint = request::fingerprint(request, payload)?;
    if open::holds(request.request_key()) {
        let hint = "Call idem_begin() once: (idem_begin(...)).* calls it once per column; write SELECT * FROM idem_begin(...).";
        return Err(Error::AlreadyBegun { name: request.name(), hint });
    }
    let call = BeginCall { request, lock: request.lock(), asked_at, fingerprint };
    let deadline = Deadline::after(wait_us);
    let begun = if pg::read_only() {
        call.replay_only(deadline)?
    } else {
        call.check_room()?;
        open::reserve()?;
        call.claim_or_answer(deadline)?
    };
    let begun = match begun {
        // The caller may rely on the outcome as if it had committed it itself. This wait holds no lock.
        Begun::Replay(outcome) if !pg::wait_until_durable(outcome.writer, asked_at, || deadline) => Begun::InProgress,
        begun => begun,
    };
    call.remember(&begun);
    debug_assert!(
        !matches!(begun, Begun::Started(_)) || open::holds(request.request_key()),
        "a started request is on the open list"
    );
    Ok(begun)
}

/// Refuses a request if this transaction has another open request in the same lane. The lane's lock does not keep the
/// two apart, since the transaction already has it, but they must not be at work at the same time.
fn refuse_beside_another(request: &Numbered<'_>, lock: &Digest) -> Result<(), Error> {
    match open::at_work_under(lock) {
        None => Ok(()),
        Some(other) => {
            let lane = if request.session.order == Order::Any { "slot" } else { "stream" };
            let detail =
                format!("Its {lane} is taken by {other}, which this transaction has begun and not yet recorded.");
            let hint = "Record or release that one first.";
            Err(Error::OutOfSequence { name: request.name(), detail, hint })
        }
    }
}

/// A call of begin: what was asked, and when.
struct BeginCall<'a> {
    request: &'a Request<'a>,
    lock: Digest,
    asked_at: i64,
    fingerprint: Option<Fingerprint>,
}

/// What is kept of the request, and the decision about it.
struct Decided {
    decision: Decision,
    outcome: Option<Outcome>,
    checkpoint: Option<Checkpoint>,
    digest: Digest,
    /// Whether there is an expired outcome or a checkpoint, which the record has to clear away.
    leftovers: bool,
    /// The slot for the reply of a numbered request that may be executed; otherwise 0.
    slot: i32,
}

/// The result of one attempt to answer.
enum Attempt {
    /// This is the answer.
    Answered(Begun),
    /// Nothing is certain without the lock. An attempt with the lock never ends like this.
    NoAnswer,
    /// Another transaction has the client session alone, to end it or to hand it over.
    SessionTaken,
}

impl BeginCall<'_> {
    /// Refuses the request if its transaction holds as many locks already as the server's lock table is made for.
    fn check_room(&self) -> Result<(), Error> {
        let (held, places) = (open::locks(), pg::lock_table_size());
        if held < places || Tag::request(&self.lock).is_held_by_us() {
            return Ok(());
        }
        Err(Error::LimitExceeded {
            what: format!("the number of requests begun in one transaction, with {},", self.request.name()),
            found: (held + 1).to_string(),
            limit: format!("{places}, as many as the server's lock table has places"),
            hint: "Begin them in several transactions, or raise max_locks_per_transaction, which takes a restart. An inbox takes no lock for each request.",
        })
    }

    /// Takes the request's lock by calling `take`. If the lock table has no room left, the error names the request.
    fn take(&self, take: impl FnOnce() -> bool) -> Result<bool, Error> {
        pg::or_out_of_memory(take).map_err(|error| open::no_room(self.request.name(), &error))
    }

    fn claim_or_answer(&self, deadline: Deadline) -> Result<Begun, Error> {
        let claim = Tag::request(&self.lock);
        loop {
            let mut claimed = self.take(|| claim.try_acquire())?;
            // A replay does not wait for the lock: a committed outcome stands, whoever has the lock.
            let mut attempt = if claimed { self.attempt_with_lock()? } else { self.attempt_without_lock()? };
            if let Attempt::NoAnswer = attempt {
                if !self.take(|| claim.acquire(deadline.left_us()))? {
                    return Ok(Begun::InProgress);
                }
                claimed = true;
                attempt = self.attempt_with_lock()?;
            }
            let begun = match attempt {
                Attempt::Answered(begun) => Some(begun),
                Attempt::NoAnswer | Attempt::SessionTaken => None,
            };
            if claimed && !matches!(begun, Some(Begun::Started(_))) {
                // A replay leaves no lock. And whoever has the session alone may want this very request, so the
                // request's lock is given back before the wait.
                claim.release();
            }
            match begun {
                Some(begun) => return Ok(begun),
                None if self.wait_while_taken(deadline) => {}
                None => return Ok(Begun::InProgress),
            }
        }
    }

    /// Finds all that is kept of the request and decides. `None`: it is undecided whether the session is alive. A
    /// decision to refuse is returned as its error.
    fn find_and_decide(&self, seeker: Seeker) -> Result<Option<Decided>, Error> {
        let mut kept = find::find(self.request, &self.lock, self.asked_at, seeker)?;
        if self.check_session()? == Life::Undecided {
            return Ok(None);
        }
        let digest = match self.request {
            Request::Keyed(_) => self.lock,
            Request::Numbered(_) => self.request.digest(),
        };
        // A request with an outcome has no checkpoint: the record deleted it.
        let done = kept.outcome.as_ref().is_some_and(|outcome| outcome.lives_at(self.asked_at));
        let checkpoint = match done {
            true => None,
            false => checkpoint::find(&self.request.probe(digest), Snapshot::Itself)?,
        };
        if let (Eligibility::Due { .. }, Some(overlap)) = (kept.eligibility, self.other_range(checkpoint.as_ref())) {
            kept.place = Some(overlap);
            kept.eligibility = Eligibility::OutOfSequence { visible: true };
        }
        let decision = decide(&Facts {
            asked_at: self.asked_at,
            fingerprint: self.fingerprint,
            outcome: kept.outcome.as_ref().map(|outcome| outcome.facts(kept.visible)),
            checkpoint: checkpoint
                .as_ref()
                .map(|found| found.facts(self.request.checkpoint_expires_at(found.checkpoint.written_at))),
            time_key_expires_at: self.time_key_expires_at(),
            eligibility: kept.eligibility,
        });
        self.check_allowed(decision, kept.place)?;
        Ok(Some(Decided {
            decision,
            digest,
            leftovers: kept.outcome.is_some() || checkpoint.is_some(),
            outcome: kept.outcome,
            checkpoint: checkpoint.map(|found| found.checkpoint),
            slot: match kept.place {
                Some(Place::Next(slot)) => slot,
                _ => 0,
            },
        }))
    }

    /// The range that the request was begun with before, if its checkpoint shows another one than now. A range that
    /// stopped at a checkpoint goes on as the same range or not at all.
    fn other_range(&self, checkpoint: Option<&checkpoint::StoredCheckpoint>) -> Option<Place> {
        let (Request::Numbered(request), Some(found)) = (self.request, checkpoint) else { return None };
        let begun = Range { first: request.range.first, last: found.checkpoint.last? };
        (begun != request.range).then_some(Place::Overlaps(begun))
    }

    /// Refuses every request of a client session that has ended, whatever is kept of the request.
    fn check_session(&self) -> Result<Life, Error> {
        match self.request {
            Request::Keyed(_) => Ok(Life::Alive),
            Request::Numbered(request) => liveness::check(&request.session),
        }
    }

    fn time_key_expires_at(&self) -> Option<i64> {
        match self.request {
            Request::Keyed(request) => request.key_expires_at_us(),
            Request::Numbered(_) => None,
        }
    }

    /// Turns a decision to refuse into its error.
    fn check_allowed(&self, decision: Decision, place: Option<Place>) -> Result<(), Error> {
        if matches!(decision, Decision::Replay | Decision::Start | Decision::Continue) {
            return Ok(());
        }
        let name = self.request.name();
        Err(match (decision, self.request) {
            (Decision::PayloadMismatch, _) => Error::PayloadMismatch(name),
            (Decision::Unserializable, Request::Numbered(_)) if !matches!(place, Some(Place::Kept(_))) => {
                Error::BuildsOnUnseen(name)
            }
            (Decision::Unserializable, _) => Error::Unserializable(name),
            (Decision::KeyTooOld, Request::Keyed(request)) => {
                Error::KeyTooOld { name, ttl: arguments::describe_us(request.session.ttl_us()) }
            }
            (Decision::Discarded, Request::Numbered(request)) => {
                Error::Discarded { name, window: request.session.window }
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

    /// Replays a committed outcome, if there is one. If there is none, nothing follows from that: whoever has the lock
    /// may just be recording it.
    fn attempt_without_lock(&self) -> Result<Attempt, Error> {
        match self.find_and_decide(Seeker::Beginner) {
            Ok(Some(Decided { decision: Decision::Replay, outcome: Some(outcome), .. })) => {
                Ok(Attempt::Answered(Begun::Replay(outcome)))
            }
            Ok(None) => Ok(Attempt::SessionTaken),
            // Without the lock none of these is certain.
            Ok(_) | Err(Error::KeyTooOld { .. } | Error::OutOfSequence { .. }) => Ok(Attempt::NoAnswer),
            Err(error) => Err(error),
        }
    }

    /// Replays or refuses: a standby and a read-only transaction cannot execute the request.
    fn replay_only(&self, deadline: Deadline) -> Result<Begun, Error> {
        loop {
            match self.find_and_decide(Seeker::Beginner) {
                Ok(Some(Decided { decision: Decision::Replay, outcome: Some(outcome), .. })) => {
                    return Ok(Begun::Replay(outcome));
                }
                Ok(None) if self.wait_while_taken(deadline) => continue,
                Ok(None) => return Ok(Begun::InProgress),
                // On a standby the requests that must come before it may still be on their way.
                Err(Error::OutOfSequence { .. }) if pg::in_recovery() => break,
                Err(error) => return Err(error),
                Ok(Some(_)) => break,
            }
        }
        let detail = format!("No outcome of {} is kept here, so it would have to be executed.", self.request.name());
        Err(Error::ReadOnly { function: "idem_begin", detail })
    }

    /// Replays, or puts the request on the open list. The caller has the request's lock, so what is kept of the request
    /// does not change meanwhile.
    fn attempt_with_lock(&self) -> Result<Attempt, Error> {
        debug_assert!(Tag::request(&self.lock).is_held_by_us(), "only the holder of the claim decides to execute");
        let Some(found) = self.find_and_decide(Seeker::LockHolder)? else { return Ok(Attempt::SessionTaken) };
        if let (Decision::Replay, Some(outcome)) = (found.decision, found.outcome) {
            return Ok(Attempt::Answered(Begun::Replay(outcome)));
        }
        let numbers = match self.request {
            Request::Keyed(_) => None,
            Request::Numbered(request) => {
                refuse_beside_another(request, &self.lock)?;
                if !liveness::attend(&request.session)? {
                    return Ok(Attempt::SessionTaken);
                }
                let slot = found.slot;
                debug_assert!((0..request.session.window).contains(&slot), "a number that is due has a slot");
                Some(Numbers { range: request.range, slot, acked: request.acked })
            }
        };
        let checkpoint = found.checkpoint.filter(|_| found.decision == Decision::Continue);
        let kept = checkpoint.as_ref().and_then(|checkpoint| checkpoint.fingerprint);
        let open = OpenRequest {
            lock: self.lock,
            digest: found.digest,
            numbers,
            fingerprint: self.fingerprint.or(kept),
            leftovers: found.leftovers,
        };
        if open::begin(self.request.session(), self.request.request_key(), open) {
            transaction::come_first();
        }
        Ok(Attempt::Answered(Begun::Started(checkpoint)))
    }

    /// Remembers an answer other than `started`, for the error if the program records the request all the same.
    fn remember(&self, begun: &Begun) {
        let which = (self.lock, self.request.number());
        match begun {
            Begun::Started(_) => answered::take_back(which),
            Begun::Replay(outcome) => answered::note(which, Answered::Done(outcome.class)),
            Begun::InProgress => answered::note(which, Answered::InProgress),
        }
    }

    /// Waits while another transaction has the client session alone; whether it is worth trying again.
    fn wait_while_taken(&self, deadline: Deadline) -> bool {
        match self.request {
            Request::Keyed(_) => true,
            Request::Numbered(request) => liveness::wait_while_taken(&request.session, deadline),
        }
    }
}

fn out_of_sequence(request: &Request<'_>, place: Option<Place>) -> Error {
    const BEFORE: &str = "Send what comes before it first, or give that up with idem_ack(). idem_position() tells where the stream stands.";
    const SAME: &str = "A retry must be of the same numbers. idem_position() tells where the stream stands.";
    let (detail, hint) = match (request, place) {
        (Request::Numbered(request), Some(Place::Ahead(number))) if request.session.order == Order::Any => {
            let window = request.session.window;
            (format!("Number {number}, a window of {window} before it, is neither recorded nor acknowledged."), BEFORE)
        }
        (_, Some(Place::Ahead(number))) => (format!("The next number of its stream is {number}."), BEFORE),
        (_, Some(Place::Overlaps(Range { first, last }))) => {
            let numbers =
                if first == last { format!("number {first}") } else { format!("the numbers {first} to {last}") };
            (format!("It overlaps {numbers}, which came before, without being the same request."), SAME)
        }
        _ => ("It does not follow what its stream has accepted.".into(), BEFORE),
    };
    Error::OutOfSequence { name: request.name(), detail, hint }
}
