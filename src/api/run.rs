//! `idem_run`: makes a statement of the caller's idempotent.
//!
//! The SQL function is declared in `sql/run.sql`, since its C function is not one of pgrx's: the statement is executed
//! below it, and its errors must not pass through pgrx.

use super::call::{enter, in_stream, required, with_request};
use crate::arguments;
use crate::domain::class::Class;
use crate::domain::final_error::is_final;
use crate::error::Error;
use crate::guc;
use crate::pg::{self, Arguments, Before, Came, Composite, Takes, Work, c_function};
use crate::requests::answer::{Begun, Ticket};
use crate::requests::claim;
use crate::requests::finish;
use crate::requests::request::Rules;
use std::borrow::Cow;
use std::ops::ControlFlow;

c_function!(idem_run, pg_finfo_idem_run, |call| pg::around_command(call, before, after));

const NAME: &str = "idem_run";

/// The places of the arguments.
mod place {
    use crate::store::tuple::places;

    places!(pub SESSION, REQUEST, COMMAND, ARGS, ON_ERROR, WAIT, TTL, STREAM);
}

fn after(arguments: &Arguments<'_>, came: Came) -> Result<Composite<Ticket>, Error> {
    enter(NAME);
    let (class, response) = match came {
        Ok(response) => (Class::Succeeded, response),
        Err(told) => (Class::Failed, Some(told)),
    };
    let (session, request) = (arguments.get(place::SESSION), arguments.get(place::REQUEST).map(Cow::Borrowed));
    let numbering = in_stream(arguments.get(place::STREAM));
    let outcome = with_request(Rules::OfBegin, session, request, numbering, |request| {
        finish::record(request, class, response, None, arguments.get(place::TTL))
    });
    Ok(Composite(Ticket { attempt: Some(1), ..Ticket::done(outcome?) }))
}

fn before(arguments: &Arguments<'_>) -> Result<Before<Ticket>, Error> {
    enter(NAME);
    let command: &str = required("command", arguments.get(place::COMMAND))?;
    let takes = match required("on_error", arguments.get::<&str>(place::ON_ERROR))? {
        "raise" => None,
        "record" => Some(Takes { is_taken: is_final, bytes_max: guc::max_response_bytes() }),
        other => {
            return Err(Error::Invalid {
                message: "on_error must be \"raise\" or \"record\"".into(),
                detail: format!("Found \"{other}\"."),
                hint: "raise: the error aborts as ever and nothing is recorded; record: it is recorded as a final failure and returned.",
            });
        }
    };
    let parameter = arguments.get(place::ARGS);
    let (session, request) = (arguments.get(place::SESSION), arguments.get(place::REQUEST).map(Cow::Borrowed));
    let numbering = in_stream(arguments.get(place::STREAM));
    let outcome = with_request(Rules::Current, session, request, numbering, |request| {
        claim::claim_or_replay(request, parameter, arguments::wait_us(arguments.get(place::WAIT))?)
    })?;
    Ok(match outcome {
        Some(outcome) => ControlFlow::Break(Composite(Begun::Replay(outcome).into())),
        None if command.trim_ascii().is_empty() => {
            let (message, detail) = ("the command is empty".into(), "There is nothing to execute.".into());
            return Err(Error::Invalid { message, detail, hint: "Give an SQL statement." });
        }
        None => ControlFlow::Continue(Work::of(command, parameter, takes)),
    })
}
