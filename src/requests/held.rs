//! The request that record, checkpoint, release or extend is called for: one that this transaction has begun, or one
//! that a lease is held of.

use crate::arguments;
use crate::domain::identity::Digest;
use crate::domain::lease::{Completion, complete};
use crate::domain::sequence::{Place, Range};
use crate::error::{Error, Missing, Superseded, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::open::{self, Leftovers, Numbers, OpenRequest, answered};
use crate::pg::{self, Deadline};
use crate::requests::find::{self, Seeker};
use crate::requests::keeping;
use crate::requests::request::Request;
use crate::requests::waiting::{self, Waiting};
use crate::sessions::liveness;
use crate::store::lease::StoredLease;
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;

/// What the caller's token leads to.
pub enum Held<T> {
    /// The request, which is not done.
    Open(T),
    /// The outcome that was recorded with the same token before.
    Recorded(Outcome),
}

/// The request that `function` was called for.
pub fn by(request: &Request<'_>, token: Option<i64>, function: &'static str) -> Result<OpenRequest, Error> {
    match token {
        None => begun(request, function),
        Some(token) => leased(request, token, function)?.into_open(request),
    }
}

/// The request that is to be recorded, or its outcome.
pub fn to_record(request: &Request<'_>, token: Option<i64>) -> Result<Held<OpenRequest>, Error> {
    let Some(token) = token else { return begun(request, "idem_record").map(Held::Open) };
    match find_leased(request, token, "idem_record")? {
        Held::Open(leased) => leased.into_open(request).map(Held::Open),
        Held::Recorded(outcome) => Ok(Held::Recorded(outcome)),
    }
}

/// A request that is not done, the lease of which the caller has.
pub struct Leased {
    /// The digest that is locked for the request. This transaction has the lock.
    pub lock: Digest,
    /// The lease as it is kept.
    pub stored: StoredLease,
    /// The place of a numbered request in its stream.
    place: Place,
}

/// The request that `function` was called for with this token.
pub fn leased(request: &Request<'_>, token: i64, function: &'static str) -> Result<Leased, Error> {
    match find_leased(request, token, function)? {
        Held::Open(leased) => Ok(leased),
        Held::Recorded(_) => Err(Error::ClaimSuperseded { name: request.name(), token, how: Superseded::Recorded }),
    }
}

impl Leased {
    fn into_open(self, request: &Request<'_>) -> Result<OpenRequest, Error> {
        let numbers = match (request, self.place) {
            (Request::Keyed(_), _) => None,
            (Request::Numbered(numbered), Place::Next(slot)) => {
                let last = self.stored.last.unwrap_or(numbered.range.last);
                Some(Numbers { range: Range { last, ..numbered.range }, slot, acked: 0, former: None })
            }
            (Request::Numbered(numbered), _) => {
                return Err(Error::Discarded { name: request.name(), window: numbered.session.window });
            }
        };
        let (fingerprint, token) = (self.stored.fingerprint, Some(self.stored.lease.token));
        let (lock, digest) = (self.lock, request.digest());
        Ok(OpenRequest { lock, digest, numbers, fingerprint, leftovers: LEASED, token })
    }
}

/// What may be kept of a request that has a lease: begin has deleted an outcome that had expired.
const LEASED: Leftovers = Leftovers { outcome: false, checkpoint: true, lease: true };

/// Takes the request's lock and looks what the token leads to. By the order of locks the client session's is shared
/// first.
fn find_leased(request: &Request<'_>, token: i64, function: &'static str) -> Result<Held<Leased>, Error> {
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
    let find::KeptRequest { outcome, placed, .. } = find::find(request, &lock, asked_at, Seeker::LockHolder)?;
    let outcome = outcome.filter(|outcome| outcome.lives_at(asked_at));
    // A key with a lease has an outcome too if an import has brought the outcome since the begin. Then the lease is over.
    let done = matches!(request, Request::Keyed(_)) && outcome.is_some();
    if let (Completion::Proceed, Some(stored), false) = (of_lease, stored, done) {
        return Ok(Held::Open(Leased { lock, stored, place: placed.place }));
    }
    let recorded_with = outcome.as_ref().and_then(|outcome| outcome.token);
    keeping::release_claim(request, &lock);
    match (complete(token, None, recorded_with), outcome) {
        (Completion::Repeat, Some(outcome)) if !outcome.visible => Err(Error::Unserializable(request.name())),
        (Completion::Repeat, Some(outcome)) => {
            if pg::wait_until_durable(outcome.writer, pg::Durability::OfCaller, asked_at, || deadline) {
                return Ok(Held::Recorded(outcome));
            }
            Err(Error::AwaitsStandby { what: request.name().to_string(), pid: None, hint: WAIT_BY_SETTING })
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
    let not_begun = |missing| Error::NotBegun { name: request.name(), missing, function };
    match open::find(request.request_key(), function) {
        Ok(open) if open.token.is_none() => Ok(open),
        Ok(_) => Err(not_begun(Missing::Token)),
        Err(error) => {
            // If nothing is known of the session, that is the more helpful error.
            request.check_known()?;
            let Error::NotBegun { missing: Missing::Begin, .. } = error else { return Err(error) };
            let lock = request.lock();
            let answered = answered::to((lock, request.number()));
            let kept = keeping::lease(request, &lock, Snapshot::LatestMvcc)?;
            Err(not_begun(match answered {
                Some(answered) => Missing::Answered(answered),
                None if kept.is_some_and(|kept| kept.request == request.key()) => Missing::Token,
                None => Missing::Begin,
            }))
        }
    }
}
