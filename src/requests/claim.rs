//! Claim or raise: begin for programs that need no answer in between.

use crate::arguments::WAIT_BY_ARGUMENT;
use crate::error::Error;
use crate::pg::{self, Jsonb};
use crate::requests::answer::Begun;
use crate::requests::begin;
use crate::requests::decide::Aim;
use crate::requests::request::Request;

/// Takes the claim to a request. Anything but a request that starts from the beginning is an error.
pub fn claim(request: &Request<'_>, payload: Option<Jsonb>, wait_us: Option<i64>) -> Result<(), Error> {
    let name = request.name();
    Err(match begin::begin(request, payload, wait_us, Aim::Claim)? {
        Begun::Started(start) => match (start.taken_over, start.checkpoint) {
            (false, None) => return Ok(()),
            (taken_over, checkpoint) => {
                let point = checkpoint.map(|checkpoint| checkpoint.point);
                Error::MustLook { name, point, taken_over, given_up: false }
            }
        },
        // This error takes back what begin has recorded.
        Begun::GivenUp(_) => Error::MustLook { name, point: None, taken_over: true, given_up: true },
        Begun::Replay(outcome) => {
            Error::AlreadyDone { name, class: outcome.class, recorded_at: pg::describe_moment(outcome.recorded_at) }
        }
        Begun::InProgress(None) => Error::WaitRanOut { what: name.to_string(), hint: WAIT_BY_ARGUMENT },
        Begun::InProgress(Some(until)) if pg::keeps_snapshot() => {
            let hint = "Under REPEATABLE READ and SERIALIZABLE a lease is not waited for: try again after that time.";
            Error::Leased { name, until: pg::describe_moment(until), hint }
        }
        Begun::InProgress(Some(until)) => {
            Error::Leased { name, until: pg::describe_moment(until), hint: WAIT_BY_ARGUMENT }
        }
    })
}
