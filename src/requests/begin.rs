//! Begin: check-and-set. Either the caller gets the claim, or the answer.

use crate::arguments;
use crate::domain::decision::{Decision, Eligibility, Facts, Fingerprint, decide};
use crate::domain::identity::Digest;
use crate::domain::outcome::Answered;
use crate::domain::sequence::{Order, Place, Range};
use crate::error::Error;
use crate::lock::Tag;
use crate::open::{self, Numbers, Open, answered};
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
    /// The caller holds the claim, and goes on from the checkpoint, if there is one.
    Started(Option<Checkpoint>),
    /// It was done: this was the answer.
    Replay(Outcome),
    /// Another transaction holds the claim, and the wait ran out.
    InProgress,
}

/// Begins a request; `wait_us` as in [`arguments::wait_us`].
pub fn begin(request: &Request<'_>, payload: Option<Jsonb>, wait_us: Option<i64>) -> Result<Begun, Error> {
    request.check_not_inbox()?;
    // Expiry is judged at this moment, before any wait: whoever came in time gets the answer.
    let asked_at = pg::now_us();
    if let Request::Keyed(keyed) = request {
        keyed.check_time(asked_at)?;
    }
    let fingerprint = request::fingerprint(request, payload)?;
    if open::holds(request.request_key()) {
        let hint = "Call idem_begin() once: (idem_begin(...)).* calls it once per column; write SELECT * FROM idem_begin(...).";
        return Err(Error::AlreadyBegun { name: request.name(), hint });
    }
    let asked = Asked { request, lock: request.lock(), asked_at, fingerprint };
    let deadline = Deadline::after(wait_us);
    let begun = if pg::read_only() {
        asked.replay_only(deadline)?
    } else {
        asked.check_room()?;
        open::reserve()?;
        asked.claim_or_answer(deadline)?
    };
    let begun = match begun {
        // Whoever is answered may rely on it as if he had committed it himself. No lock is held meanwhile.
        Begun::Replay(outcome) if !pg::wait_until_durable(outcome.writer, asked_at, || deadline) => Begun::InProgress,
        begun => begun,
    };
    asked.remember(&begun);
    Ok(begun)
}

/// A transaction holds the locks of its own requests, so these do not keep it from beginning two of one
/// slot or line; they must not be at work at once all the same.
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

/// A call of begin.
struct Asked<'a> {
    request: &'a Request<'a>,
    lock: Digest,
    asked_at: i64,
    fingerprint: Option<Fingerprint>,
}

/// What was found, and what to do about it.
struct Decided {
    decision: Decision,
    outcome: Option<Outcome>,
    checkpoint: Option<Checkpoint>,
    digest: Digest,
    /// An expired outcome or any checkpoint is there, for the record to clear away.
    leftovers: bool,
    /// Where a numbered request's reply goes.
    slot: i32,
}

/// What came of looking.
enum Looked {
    /// That is the answer.
    Done(Begun),
    /// There is no answer. With the lock held there always is one.
    Nothing,
    /// Somebody has the client session alone: it is being ended or handed over.
    SessionTaken,
}

impl Asked<'_> {
    /// Refuses what can never be had: more locks than there are for the whole server.
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

    /// Takes the request's lock as `take` does; if the lock table has no room left, the error says for whom.
    fn take(&self, take: impl FnOnce() -> bool) -> Result<bool, Error> {
        pg::or_out_of_memory(take).map_err(|error| open::no_room(self.request.name(), &error))
    }

    fn claim_or_answer(&self, deadline: Deadline) -> Result<Begun, Error> {
        let claim = Tag::request(&self.lock);
        loop {
            let mut claimed = self.take(|| claim.try_acquire())?;
            // A replay does not wait for the lock: whoever has it, a committed outcome stands.
            let mut looked = if claimed { self.under_the_lock()? } else { self.ahead()? };
            if let Looked::Nothing = looked {
                if !self.take(|| claim.acquire(deadline.left_us()))? {
                    return Ok(Begun::InProgress);
                }
                claimed = true;
                looked = self.under_the_lock()?;
            }
            let begun = match looked {
                Looked::Done(begun) => Some(begun),
                Looked::Nothing | Looked::SessionTaken => None,
            };
            if claimed && !matches!(begun, Some(Begun::Started(_))) {
                // Whoever has the session may want this very request: not to be waited for while holding it.
                claim.release();
            }
            match begun {
                Some(begun) => return Ok(begun),
                None if self.wait_while_taken(deadline) => {}
                None => return Ok(Begun::InProgress),
            }
        }
    }

    /// Looks at all that is kept and decides; `None` while it is undecided whether the session is alive.
    /// Errors of the decision are raised here, for all callers.
    fn look(&self, seeker: Seeker) -> Result<Option<Decided>, Error> {
        let mut kept = find::find(self.request, &self.lock, self.asked_at, seeker)?;
        if self.check_session()? == Life::Undecided {
            return Ok(None);
        }
        let digest = match self.request {
            Request::Keyed(_) => self.lock,
            Request::Numbered(_) => self.request.digest(),
        };
        // What is done has no checkpoint: its record took it away.
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
        self.refuse(decision, kept.place)?;
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

    /// A range that stopped on its way goes on as the same range, or not at all.
    fn other_range(&self, checkpoint: Option<&checkpoint::Stored>) -> Option<Place> {
        let (Request::Numbered(request), Some(found)) = (self.request, checkpoint) else { return None };
        let begun = Range { first: request.range.first, last: found.checkpoint.last? };
        (begun != request.range).then_some(Place::Overlaps(begun))
    }

    /// A client session that has ended refuses everything, whatever else there is to say.
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

    fn refuse(&self, decision: Decision, place: Option<Place>) -> Result<(), Error> {
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
                    // If that is why, it is the better thing to say.
                    refuse_beside_another(request, &self.lock)?;
                }
                out_of_sequence(request, place)
            }
        })
    }

    /// The answer, if there is one. Nothing can be said of what is not there: its inserter may be at work.
    fn ahead(&self) -> Result<Looked, Error> {
        match self.look(Seeker::Beginner) {
            Ok(Some(Decided { decision: Decision::Replay, outcome: Some(outcome), .. })) => {
                Ok(Looked::Done(Begun::Replay(outcome)))
            }
            Ok(None) => Ok(Looked::SessionTaken),
            // Nothing of the kind is certain before the lock is had.
            Ok(_) | Err(Error::KeyTooOld { .. } | Error::OutOfSequence { .. }) => Ok(Looked::Nothing),
            Err(error) => Err(error),
        }
    }

    /// On a standby and in a read-only transaction: the answer, or a refusal.
    fn replay_only(&self, deadline: Deadline) -> Result<Begun, Error> {
        loop {
            match self.look(Seeker::Beginner) {
                Ok(Some(Decided { decision: Decision::Replay, outcome: Some(outcome), .. })) => {
                    return Ok(Begun::Replay(outcome));
                }
                Ok(None) if self.wait_while_taken(deadline) => continue,
                Ok(None) => return Ok(Begun::InProgress),
                // On a standby what it builds on may be on its way.
                Err(Error::OutOfSequence { .. }) if pg::in_recovery() => break,
                Err(error) => return Err(error),
                Ok(Some(_)) => break,
            }
        }
        let detail = format!("No outcome of {} is kept here, so it would have to be executed.", self.request.name());
        Err(Error::ReadOnly { function: "idem_begin", detail })
    }

    /// With the lock held nothing about the request changes any more.
    fn under_the_lock(&self) -> Result<Looked, Error> {
        let Some(found) = self.look(Seeker::LockHolder)? else { return Ok(Looked::SessionTaken) };
        if let (Decision::Replay, Some(outcome)) = (found.decision, found.outcome) {
            return Ok(Looked::Done(Begun::Replay(outcome)));
        }
        let numbers = match self.request {
            Request::Keyed(_) => None,
            Request::Numbered(request) => {
                refuse_beside_another(request, &self.lock)?;
                if !liveness::attend(&request.session)? {
                    return Ok(Looked::SessionTaken);
                }
                Some(Numbers { range: request.range, slot: found.slot, acked: request.acked })
            }
        };
        let checkpoint = found.checkpoint.filter(|_| found.decision == Decision::Continue);
        let kept = checkpoint.as_ref().and_then(|checkpoint| checkpoint.fingerprint);
        let open = Open {
            lock: self.lock,
            digest: found.digest,
            numbers,
            fingerprint: self.fingerprint.or(kept),
            leftovers: found.leftovers,
        };
        if open::begin(self.request.session(), self.request.request_key(), open) {
            transaction::come_first();
        }
        Ok(Looked::Done(Begun::Started(checkpoint)))
    }

    /// For the message of a step that follows all the same.
    fn remember(&self, begun: &Begun) {
        let which = (self.lock, self.request.number());
        match begun {
            Begun::Started(_) => answered::take_back(which),
            Begun::Replay(outcome) => answered::note(which, Answered::Done(outcome.class)),
            Begun::InProgress => answered::note(which, Answered::InProgress),
        }
    }

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
