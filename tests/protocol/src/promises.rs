//! What is promised, and what must be seen to happen lest the promises be kept by doing nothing.

use crate::domain::class::Class;
use crate::domain::decision::Decision;
use crate::domain::lease::{Completion, Lease};
use crate::kept::{Call, Change, Did, number};
use crate::look::{Asked, completion, decided};
use crate::setup::{Form, Setup};
use crate::state::{At, State, TICK_US};
use stateright::Property;

/// An outcome that anybody could see stays as it is while it lives.
pub const I1: &str = "I1: there is one outcome, and it does not change";
/// Of the transactions that record a request one commits.
pub const I2: &str = "I2: a request is recorded once";
/// A claim that was superseded, completed, given back, swept or lost does nothing any more.
pub const I11: &str = "I11: a claim that was superseded completes nothing";
/// Cancelled or done, and never both.
pub const I12: &str = "I12: what was cancelled is not done, and what was done is not cancelled";
/// A number that was given up is not recorded.
pub const I13: &str = "I13: what was given up is not recorded";
/// Nobody loses a lease before it runs out.
pub const TO_ITS_END: &str = "a lease is superseded only after its end";
/// A lease stays in its table until it is superseded, completed, given back or swept.
pub const KEPT: &str = "a claim that was not superseded has its lease";
/// A begin that executes says `taken_over` if the effect of a former holder may have happened.
pub const SAID: &str = "whoever takes over is told so";

type Condition = fn(&Setup, &State) -> bool;

/// The promises.
const PROMISES: [(&str, Condition); 8] = [
    (I1, |setup, state| !state.history.broken.outcome_changed && outcomes_stand(setup, state)),
    (I2, |_, state| !state.history.broken.recorded_twice),
    (I11, |_, state| !state.history.broken.stale_completed),
    (I12, |_, state| !state.history.broken.cancelled_and_done),
    (I13, |_, state| !state.history.broken.given_up_recorded),
    (TO_ITS_END, |_, state| !state.history.broken.early),
    (KEPT, |_, state| claims_have_leases(state)),
    (SAID, |_, state| !state.history.broken.unsaid),
];

/// What must happen in every search.
const HAPPENS: [(&str, Condition); 8] = [
    ("a lease is taken over", |_, state| {
        committed(state).is_some_and(|lease| lease.attempt > 1 && lease.until > lease.begun_at)
    }),
    ("a transaction supersedes a lease and releases the request", |_, state| {
        committed(state).is_some_and(|lease| lease.attempt > 1 && lease.until == lease.begun_at)
    }),
    ("a lease that ran out is recorded late", |setup, state| {
        let late = committed(state).is_some_and(|lease| !lease.runs_at(state.clock.now_us(setup)));
        late && written(state).is_some_and(|change| matches!(change.did, Did::ByToken(_, Call::Record)))
    }),
    ("a lease is extended", |setup, state| {
        let longest = setup.lease_ticks * TICK_US;
        committed(state).is_some_and(|lease| lease.until > lease.begun_at + longest)
    }),
    ("a request is settled as cancelled", |_, state| {
        state.stored.outcome.is_some_and(|outcome| outcome.class == Class::Cancelled.letter())
    }),
    ("a record is refused", |setup, state| recording(setup, state) == Some(Completion::Superseded)),
    ("a record is repeated", |setup, state| recording(setup, state) == Some(Completion::Repeat)),
    ("a begin finds a lease that has not run out", |setup, state| beginning(setup, state) == Some(Decision::Leased)),
];

/// What must happen besides in a slot.
const HAPPENS_IN_SLOT: [(&str, Condition); 3] = [
    ("a number is recorded after the one before it was given up with a lease", |_, state| {
        let given_up = state.workers.iter().any(|worker| worker.claim.is_some_and(|claim| claim.of == 0));
        given_up && state.history.seen[0].is_none() && state.stored.outcome.is_some_and(|outcome| outcome.of == 1)
    }),
    ("a number waits for the lease of another", |setup, state| {
        let other = state.stored.lease.is_some_and(|leased| leased.of == 0);
        other && beginning_of(setup, state) == Some((1, Decision::Leased))
    }),
    ("a number that was given up is refused", |setup, state| {
        state.stored.mark == number(0) && beginning_of(setup, state) == Some((0, Decision::Discarded))
    }),
];

/// What must happen besides where something expires.
const HAPPENS_IN_TIME: [(&str, Condition); 2] = [
    ("the sweep deletes a lease", |_, state| {
        state.stored.lease.is_some() && written(state).is_some_and(|change| change.did == Did::Sweep)
    }),
    ("a request is begun anew after its outcome expired", |_, state| {
        state.history.seen[0].is_some() && committed(state).is_some()
    }),
];

/// What must happen besides where attempts are limited.
const HAPPENS_AT_LAST: [(&str, Condition); 1] = [("a request has too many attempts", |_, state| {
    state.stored.outcome.is_some_and(|outcome| outcome.class == Class::Failed.letter())
})];

/// All that a search of this setup looks for.
pub fn all(setup: &Setup) -> Vec<Property<Setup>> {
    let always = PROMISES.into_iter().map(|(name, condition)| Property::always(name, condition));
    let mut all: Vec<_> = always.collect();
    let mut happens = |list: &[(&'static str, Condition)]| {
        all.extend(list.iter().map(|(name, condition)| Property::sometimes(name, *condition)));
    };
    happens(&HAPPENS);
    if setup.form == Form::Slot {
        happens(&HAPPENS_IN_SLOT);
    }
    if setup.ttl_ticks.is_some() {
        happens(&HAPPENS_IN_TIME);
    }
    if setup.max_attempts.is_some() {
        happens(&HAPPENS_AT_LAST);
    }
    all
}

/// Whether any promise is broken.
pub fn is_broken(setup: &Setup, state: &State) -> bool {
    PROMISES.iter().any(|(_, kept)| !kept(setup, state))
}

/// Whether each outcome that was seen and lives is still stored. The reply of a number gives way to that of the number
/// a window later.
fn outcomes_stand(setup: &Setup, state: &State) -> bool {
    let now_us = state.clock.now_us(setup);
    state
        .history
        .seen
        .iter()
        .flatten()
        .filter(|seen| seen.expires_at > now_us)
        .all(|seen| state.stored.outcome.is_some_and(|outcome| outcome == *seen || outcome.of > seen.of))
}

fn claims_have_leases(state: &State) -> bool {
    state
        .workers
        .iter()
        .filter_map(|worker| worker.claim)
        .filter(|claim| !claim.stale)
        .all(|claim| state.stored.lease_of(claim.of).is_some_and(|lease| lease.token == claim.token))
}

fn committed(state: &State) -> Option<Lease> {
    state.stored.lease.map(|leased| leased.lease)
}

fn written(state: &State) -> Option<Change> {
    state.workers.iter().find_map(|worker| match worker.at {
        At::Written(change) => Some(change),
        _ => None,
    })
}

/// What the record will be told that has the lock.
fn recording(setup: &Setup, state: &State) -> Option<Completion> {
    state.workers.iter().find_map(|worker| match (worker.at, worker.claim) {
        (At::Locked(Call::Record, _), Some(claim)) => {
            Some(completion(setup, &state.stored, claim, state.clock.now_us(setup)))
        }
        _ => None,
    })
}

/// What the begin will be told that has the lock, and which request it is of.
fn beginning_of(setup: &Setup, state: &State) -> Option<(u8, Decision)> {
    state.workers.iter().find_map(|worker| match worker.at {
        At::Locked(Call::Begin { of, ack, .. }, asked_at) => {
            let ack = if ack { number(0) } else { 0 };
            let asked = Asked { of, settle: false, ack, asked_at };
            Some((of, decided(setup, &state.stored, asked, state.clock.now_us(setup))))
        }
        _ => None,
    })
}

fn beginning(setup: &Setup, state: &State) -> Option<Decision> {
    beginning_of(setup, state).map(|(_, decision)| decision)
}
