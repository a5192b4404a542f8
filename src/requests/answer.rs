//! What the functions on requests answer.

use crate::domain::class::Class;
use crate::domain::lease::Lease;
use crate::store::checkpoint::Checkpoint;
use crate::store::outcome::Outcome;

/// What begin answers.
pub enum Begun {
    /// The caller has the claim.
    Started(Start),
    /// The request was done, with this outcome.
    Replay(Outcome),
    /// All attempts were begun and none was completed. This call has recorded that as a final failure.
    GivenUp(Outcome),
    /// The wait ran out: another transaction has the claim, or another holder has a lease until this moment.
    InProgress(Option<i64>),
    /// The wait ran out: the request was done, and its outcome is not yet durable.
    NotDurable,
}

/// How the caller is to execute the request.
pub struct Start {
    /// Where it goes on.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the lease of another holder ran out, whose effect may have happened.
    pub taken_over: bool,
    /// 1, and one more for each time that the request was taken over.
    pub attempt: i32,
    /// The lease that the caller was given.
    pub lease: Option<Lease>,
}

impl Start {
    /// Whether nothing was done of the request before.
    pub fn is_the_beginning(&self) -> bool {
        !self.taken_over && self.checkpoint.is_none()
    }
}

/// The answer as callers see it, in the columns of `idem_ticket`.
#[derive(Default)]
pub struct Ticket {
    /// What is known of the request.
    pub status: &'static str,
    /// Whether the outcome is handed out instead of executing again.
    pub replayed: bool,
    /// The token of the lease that the caller was given.
    pub token: Option<i64>,
    /// Which attempt this is, or how many there were.
    pub attempt: Option<i32>,
    /// When the lease runs out, or ran out.
    pub leased_until: Option<i64>,
    /// The outcome.
    pub outcome: Option<Outcome>,
    /// Where the request stopped.
    pub checkpoint: Option<Checkpoint>,
}

/// The status of a request that another transaction has the claim to, or another holder a lease, or whose outcome is not
/// yet durable.
pub const IN_PROGRESS: &str = "in_progress";

impl Ticket {
    /// Another one has the request, and nothing more is known.
    pub fn in_progress() -> Ticket {
        Ticket { status: IN_PROGRESS, ..Ticket::default() }
    }

    /// The request has this outcome.
    pub fn done(outcome: Outcome) -> Ticket {
        Ticket { status: outcome.class.status(), outcome: Some(outcome), ..Ticket::default() }
    }

    /// The request is never executed. `attempt` tells how many attempts there were, and `checkpoint` how far it had got.
    pub fn cancelled(outcome: Option<Outcome>, attempt: Option<i32>, checkpoint: Option<Checkpoint>) -> Ticket {
        Ticket { status: Class::Cancelled.status(), attempt, checkpoint, outcome, ..Ticket::default() }
    }
}

impl From<Begun> for Ticket {
    fn from(begun: Begun) -> Ticket {
        match begun {
            Begun::Started(Start { checkpoint, taken_over, attempt, lease }) => Ticket {
                status: if taken_over { "taken_over" } else { "started" },
                token: lease.map(|lease| lease.token),
                attempt: Some(attempt),
                leased_until: lease.map(|lease| lease.until),
                checkpoint,
                ..Ticket::default()
            },
            Begun::Replay(outcome) | Begun::GivenUp(outcome) => Ticket { replayed: true, ..Ticket::done(outcome) },
            Begun::NotDurable => Ticket::in_progress(),
            Begun::InProgress(leased_until) => Ticket { leased_until, ..Ticket::in_progress() },
        }
    }
}
