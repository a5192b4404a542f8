//! What is counted for a session: which answer and which error adds to which counter.

use crate::domain::class::Class;
use crate::error::Error;
use crate::model::Session;
use crate::monitor::{Counter, counters};
use crate::requests::answer::{Begun, Start};
use crate::requests::decide::Aim;

/// Counts an answer of begin, claim or settle.
pub fn answered(session: &Session, aim: Aim, begun: &Begun) {
    let counter = match (begun, aim) {
        (Begun::Replay(_), _) => Counter::Replayed,
        (Begun::InProgress(_) | Begun::NotDurable, _) => Counter::InProgress,
        // The record that follows counts.
        (Begun::Started(_), Aim::Settle) => return,
        // A claim raises an error for these.
        (Begun::Started(Start { taken_over: true, .. } | Start { checkpoint: Some(_), .. }), Aim::Claim)
        | (Begun::GivenUp(_), Aim::Claim) => return,
        (Begun::Started(Start { taken_over: true, .. }), _) => Counter::TakenOver,
        (Begun::Started(_), _) => Counter::Started,
        (Begun::GivenUp(_), _) => Counter::Failed,
    };
    counters::count(session, counter);
}

/// Counts an outcome that was recorded.
pub fn recorded(session: &Session, class: Class) {
    let counter = match class {
        Class::Succeeded => Counter::Recorded,
        Class::Failed | Class::GivenUp => Counter::Failed,
        Class::Cancelled => Counter::Cancelled,
    };
    counters::count(session, counter);
}

/// Counts an error that a call on a request ends with.
pub fn refused(session: &Session, error: &Error) {
    let counter = match error {
        Error::PayloadMismatch(_) => Counter::Mismatched,
        Error::Discarded { .. } => Counter::Discarded,
        Error::SessionFenced { .. } | Error::ClaimSuperseded { .. } => Counter::Fenced,
        Error::OutOfSequence { .. } => Counter::OutOfSequence,
        _ => return,
    };
    counters::count(session, counter);
}
