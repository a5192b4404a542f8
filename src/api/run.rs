//! `idem_run`: makes a statement of the caller's idempotent.
//!
//! The SQL function is declared in `sql/run.sql`, since its C function is not one of pgrx's: the statement is executed
//! below it, and its errors must not pass through pgrx.

use super::call::{in_stream, required, with_request};
use crate::arguments;
use crate::domain::class::Class;
use crate::domain::final_error::is_final;
use crate::error::{Error, or_raise};
use crate::pg::{Arguments, Before, Came, CommandOrder, Composite, function_around_command};
use crate::requests::answer::{Begun, Ticket};
use crate::requests::claim;
use crate::requests::finish;
use crate::requests::request::Rules;
use std::borrow::Cow;
use std::ops::ControlFlow;

function_around_command!(idem_run, pg_finfo_idem_run, before, after);

/// The places of the arguments.
mod place {
    use crate::store::tuple::places;

    places!(pub SESSION, REQUEST, COMMAND, ARGS, ON_ERROR, WAIT, TTL, STREAM);
}

fn before<'a>(arguments: &'a Arguments<'_>) -> Before<'a, Ticket> {
    or_raise(begin(arguments))
}

fn after(arguments: &Arguments<'_>, came: Came) -> Composite<Ticket> {
    let (class, response) = match came {
        Ok(response) => (Class::Succeeded, response),
        Err(told) => (Class::Failed, Some(told)),
    };
    let (session, request) = (arguments.text(place::SESSION), arguments.text(place::REQUEST).map(Cow::from));
    let numbering = in_stream(arguments.text(place::STREAM));
    let outcome = with_request(Rules::OfBegin, session, request, numbering, |request| {
        finish::record(request, class, response, None, arguments.interval(place::TTL))
    });
    Composite(Ticket { attempt: Some(1), ..Ticket::done(or_raise(outcome)) })
}

/// Begins the request.
fn begin<'a>(arguments: &'a Arguments<'_>) -> Result<Before<'a, Ticket>, Error> {
    let command = required("command", arguments.text(place::COMMAND))?;
    let takes: Option<fn(&[u8; 5]) -> bool> = match required("on_error", arguments.text(place::ON_ERROR))? {
        "raise" => None,
        "record" => Some(is_final),
        other => {
            return Err(Error::Invalid {
                message: "on_error must be \"raise\" or \"record\"".into(),
                detail: format!("Found \"{other}\"."),
                hint: "raise: the error aborts as ever and nothing is recorded; record: it is recorded as a final failure and returned.",
            });
        }
    };
    let parameter = arguments.jsonb(place::ARGS);
    let (session, request) = (arguments.text(place::SESSION), arguments.text(place::REQUEST).map(Cow::from));
    let numbering = in_stream(arguments.text(place::STREAM));
    let outcome = with_request(Rules::Current, session, request, numbering, |request| {
        claim::claim_or_replay(request, parameter, arguments::wait_us(arguments.interval(place::WAIT))?)
    })?;
    Ok(match outcome {
        Some(outcome) => ControlFlow::Break(Composite(Begun::Replay(outcome).into())),
        None if command.trim_ascii().is_empty() => {
            let (message, detail) = ("the command is empty".into(), "There is nothing to execute.".into());
            return Err(Error::Invalid { message, detail, hint: "Give an SQL statement." });
        }
        None => ControlFlow::Continue(CommandOrder { command, parameter, takes }),
    })
}
