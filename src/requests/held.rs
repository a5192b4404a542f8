//! The request that record, checkpoint, release or extend is called for: one that this transaction has begun, or one
//! that a lease is held of.

use crate::arguments;
use crate::domain::lease::{Completion, complete};
use crate::domain::sequence::{Place, Range};
use crate::error::{Error, Missing, Superseded, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::open::{self, Leftovers, Numbers, OpenRequest};
use crate::pg::{self, Deadline};
use crate::requests::find::{self, KeptRequest, Seeker};
use crate::requests::keeping;
use crate::requests::request::Request;
use crate::requests::waiting::{self, Waiting};
use crate::sessions::liveness;
use crate::store::claimed::Claimed;
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;

/// What the caller's token leads to.
pub enum Held {
    /// The request, which is not done.
    Open(OpenRequest),
    /// The outcome that was recorded with the same token before.
    Recorded(Outcome),
}

/// The request that `function` was called for.
pub fn by(request: &Request<'_>, token: Option<i64>, function: &'static str) -> Result<OpenRequest, Error> {
    let Some(token) = token else { return begun(request, function) };
    match leased(request, token, function)?.0 {
        Held::Open(open) => Ok(open),
        Held::Recorded(_) => Err(Error::ClaimSuperseded { name: request.name(), token, how: Superseded::Recorded }),
    }
}

/// The request that is to be recorded, or its outcome.
pub fn to_record(request: &Request<'_>, token: Option<i64>) -> Result<Held, Error> {
    match token {
        None => begun(request, "idem_record").map(Held::Open),
        Some(token) => {
            let (held, claimed) = leased(request, token, "idem_record")?;
            if let Some(claimed) = claimed {
                claimed.keep();
            }
            Ok(held)
        }
    }
}

/// What may be kept of a request that has a lease: begin has deleted an outcome that had expired.
const LEASED: Leftovers = Leftovers { outcome: false, checkpoint: true, lease: true };

/// Takes the request's lock and looks what the token leads to; gives the locks of the record with it. By the order of locks
/// the client session's is shared first.
fn leased(request: &Request<'_>, token: i64, function: &'static str) -> Result<(Held, Option<Claimed>), Error> {
    request.check_not_inbox()?;
    arguments::check_writable(function, || format!("The lease of {} is to be changed.", request.name()))?;
    let deadline = Deadline::after(guc::wait_us());
    if let Request::Numbered(numbered) = request {
        liveness::attend_within(&numbered.session, deadline)?;
    }
    let lock = request.lock();
    let claim = Tag::request(&lock);
    if let Some(kept) = request.in_journal() {
        kept.lock_within(deadline)?;
    } else if !Waiting::until(deadline, request).take(&claim)? {
        return Err(waiting::ran_out(request.name().to_string(), &claim, WAIT_BY_SETTING));
    }
    let asked_at = pg::now_us();
    let stored = keeping::lease(request, &lock, Snapshot::Itself)?.filter(|stored| stored.request == request.key());
    let of_lease = complete(token, stored.as_ref().map(|stored| &stored.lease), None);
    let KeptRequest { outcome, placed, claimed, .. } = find::find(request, &lock, asked_at, Seeker::LockHolder)?;
    let outcome = outcome.filter(|outcome| outcome.lives_at(asked_at));
    // A key with a lease has an outcome too if an import has brought the outcome since the begin. Then the lease is over.
    let done = matches!(request, Request::Keyed(_)) && outcome.is_some();
    if let (Completion::Proceed, Some(stored), false) = (of_lease, stored, done) {
        let numbers = match (request, placed.place) {
            (Request::Keyed(_), _) => None,
            (Request::Numbered(numbered), Place::Next(slot)) => {
                let last = stored.last.unwrap_or(numbered.range.last);
                Some(Numbers { range: Range { last, ..numbered.range }, slot, acked: 0, former: None })
            }
            (Request::Numbered(numbered), _) => {
                return Err(Error::Discarded { name: request.name(), window: numbered.session.window });
            }
        };
        let (digest, fingerprint) = (request.digest(), stored.fingerprint);
        let open = OpenRequest { lock, digest, numbers, fingerprint, leftovers: LEASED, token: Some(token) };
        return Ok((Held::Open(open), claimed));
    }
    let recorded_with = outcome.as_ref().and_then(|outcome| outcome.token);
    keeping::release_claim(request, &lock);
    match (complete(token, None, recorded_with), outcome) {
        (Completion::Repeat, Some(outcome)) if !outcome.visible => Err(Error::Unserializable(request.name())),
        (Completion::Repeat, Some(outcome)) => {
            if pg::wait_until_durable(outcome.writer, pg::Durability::OfCaller, asked_at, || deadline) {
                return Ok((Held::Recorded(outcome), None));
            }
            Err(waiting::not_durable(request.name().to_string(), WAIT_BY_SETTING))
        }
        (_, outcome) => {
            if outcome.is_none() {
                // Nothing that is kept here tells of the token. The lease may be where the session lives.
                request.check_here()?;
            }
            let how = match outcome {
                Some(outcome) => Superseded::Done(outcome.class),
                None if placed.place == Place::Discarded => Superseded::Over,
                None => Superseded::Gone,
            };
            Err(Error::ClaimSuperseded { name: request.name(), token, how })
        }
    }
}

/// The open request of this transaction that `function` was called for.
fn begun(request: &Request<'_>, function: &'static str) -> Result<OpenRequest, Error> {
    request.check_not_inbox()?;
    let mut missing = match open::find(request.request_key()) {
        Ok(open) if open.token.is_none() => return Ok(open),
        Ok(_) => Missing::Token,
        Err(missing) => {
            // If nothing is known of the session, that is the more helpful error.
            request.check_known()?;
            missing
        }
    };
    if let Missing::Begin = missing {
        let lock = request.lock();
        let kept = keeping::lease(request, &lock, Snapshot::LatestMvcc)?;
        missing = match open::answer_to((lock, request.number())) {
            Some(answered) => Missing::Answered(answered),
            None if kept.is_some_and(|kept| kept.request == request.key()) => Missing::Token,
            None => Missing::Begin,
        };
    }
    Err(Error::NotBegun { name: request.name(), missing, function })
}
