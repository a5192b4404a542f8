//! What a call finds and decides, with the rules of the extension.

use crate::domain::decision::{Decision, Facts, KeptFacts, LeaseFacts, decide};
use crate::domain::lease::{Completion, complete};
use crate::domain::sequence::{Acked, Kept, Order, Place, Placed, Range, place};
use crate::kept::{Outcome, Stored, WINDOW, Which, number};
use crate::setup::{Fault, Form, Setup};
use crate::state::{Claim, TICK_US};

/// A begin, or a call to settle.
#[derive(Clone, Copy)]
pub struct Asked {
    /// Which request.
    pub of: Which,
    /// Whether to settle it.
    pub settle: bool,
    /// The mark that came with the call.
    pub ack: i64,
    /// When the call came.
    pub asked_at: i64,
}

/// The time at which something expires that is written now.
pub fn expires_at(setup: &Setup, now_us: i64) -> i64 {
    setup.ttl_ticks.map_or(i64::MAX, |ticks| now_us + ticks * TICK_US)
}

/// Decides about a begin, by what is stored.
pub fn decided(setup: &Setup, stored: &Stored, asked: Asked, now_us: i64) -> Decision {
    let early = setup.errs(Fault::TakenOverEarly);
    let (outcome, placed) = kept(setup, stored, asked);
    let lease = stored.lease.map(|leased| LeaseFacts {
        own: leased.of == asked.of,
        until: if early { now_us.min(leased.lease.until) } else { leased.lease.until },
        expires_at: expires_at(setup, leased.lease.until),
        attempt: leased.lease.attempt,
        visible: true,
        fingerprint: None,
    });
    decide(&Facts {
        asked_at: asked.asked_at,
        fingerprint: None,
        outcome,
        checkpoint: stored.checkpoints[usize::from(asked.of)].map(|expires_at| KeptFacts {
            expires_at,
            visible: true,
            fingerprint: None,
        }),
        now: now_us,
        // A request with an outcome has no lease: the record deleted it. So the extension does not look for one.
        lease: if outcome.is_some_and(|outcome| outcome.expires_at > asked.asked_at) { None } else { lease },
        max_attempts: setup.max_attempts.filter(|_| !asked.settle),
        time_key_expires_at: None,
        placed,
    })
}

/// The outcome of a request, expired or not, and its place.
fn kept(setup: &Setup, stored: &Stored, asked: Asked) -> (Option<KeptFacts>, Placed) {
    let facts = |outcome: Outcome| KeptFacts { expires_at: outcome.expires_at, visible: true, fingerprint: None };
    if setup.form == Form::Key {
        return (stored.outcome.map(facts), Placed { place: Place::Next(0), visible: true });
    }
    let range = |which| Range { first: number(which), last: number(which) };
    let reply = stored.outcome.map(|reply| Kept { range: range(reply.of), slot: 1, answers: true, visible: true });
    let acked = Acked { stored: stored.mark, visible: true, with_request: asked.ack };
    let placed = place(Order::Any, WINDOW, acked, reply.as_slice(), range(asked.of));
    let outcome = if let Place::Kept(_) = placed.place { stored.outcome.map(facts) } else { None };
    (outcome, placed)
}

/// Decides about a call with a token.
pub fn completion(setup: &Setup, stored: &Stored, claim: Claim, now_us: i64) -> Completion {
    let lease = stored.lease_of(claim.of);
    let outcome = stored.outcome.filter(|outcome| outcome.of == claim.of && outcome.expires_at > now_us);
    let recorded_with = outcome.and_then(|outcome| outcome.token);
    match lease {
        Some(_) if setup.errs(Fault::TokenUnchecked) => Completion::Proceed,
        lease => complete(claim.token, lease.as_ref(), recorded_with),
    }
}

/// Whether a mark of this number gives numbers up: some number up to it has no reply.
pub fn gives_up(stored: &Stored, mark: i64) -> bool {
    mark > stored.mark && stored.outcome.is_none_or(|reply| number(reply.of) < mark)
}
