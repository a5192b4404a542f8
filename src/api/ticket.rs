//! `idem_ticket`: the answer of the functions on requests.

use crate::domain::class::Class;
use crate::pg::{self, Composite, CompositeRow};
use crate::requests::answer::{Begun, Start};
use crate::requests::lookup::Known;
use crate::requests::settle::Settled;
use crate::store::checkpoint::Checkpoint;
use crate::store::outcome::Outcome;
use pgrx::pg_sys::Datum;

/// A row of `idem_ticket`.
#[derive(Default)]
pub struct Ticket {
    status: &'static str,
    replayed: bool,
    token: Option<i64>,
    attempt: Option<i32>,
    leased_until: Option<i64>,
    outcome: Option<Outcome>,
    checkpoint: Option<Checkpoint>,
}

impl CompositeRow for Ticket {
    const SQL_TYPE: &'static str = "idem_ticket";
    type Columns = [Option<Datum>; 9];

    fn columns(self) -> Self::Columns {
        let outcome = self.outcome.as_ref();
        let checkpoint = self.checkpoint.as_ref();
        [
            Some(pg::text(self.status)),
            Some(self.replayed.into()),
            outcome.and_then(|outcome| outcome.response).map(pg::Jsonb::datum),
            self.token.map(Into::into),
            self.attempt.map(Into::into),
            checkpoint.map(|checkpoint| pg::text(&checkpoint.point)),
            checkpoint.and_then(|checkpoint| checkpoint.state).map(pg::Jsonb::datum),
            outcome.map(|outcome| outcome.recorded_at.into()),
            outcome.and_then(|outcome| outcome.expires_at).or(self.leased_until).map(Into::into),
        ]
    }
}

/// The ticket that begin answers with.
pub fn begun(begun: Begun) -> Composite<Ticket> {
    Composite(answer(begun))
}

/// The ticket that settle answers with.
pub fn settled(settled: Settled) -> Composite<Ticket> {
    Composite(match settled {
        Settled::Cancelled(outcome, start) => {
            let attempt = start.taken_over.then_some(start.attempts_before());
            Ticket {
                status: Class::Cancelled.status(),
                attempt,
                checkpoint: start.checkpoint,
                outcome,
                ..Ticket::default()
            }
        }
        Settled::Answered(begun) => answer(begun),
    })
}

fn answer(begun: Begun) -> Ticket {
    match begun {
        Begun::Started(Start { checkpoint, taken_over, attempt, lease }) => Ticket {
            status: if taken_over { "taken_over" } else { "started" },
            token: lease.map(|lease| lease.token),
            attempt: Some(attempt),
            leased_until: lease.map(|lease| lease.until),
            checkpoint,
            ..Ticket::default()
        },
        Begun::Replay(outcome) | Begun::GivenUp(outcome) => Ticket { replayed: true, ..done(outcome) },
        Begun::NotDurable => Ticket { status: "in_progress", ..Ticket::default() },
        Begun::InProgress(leased_until) => Ticket { status: "in_progress", leased_until, ..Ticket::default() },
    }
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
        Known::InProgress { checkpoint, leased_until } => {
            Ticket { status: "in_progress", leased_until, checkpoint, ..Ticket::default() }
        }
        Known::NotHere(checkpoint) => Ticket { status: "not_here", checkpoint, ..Ticket::default() },
        Known::Suspended(checkpoint) => Ticket { status: "suspended", checkpoint, ..Ticket::default() },
        Known::Unknown => Ticket { status: "unknown", ..Ticket::default() },
    })
}

/// The ticket of a request that has an outcome.
fn done(outcome: Outcome) -> Ticket {
    let status = outcome.class.status();
    Ticket { status, outcome: Some(outcome), ..Ticket::default() }
}
