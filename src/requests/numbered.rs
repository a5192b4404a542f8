//! A numbered request of a client session, resolved and checked.

use crate::arguments;
use crate::domain::identity::Digest;
use crate::domain::limits::NUMBER_MAX;
use crate::domain::sequence::{self, Order, Range};
use crate::error::{Error, RequestName};
use crate::model::{ClientSession, StandingSession, Stream};
use crate::names;
use std::rc::Rc;

/// The arguments that only numbered requests have, as given.
#[derive(Clone, Copy, Default)]
pub struct Numbering<'a> {
    /// `stream`
    pub stream: Option<&'a str>,
    /// `last`
    pub last: Option<i64>,
    /// `ack`
    pub ack: Option<i64>,
    /// Whether any number of a range stands for the range, where the caller need not know its last one.
    pub by_any_number: bool,
}

impl Numbering<'_> {
    /// Refuses these arguments for a standing session. In one with a journal, the stream names the tenant.
    pub fn refuse(&self, session: &StandingSession) -> Result<(), Error> {
        let stream = self.stream.is_some() && session.journal.is_none();
        let (given, session) =
            ([("stream", stream), ("last", self.last.is_some()), ("ack", self.ack.is_some())], &session.name);
        let Some((argument, _)) = given.into_iter().find(|(_, given)| *given) else { return Ok(()) };
        Err(Error::Invalid {
            message: format!("argument \"{argument}\" does not go with session \"{session}\""),
            detail: "It belongs to the numbered requests of client sessions; this is a standing session.".into(),
            hint: "Leave it out: a key alone names a request here.",
        })
    }
}

/// A request of a client session.
#[derive(Clone)]
pub struct Numbered<'a> {
    /// Its session.
    pub session: Rc<ClientSession>,
    /// Its stream.
    pub stream: &'a str,
    /// Its numbers.
    pub range: Range,
    /// The first number in decimal, which names the request.
    pub key: String,
    /// Whether the request that has this number among its numbers is meant.
    pub by_any_number: bool,
    /// The mark that came with it: all numbers up to here are answered or given up. 0 if none came.
    pub acked: i64,
}

impl<'a> Numbered<'a> {
    /// Checks the numbering of a request of a session that the caller has the right to.
    pub fn of(session: Rc<ClientSession>, key: &str, numbering: Numbering<'a>) -> Result<Numbered<'a>, Error> {
        let stream = numbering.stream.unwrap_or_default();
        arguments::check_stream(&session.name, stream)?;
        let first = number(&session.name, key)?;
        let last = numbering.last.unwrap_or(first);
        if last < first || last > NUMBER_MAX {
            return Err(Error::Invalid {
                message: format!("the numbers of a request of session \"{}\" are no range", session.name),
                detail: format!("Found the numbers {first} to {last}; the greatest number is {NUMBER_MAX}."),
                hint: "Give the number of the last part of the request as last, or leave it out.",
            });
        }
        if last > first && session.order == Order::Any {
            return Err(Error::Invalid {
                message: format!("a request of session \"{}\" cannot be a range of numbers", session.name),
                detail: "Its ordering is \"any\", where each number is a request.".into(),
                hint: "Leave last out, or register with ordering => 'strict'.",
            });
        }
        let (acked, by_any_number) = (numbering.ack.unwrap_or(0), numbering.by_any_number);
        arguments::check_mark(&session.name, "ack", acked)?;
        Ok(Numbered { session, stream, range: Range { first, last }, key: first.to_string(), by_any_number, acked })
    }

    /// The request of the same stream that has these numbers.
    pub fn with_range(&self, range: Range) -> Numbered<'a> {
        Numbered { range, key: range.first.to_string(), ..self.clone() }
    }

    /// Its name for messages.
    pub fn name(&self) -> RequestName {
        RequestName::in_stream(&self.session.name, self.stream, &self.key)
    }

    /// The stream that it belongs to.
    pub fn stream(&self) -> Stream<'_> {
        Stream { session: &self.session.id, name: self.stream }
    }

    /// Its slot, if the session's numbers may come in any order.
    pub fn slot(&self) -> i32 {
        sequence::slot(self.range.first, self.session.window)
    }

    /// The digest that is locked for it: that of its lane.
    pub fn lock(&self) -> Digest {
        names::of_lane(&self.session, self.stream(), self.slot())
    }
}

/// The number that `key` stands for.
fn number(session: &str, key: &str) -> Result<i64, Error> {
    let digits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
    match key.parse() {
        Ok(number) if digits && (1..=NUMBER_MAX).contains(&number) => Ok(number),
        _ => {
            // A text key, as for a standing session, can be long.
            let shown: String = key.chars().take(64).collect();
            Err(Error::Invalid {
                message: format!("the number of a request of client session \"{session}\" is not valid"),
                detail: format!("Found \"{shown}\"; numbers go from 1 to {NUMBER_MAX}."),
                hint: "Number the requests of a stream 1, 2, 3 and so on. Text keys belong to standing sessions, made with idem_create_session().",
            })
        }
    }
}
