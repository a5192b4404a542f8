//! A request as a caller names it, resolved and checked.

use crate::arguments;
use crate::domain::identity::Digest;
use crate::domain::sequence::Range;
use crate::error::{Error, RequestName};
use crate::guc;
use crate::journal::row::InJournal;
use crate::journal::table::Journal;
use crate::model::{Session, Stream};
use crate::names;
use crate::open::{self, RequestKey};
use crate::pg::Jsonb;
use crate::requests::keyed::{Keyed, check_sort};
use crate::requests::numbered::{Numbered, Numbering};
use crate::sessions::{liveness, resolve};
use crate::store::lease::StoredLease;
use crate::store::probe::Probe;
use std::rc::Rc;

/// Which rules of its session count for a request.
#[derive(Clone, Copy)]
pub enum Rules {
    /// The present rules: for begin and lookup.
    Current,
    /// The rules that this transaction began the request under: for the steps after begin. The rules of a client
    /// session never change.
    OfBegin,
    /// The present rules, also of a session that was dropped since the request was begun with a lease.
    OfLease,
    /// The present rules, for an admin, who needs no right to the session.
    OfRepair,
    /// The present rules, for whoever owns the session, and for an admin.
    OfRedaction,
}

/// A request that the caller has the right to use.
pub enum Request<'a> {
    /// A request of a standing session.
    Keyed(Keyed<'a>),
    /// A request of a client session.
    Numbered(Numbered<'a>),
}

impl<'a> Request<'a> {
    /// Finds the session, checks the caller's right to it, and then checks the key or number.
    pub fn resolve(session: &str, key: &'a str, numbering: Numbering<'a>, rules: Rules) -> Result<Request<'a>, Error> {
        let found = match rules {
            Rules::Current => resolve::session(session, || None)?,
            Rules::OfBegin => {
                let stream = numbering.stream.unwrap_or_default();
                let other =
                    || Journal::other_tenant_text(stream).and_then(|stream| open::session_of(session, &stream, key));
                resolve::session(session, || open::session_of(session, stream, key).or_else(other))?
            }
            Rules::OfLease => resolve::session(session, || resolve::even_dropped(session))?,
            Rules::OfRepair => resolve::any_session(session)?,
            Rules::OfRedaction => resolve::owned_or_any(session, resolve::REDACT)?,
        };
        Request::of(found, key, numbering)
    }

    /// Checks the key or number of a request of a session that the caller has the right to.
    pub fn of(session: Session, key: &'a str, numbering: Numbering<'a>) -> Result<Request<'a>, Error> {
        match session {
            Session::Standing(session) => {
                numbering.refuse(&session)?;
                Keyed::of(session, key, numbering.stream).map(Request::Keyed)
            }
            Session::Client(session) => Numbered::of(session, key, numbering).map(Request::Numbered),
        }
    }

    /// The request, if it has a key.
    pub fn keyed(&self) -> Option<&Keyed<'a>> {
        if let Request::Keyed(request) = self { Some(request) } else { None }
    }

    /// The request, if it has a number.
    pub fn numbered(&self) -> Option<&Numbered<'a>> {
        if let Request::Numbered(request) = self { Some(request) } else { None }
    }

    /// Its session.
    pub fn session(&self) -> Session {
        match self {
            Request::Keyed(request) => Session::Standing(Rc::clone(&request.session)),
            Request::Numbered(request) => Session::Client(Rc::clone(&request.session)),
        }
    }

    /// Its name on the open list.
    pub fn request_key(&self) -> RequestKey<'_> {
        match self {
            Request::Keyed(keyed) => {
                RequestKey { session: &keyed.session.name, stream: keyed.tenant(), request: &keyed.key }
            }
            Request::Numbered(Numbered { session, stream, key, .. }) => {
                RequestKey { session: &session.name, stream, request: key }
            }
        }
    }

    /// Its name for messages.
    pub fn name(&self) -> RequestName {
        self.request_key().name()
    }

    /// The digest under which its checkpoint is kept and, if it has a key, its outcome.
    pub fn digest(&self) -> Digest {
        self.digest_of(self.key())
    }

    /// The digest that is locked for it: its own, or that of its lane if it is numbered.
    pub fn lock(&self) -> Digest {
        match self {
            Request::Keyed(request) => request.digest(),
            Request::Numbered(request) => request.lock(),
        }
    }

    /// The number that tells it from other requests under its lock, see [`open::LockAndNumber`].
    pub fn number(&self) -> i64 {
        self.range().map_or(0, |range| range.first)
    }

    /// What the tables are searched for.
    pub fn probe(&self, digest: Digest) -> Probe<'_> {
        let RequestKey { session: session_name, stream, request: key } = self.request_key();
        Probe { session: self.stream().session, session_name, stream, key, digest }
    }

    /// Until when something unfinished of it counts, such as a checkpoint written at `since_us`: as long as an outcome
    /// recorded at that time would. In a client session it does not expire.
    pub fn unfinished_until(&self, since_us: i64) -> i64 {
        self.keyed().map_or(i64::MAX, |request| request.expires_at_us(since_us, request.session.ttl_us()))
    }

    /// Its numbers, if it is numbered.
    pub fn range(&self) -> Option<Range> {
        self.numbered().map(|request| request.range)
    }

    /// After how many attempts it is given up, if its session says so.
    pub fn max_attempts(&self) -> Option<i32> {
        self.keyed()?.session.max_attempts
    }

    /// Its key, or its first number in decimal.
    pub fn key(&self) -> &str {
        self.request_key().request
    }

    /// Whether a lease, kept under the lock of this request, is the request's own. Where any number of a range stands for
    /// the range, the lease of a range that has the number is.
    pub fn is_of(&self, lease: &StoredLease) -> bool {
        match self {
            Request::Numbered(request) if request.by_any_number => {
                lease.range().is_some_and(|range| range.meets(&request.range))
            }
            _ => lease.request == self.key(),
        }
    }

    /// The digest of a request of the same session and stream.
    pub fn digest_of(&self, key: &str) -> Digest {
        let Stream { session, name } = self.stream();
        names::of_request(session, name, key)
    }

    /// Its session's id and its stream.
    pub fn stream(&self) -> Stream<'_> {
        match self {
            Request::Keyed(request) => Stream { session: &request.session.id, name: request.tenant() },
            Request::Numbered(request) => request.stream(),
        }
    }

    /// Its row, in a session with a journal.
    pub fn in_journal(&self) -> Option<&InJournal<'a>> {
        self.keyed()?.journal.as_deref()
    }

    /// Refuses a client session that nothing is known of any more.
    pub fn check_known(&self) -> Result<(), Error> {
        self.numbered().map_or(Ok(()), |request| liveness::check_known(&request.session))
    }

    /// Whether it belongs to a client session that has ended, so that nobody can complete it.
    pub fn session_has_ended(&self) -> Result<bool, Error> {
        let Request::Numbered(request) = self else { return Ok(false) };
        match liveness::check(&request.session) {
            Ok(_) => Ok(false),
            Err(Error::SessionEnded { .. } | Error::SessionFenced { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Refuses a request of a session that is bound to another node.
    pub fn check_here(&self) -> Result<(), Error> {
        self.keyed().map_or(Ok(()), |request| request.session.check_here())
    }

    /// Refuses a request of an inbox, where requests are not begun.
    pub fn check_not_inbox(&self) -> Result<(), Error> {
        self.keyed().map_or(Ok(()), |request| check_sort(&request.session, false))
    }
}

/// The fingerprint of a payload. Refuses a payload that is too large, and a missing one if the session requires it.
pub fn fingerprint(request: &Request<'_>, payload: Option<Jsonb>) -> Result<Option<[u8; 16]>, Error> {
    match (payload, request) {
        (Some(payload), _) => {
            let hint = "Send what tells requests apart, not all of it, or raise idempotence.max_payload.";
            arguments::check_jsonb("payload", || request.name(), payload, guc::max_payload_bytes(), hint)?;
            Ok(Some(payload.fingerprint()))
        }
        (None, Request::Keyed(request)) if request.session.require_payload => Err(Error::NullArgument {
            what: "argument \"payload\"".into(),
            because: format!("Session \"{}\" requires one with each request.", request.session.name),
        }),
        (None, _) => Ok(None),
    }
}
