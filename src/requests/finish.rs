//! What follows a begin in the same transaction: record, checkpoint, release.

use crate::arguments;
use crate::domain::limits::POINT_CHARS_MAX;
use crate::domain::outcome::Class;
use crate::error::{Error, Missing};
use crate::guc;
use crate::open::{self, Finish, Numbers, Open, answered};
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::keyed::Keyed;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::sessions::{giving_up, save};
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::outcome::{self, Outcome};
use crate::store::reply;
use crate::store::stream::{self, Marks};
use pgrx::datum::Interval;

/// Records the outcome of a begun request, and gives it back as it will be replayed.
pub fn record(
    request: &Request<'_>,
    class: Class,
    response: Option<Jsonb>,
    token: Option<i64>,
    ttl: Option<Interval>,
) -> Result<Outcome, Error> {
    let open = find(request, token, "idem_record")?;
    check_writable(request, "idem_record")?;
    check_size("response", request, response)?;
    let outcome = |expires_at, recorded_at| {
        let (fingerprint, writer) = (open.fingerprint, pg::Writer::THIS);
        Outcome { class, response, fingerprint, recorded_at, expires_at, writer }
    };
    let outcome = match request {
        Request::Keyed(keyed) => {
            let ttl_us = match ttl {
                None => keyed.session.ttl_us(),
                Some(ttl) => asked_ttl_us(keyed, &ttl)?,
            };
            let probe = keyed.probe(open.digest);
            if open.leftovers {
                // An outcome that begin found is expired, or it would have been replayed.
                outcome::clear(&probe)?;
                checkpoint::delete(&probe)?;
            }
            let recorded_at = pg::now_us();
            let outcome = outcome(Some(keyed.expires_at_us(recorded_at, ttl_us)), recorded_at);
            outcome::insert(&probe, &outcome);
            outcome
        }
        Request::Numbered(numbered) => {
            refuse_ttl(numbered, ttl)?;
            let numbers = numbers_of(&open, numbered)?;
            let said = before_saving(numbered, numbers)?;
            save::save(&numbered.session)?;
            save::note_stream(&numbered.session, numbered.stream(), &said.marks)?;
            if open.leftovers {
                checkpoint::delete(&request.probe(open.digest))?;
            }
            let outcome = outcome(None, pg::now_us());
            reply::save(numbered.stream(), numbers.slot, numbers.range, &outcome)?;
            said.note(numbered)?;
            outcome
        }
    };
    open::finish(request.request_key(), Finish::Record);
    Ok(outcome)
}

/// Saves how far a begun request got; the transaction may commit with that.
pub fn checkpoint(request: &Request<'_>, point: &str, state: Option<Jsonb>, token: Option<i64>) -> Result<(), Error> {
    let open = find(request, token, "idem_checkpoint")?;
    check_writable(request, "idem_checkpoint")?;
    let hint = "A point is a name for where to go on; what that needs belongs in state.";
    arguments::check_chars(&format!("the point of {}", request.name()), point, POINT_CHARS_MAX, hint)?;
    check_size("state", request, state)?;
    if let Request::Numbered(numbered) = request {
        let said = before_saving(numbered, numbers_of(&open, numbered)?)?;
        save::save(&numbered.session)?;
        save::note_stream(&numbered.session, numbered.stream(), &said.marks)?;
        // What gives nothing up is stored with the outcome.
        if said.gives_up {
            said.note(numbered)?;
        }
    }
    let checkpoint = Checkpoint {
        point: point.into(),
        state,
        fingerprint: open.fingerprint,
        written_at: pg::now_us(),
        last: open.numbers.map(|numbers| numbers.range.last),
    };
    checkpoint::save(&request.probe(open.digest), &checkpoint)?;
    open::finish(request.request_key(), Finish::Checkpoint);
    Ok(())
}

fn numbers_of(open: &Open, request: &Numbered<'_>) -> Result<Numbers, Error> {
    let message = || format!("{} was begun without a number", request.name());
    open.numbers.ok_or_else(|| Error::Corrupted { message: message() })
}

/// What was said along with a request of what its client has, or gives up.
struct Said {
    /// As it was when looked at.
    marks: Marks,
    acked: i64,
    /// It is more than what is stored.
    is_new: bool,
    gives_up: bool,
}

/// What comes before the first lock of saving: the numbers that are given up along with this one.
fn before_saving(request: &Numbered<'_>, numbers: Numbers) -> Result<Said, Error> {
    let stream = request.stream();
    let marks = stream::find(stream);
    refuse_given_up(request, numbers, &marks)?;
    let (acked, is_new) = (numbers.acked, numbers.acked > marks.acked);
    let deadline = Deadline::after(guc::wait_us());
    let gives_up = is_new && giving_up::take_lanes(&request.session, stream, marks.acked, acked, deadline)?;
    Ok(Said { marks, acked, is_new, gives_up })
}

/// Refuses a number that was given up since it was begun. Its lane keeps that from happening; a record is the last
/// moment at which it can be found out if it did.
fn refuse_given_up(request: &Numbered<'_>, numbers: Numbers, marks: &Marks) -> Result<(), Error> {
    if numbers.range.first <= marks.acked {
        return Err(Error::Discarded { name: request.name(), window: request.session.window });
    }
    Ok(())
}

impl Said {
    fn note(self, request: &Numbered<'_>) -> Result<(), Error> {
        if !self.is_new {
            return Ok(());
        }
        save::note_ack(&request.session, request.stream(), self.acked, self.gives_up)
    }
}

/// Gives a begun request up. The lock stays to the end of the transaction: what it did so far is not
/// undone, and nobody may execute beside it.
pub fn release(request: &Request<'_>, token: Option<i64>) -> Result<(), Error> {
    find(request, token, "idem_release")?;
    open::finish(request.request_key(), Finish::Release);
    Ok(())
}

/// The open request that `function` is for.
fn find(request: &Request<'_>, token: Option<i64>, function: &'static str) -> Result<Open, Error> {
    request.check_not_inbox()?;
    if let Some(token) = token {
        return Err(Error::Fenced { name: request.name(), token });
    }
    // That it was not begun is worth saying only of a session that is there.
    open::find(request.request_key(), function).or_else(|not_begun| {
        request.check_known()?;
        Err(match not_begun {
            Error::NotBegun { name, missing: Missing::Begin, function } => {
                let answered = answered::to((request.lock(), request.number()));
                Error::NotBegun { name, missing: answered.map_or(Missing::Begin, Missing::Answered), function }
            }
            other => other,
        })
    })
}

/// A reply lives as long as its slot is not needed for another, not for a time.
fn refuse_ttl(request: &Numbered<'_>, ttl: Option<Interval>) -> Result<(), Error> {
    match ttl {
        None => Ok(()),
        Some(_) => Err(Error::Invalid {
            message: format!("{} cannot be recorded with a ttl", request.name()),
            detail: format!("A client session keeps the newest {} replies of a stream.", request.session.window),
            hint: "Leave ttl out. How many replies are kept is said when registering, as window_size.",
        }),
    }
}

/// A transaction may be made read-only after it began a request.
fn check_writable(request: &Request<'_>, function: &'static str) -> Result<(), Error> {
    let detail = || format!("The transaction was made read-only after {} was begun in it.", request.name());
    arguments::check_writable(function, detail)
}

fn check_size(what: &str, request: &Request<'_>, value: Option<Jsonb>) -> Result<(), Error> {
    let hint = "Keep a reference to a large answer instead of the answer, or raise idempotence.max_response.";
    match value {
        // The name is made only if it is needed: this is the hot path.
        Some(jsonb) if jsonb.raw_bytes() > guc::max_response_bytes() => {
            arguments::check_jsonb(what, &request.name(), value, guc::max_response_bytes(), hint)
        }
        _ => Ok(()),
    }
}

fn asked_ttl_us(request: &Keyed<'_>, ttl: &Interval) -> Result<i64, Error> {
    let session_us = request.session.ttl_us();
    let refusal = match pg::interval_us(ttl) {
        Some(us) if us <= 0 => "is not positive",
        Some(us) if us < session_us && request.session.time_keys => {
            "is shorter than the session's, whose time_keys rest on it"
        }
        Some(us) if us <= session_us => return Ok(us),
        _ => "is longer than the session's",
    };
    Err(Error::Invalid {
        message: format!("the ttl given for {} {refusal}", request.name()),
        detail: format!("The session's ttl is {}.", arguments::describe_us(session_us)),
        hint: "Leave ttl out to take the session's, or change that with idem_alter_session().",
    })
}
