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
use crate::error::{Error, RequestName};
use crate::lock::Tag;
use crate::model::StandingSession;
use crate::open;
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::finish;
use crate::requests::keeping;
use crate::requests::keyed::{Keyed, check_sort};
use crate::requests::request::{self, Request};
use crate::requests::waiting;
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::inbox;
use crate::store::lease::{self, NewLease};
use crate::store::outcome::{self, Outcome};
use crate::store::rel::{Access, Snapshot};
use std::cell::Cell;
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

/// An import that is under way.
pub struct Import {
    /// Its number, by which `transaction/importing.rs` knows it.
    pub number: i64,
    /// The session that the rows go to.
    pub session: Rc<StandingSession>,
    /// The role that imports.
    pub role: String,
    /// Until when the import waits for requests at work, all in all.
    pub deadline: Deadline,
    /// Why it is done.
    pub reason: String,
    /// How many rows were imported, how many were there already, and how many had expired.
    pub taken: Cell<[u64; 3]>,
}

/// What a row tells of.
#[derive(PartialEq, Eq)]
enum KeptThere {
    Outcome(Class),
    /// A request that has a lease, or the checkpoint of the row, or both.
    Unfinished(Option<Lease>),
}

impl Import {
    /// Imports a row.
    pub fn take(&self, request: Keyed<'_>, row: &ImportedRow<'_>) -> Result<Taken, Error> {
        // The clock of this row: the query may give what was done since the import began.
        let now_us = pg::now_us();
        if !row.is_moved() {
            request.check_time(now_us)?;
        }
        let kept = kept(&request, row, now_us)?;
        let (recorded_at, expires_at) = self.moments(&request, row, now_us)?;
        let comes_with =
            row.response.is_some() || row.payload.is_some() || row.fingerprint.is_some() || row.token.is_some();
        if self.session.inbox && (comes_with || kept != KeptThere::Outcome(Class::Succeeded)) {
            check_sort(&self.session, false)?;
        }
        let class = match kept {
            KeptThere::Outcome(class) => class,
            KeptThere::Unfinished(lease) => {
                return self.take_unfinished(&Request::Keyed(request), row, lease, recorded_at);
            }
        };
        if expires_at <= now_us {
            return Ok(Taken::Expired);
        }
        if self.session.inbox {
            let key = inbox::Key { key: &request.key, digest: request.digest(), expires_at };
            let inserted = inbox::insert(&self.session, &[key], recorded_at, now_us, false)?;
            return Ok(if inserted == [true] { Taken::Imported } else { Taken::Present });
        }
        let request = Request::Keyed(request);
        finish::check_value("response", &request, row.response)?;
        let fingerprint = fingerprint(&request, row, !row.is_moved())?;
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
            visible: true,
        };
        outcome::insert_by(&request.probe(digest), &outcome, pg::text(&self.role));
        look_again(&request, digest, now_us)?;
        Ok(Taken::Imported)
    }

    /// When the outcome was recorded and when it expires, as far as the row does not say so now and a ttl later.
    fn moments(&self, request: &Keyed<'_>, row: &ImportedRow<'_>, now_us: i64) -> Result<(i64, i64), Error> {
        let ttl_us = self.session.ttl_us();
        let recorded_at = row.recorded_at.unwrap_or(now_us);
        let is_ahead = recorded_at > now_us.saturating_add(AHEAD_US_MAX) && !row.is_moved();
        if is_ahead || [i64::MIN, i64::MAX].contains(&recorded_at) {
            let detail = format!("Found {} as recorded_at.", pg::describe_moment(recorded_at));
            let hint = "Give when it was done, or leave recorded_at out.";
            return Err(invalid(request.name(), "was recorded at no time in the past", detail, hint));
        }
        // Another clock may be ahead, as those that make time keys may.
        let recorded_at = recorded_at.min(now_us);
        let by_ttl = request.expires_at_us(recorded_at, ttl_us);
        let expires_at = row.expires_at.unwrap_or(by_ttl);
        let earliest = request.key_expires_at_us();
        // Outcomes keep the ttl that they were recorded with, which may be longer than that of the session by now.
        let latest = request.expires_at_us(now_us, if row.is_moved() { TTL_US_MAX } else { ttl_us });
        let found = || format!("Found {} as expires_at", pg::describe_moment(expires_at));
        // By that clock it expires as much later.
        if expires_at > latest.saturating_add(AHEAD_US_MAX) {
            let what = "would be kept longer than the session allows";
            let detail = format!("{}; the latest is {}.", found(), pg::describe_moment(latest));
            let hint = "Leave expires_at out, give an earlier one, or have the session's owner alter its ttl (idem_alter_session).";
            return Err(invalid(request.name(), what, detail, hint));
        }
        let expires_at = expires_at.min(latest);
        if earliest.is_some_and(|earliest| expires_at < earliest) && !row.is_moved() {
            let hint = "Leave expires_at out: with time_keys a key tells how long its outcome is kept at least.";
            return Err(invalid(request.name(), "would expire before its time key is too old", found() + ".", hint));
        }
        Ok((recorded_at, expires_at.max(earliest.unwrap_or(expires_at))))
    }

    /// Whether the request may be imported, since it has no outcome and nobody is at work on it. What has expired is cleared
    /// away.
    fn look(&self, request: &Request<'_>, digest: Digest, now_us: i64) -> Result<bool, Error> {
        if open::holds(request.request_key()) {
            let hint = "Record or release it, or import in a transaction of its own.";
            return Err(Error::AlreadyBegun { name: request.name(), hint });
        }
        let (lock, probe) = (Tag::request(&digest), request.probe(digest));
        loop {
            let held = lock.is_held_by_another();
            let (found, _) = outcome::find(&probe, now_us, Snapshot::Itself, Access::Read)?;
            match found {
                Some(found) if found.lives_at(now_us) => return Ok(false),
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
        refuse_unfinished(request, &digest, now_us)?;
        Ok(true)
    }

    /// Imports an unfinished request. What is here of it already stays if it is the same.
    fn take_unfinished(
        &self,
        request: &Request<'_>,
        row: &ImportedRow<'_>,
        lease: Option<Lease>,
        written_at: i64,
    ) -> Result<Taken, Error> {
        finish::check_value("state", request, row.state)?;
        let fingerprint = fingerprint(request, row, false)?;
        let digest = request.digest();
        let lock = Tag::request(&digest);
        if !open::with_room(|| request.name(), || lock.acquire(self.deadline.left_us()))? {
            return Err(waiting::ran_out(request.name().to_string(), &lock, AT_WORK));
        }
        let now_us = pg::now_us();
        let since = lease.map(|lease| lease.until).max(row.point.map(|_| written_at));
        if since.is_none_or(|since| request.unfinished_until(since) <= now_us) {
            return Ok(Taken::Expired);
        }
        let (probe, of) = (request.probe(digest), request.stream());
        let there = (
            lease::find(of, &digest, Snapshot::Itself)?.map(|kept| kept.lease.token),
            checkpoint::find(&probe, Snapshot::Itself)?.map(|kept| kept.point),
        );
        let is_there = there != (None, None) && there == (lease.map(|lease| lease.token), row.point.map(Into::into));
        if is_there || !self.look(request, digest, now_us)? {
            return Ok(Taken::Present);
        }
        if let Some(lease) = lease {
            let (request, last, is_first) = (request.key(), None, false);
            lease::save(&NewLease { of, lock: &digest, request, last, fingerprint, lease, is_first, holder: None })?;
            lease::keep_through_crash();
        }
        if let Some(point) = row.point {
            let (point, state, last, visible) = (point.into(), row.state, None, true);
            checkpoint::save(&probe, &Checkpoint { point, state, fingerprint, written_at, last, visible })?;
        }
        Ok(Taken::Imported)
    }
}

/// Refuses what was imported just now if the request was begun since [`Import::look`].
fn look_again(request: &Request<'_>, digest: Digest, now_us: i64) -> Result<(), Error> {
    if Tag::request(&digest).is_held_by_another() || outcome::find_of_others(&request.probe(digest), now_us) {
        return Err(Error::RecordedBeside(request.name()));
    }
    refuse_unfinished(request, &digest, now_us)
}

/// Refuses a request that was begun here, committed, and is not done.
fn refuse_unfinished(request: &Request<'_>, digest: &Digest, now_us: i64) -> Result<(), Error> {
    let (lease, checkpoint) = keeping::unfinished(request, digest, now_us)?;
    if let Some(kept) = lease.as_ref().filter(|kept| kept.lease.runs_at(now_us)) {
        let until = pg::describe_moment(kept.lease.until);
        return Err(Error::Leased { name: request.name(), until, hint: AT_WORK });
    }
    if lease.is_none() && checkpoint.is_none() {
        return Ok(());
    }
    let (name, point) = (request.name(), checkpoint.map(|checkpoint| checkpoint.point));
    Err(Error::MustLook { name, point, taken_over: lease.is_some(), given_up: false })
}

/// The hint where somebody is at work on a request.
const AT_WORK: &str = "Import it again when it is done: what is there already is left as it is. A query for fewer rows meets fewer requests.";

/// What a row tells of.
fn kept(request: &Keyed<'_>, row: &ImportedRow<'_>, now_us: i64) -> Result<KeptThere, Error> {
    const EXPORT: &str = "Give these columns as idem_export() gives them, or leave them out.";
    let invalid = |what, detail, hint| invalid(request.name(), what, detail, hint);
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
        return Ok(KeptThere::Outcome(class));
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
        arguments::check_chars(format_args!("the point of {}", request.name()), point, POINT_CHARS_MAX, hint)?;
    }
    Ok(KeptThere::Unfinished(lease))
}

/// The fingerprint of the payload that a request came with. A request may have been settled or begun without one, or
/// recorded before the session came to require payloads.
fn fingerprint(request: &Request<'_>, row: &ImportedRow<'_>, is_required: bool) -> Result<Option<Fingerprint>, Error> {
    match (row.payload, row.fingerprint) {
        (Some(_), Some(_)) => {
            let hint = "Give the payload, or what idem_fingerprint() gave for it.";
            let detail = "One of them says the other.".into();
            Err(invalid(request.name(), "comes with a payload and a fingerprint", detail, hint))
        }
        (None, Some(fingerprint)) => Ok(Some(fingerprint)),
        (None, None) if !is_required => Ok(None),
        (payload, None) => request::fingerprint(request, payload),
    }
}

/// The error for a row that contradicts itself or the session.
fn invalid(name: RequestName, what: &str, detail: String, hint: &'static str) -> Error {
    Error::Invalid { message: format!("{name} {what}"), detail, hint }
}
