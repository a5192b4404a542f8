//! What begin answers, as the steps of a call pass it on.

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
    /// How many attempts were begun before this call.
    pub fn attempts_before(&self) -> i32 {
        self.attempt - 1
    }
}
