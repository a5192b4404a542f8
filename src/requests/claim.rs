//! Claim or raise: begin for programs, and for commands, that need no answer in between.

use crate::arguments::WAIT_BY_ARGUMENT;
use crate::error::Error;
use crate::lock::Tag;
use crate::pg::{self, Jsonb};
use crate::requests::answer::Begun;
use crate::requests::begin;
use crate::requests::decide::Aim;
use crate::requests::request::Request;
use crate::requests::waiting;
use crate::store::outcome::Outcome;

/// Takes the claim to a request. Anything but a request that starts from the beginning is an error.
pub fn claim(request: &Request<'_>, payload: Option<Jsonb>, wait_us: Option<i64>) -> Result<(), Error> {
    match begin::begin(request, payload, wait_us, Aim::Claim)? {
        Begun::Started(start) if start.is_the_beginning() => Ok(()),
        begun => Err(refusal(request, begun)),
    }
}

/// Takes the claim to a request, or gives its outcome. Anything but a request that starts from the beginning, or that is
/// done, is an error.
pub fn claim_or_replay(
    request: &Request<'_>,
    payload: Option<Jsonb>,
    wait_us: Option<i64>,
) -> Result<Option<Outcome>, Error> {
    match begin::begin(request, payload, wait_us, Aim::Execute { lease_us: None })? {
        Begun::Started(start) if start.is_the_beginning() => Ok(None),
        Begun::Replay(outcome) | Begun::GivenUp(outcome) => Ok(Some(outcome)),
        begun => Err(refusal(request, begun)),
    }
}

/// Why the request is not the caller's to execute from the beginning.
fn refusal(request: &Request<'_>, begun: Begun) -> Error {
    let name = request.name();
    match begun {
        Begun::Started(start) => {
            let point = start.checkpoint.map(|checkpoint| checkpoint.point);
            Error::MustLook { name, point, taken_over: start.taken_over, given_up: false }
        }
        // This error takes back what begin has recorded.
        Begun::GivenUp(_) => Error::MustLook { name, point: None, taken_over: true, given_up: true },
        Begun::Replay(outcome) => {
            Error::AlreadyDone { name, class: outcome.class, recorded_at: pg::describe_moment(outcome.recorded_at) }
        }
        Begun::NotDurable => waiting::not_durable(name.to_string(), WAIT_BY_ARGUMENT),
        Begun::InProgress(None) => waiting::ran_out(name.to_string(), &Tag::request(&request.lock()), WAIT_BY_ARGUMENT),
        Begun::InProgress(Some(until)) => {
            const NOT_WAITED_FOR: &str =
                "Under REPEATABLE READ and SERIALIZABLE a lease is not waited for: try again after that time.";
            let hint = if pg::keeps_snapshot() { NOT_WAITED_FOR } else { WAIT_BY_ARGUMENT };
            Error::Leased { name, until: pg::describe_moment(until), hint }
        }
    }
}
