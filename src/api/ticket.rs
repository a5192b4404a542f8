//! `idem_ticket`: the answer of the functions on requests.

use crate::pg::{self, Composite, Row};
use crate::requests::begin::Begun;
use crate::requests::lookup::Known;
use crate::store::checkpoint::Checkpoint;
use crate::store::outcome::Outcome;
use pgrx::pg_sys::Datum;

/// A row of `idem_ticket`.
#[derive(Default)]
pub struct Ticket {
    status: &'static str,
    replayed: bool,
    attempt: Option<i32>,
    outcome: Option<Outcome>,
    checkpoint: Option<Checkpoint>,
}

impl Row for Ticket {
    const SQL_TYPE: &'static str = "idem_ticket";

    fn columns(self) -> Vec<Option<Datum>> {
        let outcome = self.outcome.as_ref();
        let checkpoint = self.checkpoint.as_ref();
        vec![
            Some(pg::text(self.status)),
            Some(self.replayed.into()),
            outcome.and_then(|outcome| outcome.response).map(pg::Jsonb::datum),
            None,
            self.attempt.map(Into::into),
            checkpoint.map(|checkpoint| pg::text(&checkpoint.point)),
            checkpoint.and_then(|checkpoint| checkpoint.state).map(pg::Jsonb::datum),
            outcome.map(|outcome| outcome.recorded_at.into()),
            outcome.and_then(|outcome| outcome.expires_at).map(Into::into),
        ]
    }
}

/// The ticket that begin answers with.
pub fn begun(begun: Begun) -> Composite<Ticket> {
    Composite(match begun {
        Begun::Started(checkpoint) => Ticket { status: "started", attempt: Some(1), checkpoint, ..Ticket::default() },
        Begun::Replay(outcome) => Ticket { replayed: true, ..done(outcome) },
        Begun::InProgress => Ticket { status: "in_progress", ..Ticket::default() },
    })
}

/// The ticket of a request that this call has executed and recorded.
pub fn executed(outcome: Outcome) -> Composite<Ticket> {
    Composite(Ticket { attempt: Some(1), ..done(outcome) })
}

/// The ticket that lookup answers with.
pub fn known(known: Known) -> Composite<Ticket> {
    Composite(match known {
        Known::Outcome(outcome) => done(outcome),
        Known::Discarded => Ticket { status: "discarded", ..Ticket::default() },
        Known::InProgress(checkpoint) => Ticket { status: "in_progress", checkpoint, ..Ticket::default() },
        Known::NotHere(checkpoint) => Ticket { status: "not_here", checkpoint, ..Ticket::default() },
        Known::Suspended(checkpoint) => {
            Ticket { status: "suspended", checkpoint: Some(checkpoint), ..Ticket::default() }
        }
        Known::Unknown => Ticket { status: "unknown", ..Ticket::default() },
    })
}

/// The ticket of a request that has an outcome.
fn done(outcome: Outcome) -> Ticket {
    let status = outcome.class.status();
    Ticket { status, outcome: Some(outcome), ..Ticket::default() }
}
