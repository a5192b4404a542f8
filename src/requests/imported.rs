//! What an import does with one row.
//!
//! A row tells either of an outcome or of a request that is unfinished: begun there, committed, and not done. An
//! unfinished request may have had a lease there. Whoever exports has seen to it that its holder completes nothing any
//! more. So the lease comes as one that has run out, and a begin here takes the request over.
//!
//! A row with a status is moved: it tells what another server has kept of a request, as `idem_export` gives it. What
//! was kept there is kept here as it was, also where this server or session would not let it be recorded so today: an
//! outcome that is left behind is executed again. Rows without a status come from a query that somebody wrote, and are
//! checked as a record is.

use crate::arguments;
use crate::domain::class::Class;
use crate::domain::decision::Fingerprint;
use crate::domain::identity::Digest;
use crate::domain::lease::{Lease, TOKEN_MAX};
use crate::domain::limits::{POINT_CHARS_MAX, TTL_US_MAX};
use crate::domain::time_key::AHEAD_US_MAX;
use crate::error::Error;
use crate::lock::Tag;
use crate::model::{StandingSession, Stream};
use crate::open::{self, RequestKey};
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::finish;
use crate::requests::keyed::{Keyed, check_sort};
use crate::requests::request::{self, Request};
use crate::requests::waiting;
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::inbox;
use crate::store::lease::{self, NewLease};
use crate::store::outcome::{self, Outcome};
use crate::store::rel::Snapshot;
use std::rc::Rc;

/// A row of the query.
pub struct ImportedRow<'a> {
    /// `key`
    pub key: Option<&'a str>,
    /// `response`
    pub response: Option<Jsonb>,
    /// `failed`
    pub failed: Option<bool>,
    /// `recorded_at`
    pub recorded_at: Option<i64>,
    /// `expires_at`
    pub expires_at: Option<i64>,
    /// `payload`
    pub payload: Option<Jsonb>,
    /// `fingerprint`
    pub fingerprint: Option<[u8; 16]>,
    /// `status`
    pub status: Option<&'a str>,
    /// `token`
    pub token: Option<i64>,
    /// `attempt`
    pub attempt: Option<i32>,
    /// `begun_at`
    pub begun_at: Option<i64>,
    /// `leased_until`
    pub leased_until: Option<i64>,
    /// `point`
    pub point: Option<&'a str>,
    /// `state`
    pub state: Option<Jsonb>,
}

impl ImportedRow<'_> {
    /// Whether it tells what another server has kept, as `idem_export` gives it.
    fn is_moved(&self) -> bool {
        self.status.is_some()
    }
}

/// What became of a row. The statement counts the numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Its outcome was imported.
    Imported = 0,
    /// The request has an outcome already.
    Present = 1,
    /// It has expired.
    Expired = 2,
}

/// Where the rows of an import go.
pub struct Target {
    /// The session.
    pub session: Rc<StandingSession>,
    /// The role that imports.
    pub role: String,
    /// Until when the import waits for requests at work, all in all.
    pub deadline: Deadline,
}

/// What a row tells of.
enum KeptHere<'a> {
    Outcome(Class),
    Unfinished(Unfinished<'a>),
}

/// How far an unfinished request is.
struct Unfinished<'a> {
    lease: Option<Lease>,
    point: Option<&'a str>,
}

impl Target {
    /// Imports a row.
    pub fn take(&self, request: Keyed<'_>, row: &ImportedRow<'_>) -> Result<Taken, Error> {
        // The clock of this row: the query may give what was done since the import began.
        let now_us = pg::now_us();
        if !row.is_moved() {
            request.check_time(now_us)?;
        }
        let kept = kept(&request, row, now_us)?;
        let (recorded_at, expires_at) = self.moments(&request, row, now_us)?;
        if self.session.inbox {
            return self.take_into_inbox(&request, row, &kept, [recorded_at, expires_at, now_us]);
        }
        let class = match kept {
            KeptHere::Outcome(class) => class,
            KeptHere::Unfinished(unfinished) => return self.take_unfinished(request, row, unfinished, recorded_at),
        };
        if expires_at <= now_us {
            return Ok(Taken::Expired);
        }
        let request = Request::Keyed(request);
        finish::check_value("response", &request, row.response)?;
        let fingerprint = fingerprint(&request, row, !row.is_moved())?;
        let Request::Keyed(request) = request else { unreachable!("made just now") };
        let digest = request.digest();
        if !self.look(&request, digest, now_us)? {
            return Ok(Taken::Present);
        }
        let outcome = Outcome {
            class,
            response: row.response,
            fingerprint,
            token: row.token,
            recorded_at,
            expires_at: Some(expires_at),
            writer: pg::Writer::THIS,
        };
        outcome::insert_by(&request.probe(digest), &outcome, &self.role);
        self.look_again(&request, digest, now_us)?;
        Ok(Taken::Imported)
    }

    /// When the outcome was recorded and when it expires, as far as the row does not say so now and a ttl later.
    fn moments(&self, request: &Keyed<'_>, row: &ImportedRow<'_>, now_us: i64) -> Result<(i64, i64), Error> {
        let invalid = |what: &str, detail: String, hint| Error::Invalid {
            message: format!("{} {what}", request.name()),
            detail,
            hint,
        };
        let ttl_us = self.session.ttl_us();
        let recorded_at = row.recorded_at.unwrap_or(now_us);
        let is_ahead = recorded_at > now_us.saturating_add(AHEAD_US_MAX) && !row.is_moved();
        if is_ahead || [i64::MIN, i64::MAX].contains(&recorded_at) {
            return Err(invalid(
                "was recorded at no time in the past",
                format!("Found {} as recorded_at.", describe(recorded_at)),
                "Give when it was done, or leave recorded_at out.",
            ));
        }
        // Another clock may be ahead, as those that make time keys may.
        let recorded_at = recorded_at.min(now_us);
        let by_ttl = request.expires_at_us(recorded_at, ttl_us);
        let expires_at = row.expires_at.unwrap_or(by_ttl);
        let earliest = request.key_expires_at_us();
        // Outcomes keep the ttl that they were recorded with, which may be longer than that of the session by now.
        let latest = request.expires_at_us(now_us, if row.is_moved() { TTL_US_MAX } else { ttl_us });
        // By that clock it expires as much later.
        let expires_at =
            if expires_at <= latest.saturating_add(AHEAD_US_MAX) { expires_at.min(latest) } else { expires_at };
        if expires_at > latest {
            return Err(invalid(
                "would be kept longer than the session allows",
                format!("Found {} as expires_at; the latest is {}.", describe(expires_at), describe(latest)),
                "Leave expires_at out, give an earlier one, or have the session's owner alter its ttl (idem_alter_session).",
            ));
        }
        if row.is_moved() {
            return Ok((recorded_at, earliest.map_or(expires_at, |earliest| expires_at.max(earliest))));
        }
        if earliest.is_some_and(|earliest| expires_at < earliest) {
            return Err(invalid(
                "would expire before its time key is too old",
                format!("Found {} as expires_at.", describe(expires_at)),
                "Leave expires_at out: with time_keys a key tells how long its outcome is kept at least.",
            ));
        }
        Ok((recorded_at, expires_at))
    }

    /// Whether the request may be imported, since it has no outcome and nobody is at work on it. What has expired is cleared
    /// away.
    fn look(&self, request: &Keyed<'_>, digest: Digest, now_us: i64) -> Result<bool, Error> {
        if open::holds(RequestKey { session: &self.session.name, stream: "", request: &request.key }) {
            let hint = "Record or release it, or import in a transaction of its own.";
            return Err(Error::AlreadyBegun { name: request.name(), hint });
        }
        let (lock, probe) = (Tag::request(&digest), request.probe(digest));
        loop {
            let held = lock.is_held_by_another();
            let found = outcome::find(&probe, now_us, Snapshot::Itself)?;
            match found {
                Some(found) if found.outcome.lives_at(now_us) => return Ok(false),
                // It may be about to be recorded. The wait takes no lock.
                _ if held && lock.wait_for_end_of_holder(self.deadline.left_us()) => {}
                _ if held => return Err(waiting::ran_out(request.name().to_string(), &lock, AT_WORK)),
                Some(_) if !lock.try_acquire() => {}
                Some(_) => {
                    outcome::clear(&probe)?;
                    break;
                }
                None => break,
            }
        }
        self.refuse_unfinished(request, digest, now_us)?;
        Ok(true)
    }

    /// Refuses what was imported just now if the request was begun since [`Target::look`].
    fn look_again(&self, request: &Keyed<'_>, digest: Digest, now_us: i64) -> Result<(), Error> {
        if Tag::request(&digest).is_held_by_another() || outcome::find_of_others(&request.probe(digest), now_us) {
            return Err(Error::RecordedBeside(request.name()));
        }
        self.refuse_unfinished(request, digest, now_us)
    }

    /// Refuses a request that was begun here, committed, and is not done.
    fn refuse_unfinished(&self, request: &Keyed<'_>, digest: Digest, now_us: i64) -> Result<(), Error> {
        let counts = |since| request.expires_at_us(since, self.session.ttl_us()) > now_us;
        let of = Stream { session: &self.session.id, name: "" };
        let lease = lease::find(of, &digest, Snapshot::LatestMvcc)?.filter(|kept| counts(kept.lease.until));
        if let Some(kept) = lease.as_ref().filter(|kept| kept.lease.runs_at(now_us)) {
            return Err(Error::Leased {
                name: request.name(),
                until: pg::describe_moment(kept.lease.until),
                hint: AT_WORK,
            });
        }
        let checkpoint = checkpoint::find(&request.probe(digest), Snapshot::LatestMvcc)?
            .map(|found| found.checkpoint)
            .filter(|checkpoint| counts(checkpoint.written_at));
        if lease.is_none() && checkpoint.is_none() {
            return Ok(());
        }
        let (name, point) = (request.name(), checkpoint.map(|checkpoint| checkpoint.point));
        Err(Error::MustLook { name, point, taken_over: lease.is_some(), given_up: false })
    }

    /// Imports an unfinished request. What is here of it already stays if it is the same.
    fn take_unfinished(
        &self,
        request: Keyed<'_>,
        row: &ImportedRow<'_>,
        unfinished: Unfinished<'_>,
        written_at: i64,
    ) -> Result<Taken, Error> {
        let Unfinished { lease, point } = unfinished;
        let request = Request::Keyed(request);
        finish::check_value("state", &request, row.state)?;
        let fingerprint = fingerprint(&request, row, false)?;
        let Request::Keyed(request) = request else { unreachable!("made just now") };
        let digest = request.digest();
        let lock = Tag::request(&digest);
        if !open::with_room(|| request.name(), || lock.acquire(self.deadline.left_us()))? {
            return Err(waiting::ran_out(request.name().to_string(), &lock, AT_WORK));
        }
        let now_us = pg::now_us();
        let since = lease.map(|lease| lease.until).max(point.map(|_| written_at));
        if since.is_none_or(|since| request.expires_at_us(since, self.session.ttl_us()) <= now_us) {
            return Ok(Taken::Expired);
        }
        let (probe, of) = (request.probe(digest), Stream { session: &self.session.id, name: "" });
        let there = (
            lease::find(of, &digest, Snapshot::Itself)?.map(|kept| kept.lease.token),
            checkpoint::find(&probe, Snapshot::Itself)?.map(|kept| kept.checkpoint.point),
        );
        if there != (None, None) && there == (lease.map(|lease| lease.token), point.map(Into::into)) {
            return Ok(Taken::Present);
        }
        if !self.look(&request, digest, now_us)? {
            return Ok(Taken::Present);
        }
        if let Some(lease) = lease {
            let (request, last, is_first) = (&*request.key, None, false);
            lease::save(&NewLease { of, lock: &digest, request, last, fingerprint, lease, is_first, holder: None })?;
            lease::keep_through_crash();
        }
        if let Some(point) = point {
            let (point, state, last) = (point.into(), row.state, None);
            checkpoint::save(&probe, &Checkpoint { point, state, fingerprint, written_at, last })?;
        }
        Ok(Taken::Imported)
    }

    fn take_into_inbox(
        &self,
        request: &Keyed<'_>,
        row: &ImportedRow<'_>,
        kept: &KeptHere<'_>,
        [recorded_at, expires_at, now_us]: [i64; 3],
    ) -> Result<Taken, Error> {
        let (response, payload) = (row.response.is_some(), row.payload.is_some() || row.fingerprint.is_some());
        if response || payload || row.token.is_some() || !matches!(kept, KeptHere::Outcome(Class::Succeeded)) {
            check_sort(&self.session, false)?;
        }
        if expires_at <= now_us {
            return Ok(Taken::Expired);
        }
        let key = inbox::Key { key: &request.key, digest: request.digest(), expires_at };
        let inserted = inbox::insert(&self.session, &[key], recorded_at, now_us, false)?;
        Ok(if inserted == [true] { Taken::Imported } else { Taken::Present })
    }
}

/// The hint where somebody is at work on a request.
const AT_WORK: &str = "Import it again when it is done: what is there already is left as it is. A query for fewer rows meets fewer requests.";

/// What a row tells of.
fn kept<'a>(request: &Keyed<'_>, row: &ImportedRow<'a>, now_us: i64) -> Result<KeptHere<'a>, Error> {
    let invalid = |what: &str, detail: String, hint| Error::Invalid {
        message: format!("{} {what}", request.name()),
        detail,
        hint,
    };
    const EXPORT: &str = "Give these columns as idem_export() gives them, or leave them out.";
    if let Some(token) = row.token.filter(|token| !(1..=TOKEN_MAX).contains(token)) {
        let detail = format!("Found {token}; a token is between 1 and {TOKEN_MAX}.");
        return Err(invalid("comes with a token out of range", detail, EXPORT));
    }
    let class = match (row.status, row.failed) {
        (Some(_), Some(_)) => {
            let detail = "One of them says the other.".into();
            return Err(invalid("comes with a status and with failed", detail, "Give one of the two."));
        }
        (None, failed) => Some(if failed == Some(true) { Class::Failed } else { Class::Succeeded }),
        (Some("unfinished"), None) => None,
        (Some(status), None) => {
            let class = Class::of_status(status);
            let hint = "The statuses are succeeded, failed, cancelled and unfinished.";
            Some(class.ok_or_else(|| invalid("comes with an unknown status", format!("Found \"{status}\"."), hint))?)
        }
    };
    let of_lease = (row.attempt, row.begun_at, row.leased_until);
    let is_of_outcome = of_lease == (None, None, None) && row.point.is_none() && row.state.is_none();
    if let Some(class) = class {
        if !is_of_outcome {
            let detail =
                format!("Found attempt, begun_at, leased_until, point or state with status {}.", class.status());
            return Err(invalid("is done, and comes as an unfinished one", detail, EXPORT));
        }
        return Ok(KeptHere::Outcome(class));
    }
    let lease = match (row.token, row.attempt, row.begun_at, row.leased_until) {
        (None, None, None, None) => None,
        (Some(token), Some(attempt @ 1..), Some(begun_at), Some(until)) if begun_at <= until => {
            // Nobody holds it any more.
            Some(Lease { token, attempt, begun_at: begun_at.min(now_us), until: until.min(now_us) })
        }
        _ => {
            let detail = "A lease has token, attempt, begun_at and leased_until, which do not contradict each other.";
            return Err(invalid("comes with half a lease", detail.into(), EXPORT));
        }
    };
    let is_whole = (lease.is_some() || row.point.is_some()) && (row.point.is_some() || row.state.is_none());
    if !is_whole || row.response.is_some() || row.expires_at.is_some() {
        let detail = "It has a lease, or a point with or without a state, and neither response nor expires_at.".into();
        return Err(invalid("is unfinished, and does not come as such", detail, EXPORT));
    }
    if let Some(point) = row.point {
        let hint = "A point is a name for where to go on; what that needs belongs in state.";
        arguments::check_chars(&format!("the point of {}", request.name()), point, POINT_CHARS_MAX, hint)?;
    }
    Ok(KeptHere::Unfinished(Unfinished { lease, point: row.point }))
}

/// The fingerprint of the payload that a request came with. A request may have been settled or begun without one, or
/// recorded before the session came to require payloads.
fn fingerprint(request: &Request<'_>, row: &ImportedRow<'_>, is_required: bool) -> Result<Option<Fingerprint>, Error> {
    match (row.payload, row.fingerprint) {
        (Some(_), Some(_)) => Err(Error::Invalid {
            message: format!("{} comes with a payload and a fingerprint", request.name()),
            detail: "One of them says the other.".into(),
            hint: "Give the payload, or what idem_fingerprint() gave for it.",
        }),
        (None, Some(fingerprint)) => Ok(Some(fingerprint)),
        (None, None) if !is_required => Ok(None),
        (payload, None) => request::fingerprint(request, payload),
    }
}

/// A moment for messages.
fn describe(moment: i64) -> String {
    match moment {
        i64::MIN => "-infinity".into(),
        i64::MAX => "infinity".into(),
        moment => pg::describe_moment(moment),
    }
}
