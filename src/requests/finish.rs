//! The calls that follow begin: record, checkpoint, release and extend. They come in the same transaction, or with the
//! token of a lease.

use crate::arguments;
use crate::domain::class::Class;
use crate::domain::limits::POINT_CHARS_MAX;
use crate::error::{Error, Superseded};
use crate::guc;
use crate::monitor::{Counter, counters};
use crate::open::{self, OpenRequest, State};
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::held::{self, Held};
use crate::requests::keeping;
use crate::requests::keyed::Keyed;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::sessions::save::Ack;
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::outcome::Outcome;
use crate::store::rel::Snapshot;
use crate::store::reply;
use crate::transaction::told;
use crate::wake;
use pgrx::datum::Interval;

/// Records the outcome of a begun request. Returns the outcome as a replay will give it.
pub fn record(
    request: &Request<'_>,
    class: Class,
    response: Option<Jsonb>,
    token: Option<i64>,
    ttl: Option<Interval>,
) -> Result<Outcome, Error> {
    let outcome = match held::to_record(request, token)? {
        Held::Open(open) => record_open(request, open, class, response, ttl)?,
        Held::Recorded(outcome) => return Ok(outcome),
    };
    count(request, class);
    Ok(outcome)
}

/// Counts an outcome that was recorded.
pub fn count(request: &Request<'_>, class: Class) {
    let counter = match class {
        Class::Succeeded => Counter::Recorded,
        Class::Failed | Class::GivenUp => Counter::Failed,
        Class::Cancelled => Counter::Cancelled,
    };
    counters::count(&request.session(), counter);
}

/// The list of open requests has the numbers of each request of a client session.
const NUMBERED: &str = "a numbered request was begun with its numbers";

/// Records the outcome of a request that is open in this transaction.
pub fn record_open(
    request: &Request<'_>,
    open: OpenRequest,
    class: Class,
    response: Option<Jsonb>,
    ttl: Option<Interval>,
) -> Result<Outcome, Error> {
    debug_assert!(keeping::holds_claim(request, &open.lock), "an open request has its claim");
    check_writable(request, "idem_record")?;
    check_value("response", request, response)?;
    let outcome = |recorded_at| {
        let (fingerprint, token, writer) = (open.fingerprint, open.token, pg::Writer::THIS);
        Outcome { class, response, fingerprint, token, recorded_at, expires_at: None, writer, visible: true }
    };
    let outcome = match request {
        Request::Keyed(keyed) => {
            let ttl_us = match ttl {
                None => keyed.session.ttl_us(),
                Some(ttl) => asked_ttl_us(keyed, &ttl)?,
            };
            keeping::record(keyed, &open, outcome(pg::now_us()), ttl_us)?
        }
        Request::Numbered(numbered) => {
            refuse_ttl(numbered, ttl)?;
            let numbers = open.numbers.expect(NUMBERED);
            let deadline = Deadline::after(guc::wait_us());
            let ack = Ack::of(&numbered.session, numbered.stream(), numbers, deadline)?;
            ack.save_session()?;
            if open.leftovers.checkpoint {
                checkpoint::delete(&request.probe(open.digest))?;
            }
            let outcome = outcome(pg::now_us());
            reply::save(numbered.stream(), numbers.slot, numbers.range, &outcome, numbers.former)?;
            ack.note()?;
            outcome
        }
    };
    if open.leftovers.lease && keeping::end_lease_of_recorded(request, &open.lock)? {
        wake::at_commit(&open.lock);
    }
    open::finish(request.request_key(), State::Recorded);
    debug_assert!(!open::holds(request.request_key()), "a recorded request is no longer open");
    told::at_commit(|| format!("{}: {}, recorded", request.name(), class.status()));
    Ok(outcome)
}

/// Saves how far a begun request got. After that the transaction may commit without a record.
pub fn checkpoint(request: &Request<'_>, point: &str, state: Option<Jsonb>, token: Option<i64>) -> Result<(), Error> {
    let open = held::by(request, token, "idem_checkpoint")?;
    check_writable(request, "idem_checkpoint")?;
    let hint = "A point is a name for where to go on; what that needs belongs in state.";
    arguments::check_chars(format_args!("the point of {}", request.name()), point, POINT_CHARS_MAX, hint)?;
    check_value("state", request, state)?;
    if let Request::Numbered(numbered) = request {
        let numbers = open.numbers.expect(NUMBERED);
        Ack::of(&numbered.session, numbered.stream(), numbers, Deadline::after(guc::wait_us()))?.save()?;
    }
    let checkpoint = Checkpoint {
        point: point.into(),
        state,
        fingerprint: open.fingerprint,
        written_at: pg::now_us(),
        last: open.numbers.map(|numbers| numbers.range.last),
        visible: true,
    };
    keeping::save_checkpoint(request, open.digest, &checkpoint)?;
    if open.token.is_none() && open.leftovers.lease {
        // Whoever went on in a transaction without a lease has superseded the former lease, and its steps are done.
        keeping::delete_lease(request, &open.lock)?;
    }
    open::finish(request.request_key(), State::Saved);
    Ok(())
}

/// Gives up a begun request. Its lock stays to the end of the transaction. What the transaction did so far is not
/// undone, so nobody may execute the request beside it.
pub fn release(request: &Request<'_>, token: Option<i64>) -> Result<(), Error> {
    let open = held::by(request, token, "idem_release")?;
    if open.token.is_some() {
        keeping::delete_lease(request, &open.lock)?;
        wake::at_commit(&open.lock);
    } else {
        keeping::take_back_claim(request, &open)?;
    }
    open::finish(request.request_key(), State::Released);
    counters::count(&request.session(), Counter::Released);
    told::at_commit(|| format!("{}: released", request.name()));
    Ok(())
}

/// Extends the lease of a request. Gives when it runs out now.
pub fn extend(request: &Request<'_>, token: i64, lease_us: i64) -> Result<i64, Error> {
    let lock = held::by(request, Some(token), "idem_extend")?.lock;
    let stored = keeping::lease(request, &lock, Snapshot::Itself)?.ok_or_else(|| Error::ClaimSuperseded {
        name: request.name(),
        token,
        how: Superseded::Gone,
    })?;
    let lease = stored.lease.extended(pg::now_us(), lease_us);
    keeping::save_lease(request, &stored.with(lease, request.stream(), &lock))?;
    Ok(lease.until)
}

/// Refuses a ttl: a reply lives until its slot is needed for another reply, not for a length of time.
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

/// Refuses a transaction that was made read-only after it began the request.
fn check_writable(request: &Request<'_>, function: &'static str) -> Result<(), Error> {
    let detail = || format!("The transaction was made read-only after {} was begun in it.", request.name());
    arguments::check_writable(function, detail)
}

pub(super) fn check_value(what: &str, request: &Request<'_>, value: Option<Jsonb>) -> Result<(), Error> {
    let hint = "Keep a reference to a large answer instead of the answer, or raise idempotence.max_response.";
    value
        .map_or(Ok(()), |value| arguments::check_jsonb(what, || request.name(), value, guc::max_response_bytes(), hint))
}

/// The ttl that was given with a record, checked against the session's.
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
