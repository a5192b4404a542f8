//! What a call writes after it has looked, and what a commit makes of that.

use crate::domain::class::Class;
use crate::domain::decision::Decision;
use crate::domain::lease::{Completion, Lease};
use crate::kept::{Call, Change, Did, End, Execution, LeaseChange, Leased, Outcome, Stored, WINDOW, Which, number};
use crate::look::{self, Asked, completion, decided, expires_at};
use crate::setup::{Fault, Setup};
use crate::state::{Claim, State, TICK_US};

/// What a call came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// It has its answer and gives the lock back.
    Answered,
    /// It executes the request in this transaction.
    Executes(Execution),
    /// It has written all that it writes.
    Wrote(Change),
}

/// A change that changes nothing.
fn nothing(stored: &Stored, did: Did) -> Change {
    Change {
        did,
        outcome: None,
        clears: false,
        checkpoint: None,
        lease: LeaseChange::Keep,
        mark: stored.mark,
        early: false,
        unsaid: false,
    }
}

/// Looks and writes, under the lock. `claim` is what the worker was given.
pub fn look(setup: &Setup, state: &mut State, call: Call, asked_at: i64, claim: Option<Claim>) -> Looked {
    match call {
        Call::Begin { of, lease, ack } => {
            let ack = if ack { number(of) - i64::from(WINDOW) } else { 0 };
            begin(setup, state, Asked { of, settle: false, ack, asked_at }, lease)
        }
        Call::Settle { of } => begin(setup, state, Asked { of, settle: true, ack: 0, asked_at }, false),
        Call::Ack { upto } => acknowledge(setup, state, upto),
        Call::Sweep => sweep(setup, state),
        Call::Record | Call::Extend | Call::Checkpoint | Call::Release => match claim {
            Some(claim) if completion(setup, &state.stored, claim, asked_at) == Completion::Proceed => {
                Looked::Wrote(by_token(setup, state, call, claim))
            }
            _ => Looked::Answered,
        },
    }
}

fn begin(setup: &Setup, state: &mut State, asked: Asked, with_lease: bool) -> Looked {
    let (stored, of, now_us) = (state.stored, asked.of, state.clock.now_us(setup));
    let decision = decided(setup, &stored, asked, now_us);
    let (taken_over, gives_up) = match decision {
        Decision::Execute { taken_over, .. } => (taken_over, false),
        Decision::GiveUp => (false, true),
        _ => return Looked::Answered,
    };
    let own = stored.lease_of(of);
    let expired = own.is_some_and(|lease| expires_at(setup, lease.until) <= asked.asked_at);
    let change = Change {
        early: stored.lease.is_some_and(|leased| leased.lease.runs_at(now_us)),
        unsaid: state.history.open_effect[usize::from(of)] && !taken_over && !expired,
        ..nothing(&stored, Did::Own(of, End::Release))
    };
    if asked.settle || gives_up {
        let (did, class) = match gives_up {
            false => (Did::Settle(of), Class::Cancelled),
            true => (Did::GiveUp(of), Class::Failed),
        };
        return Looked::Wrote(Change { did, unsaid: false, ..recorded(setup, change, of, class, None, now_us) });
    }
    let former = own.filter(|_| taken_over);
    let lease_us = with_lease.then_some(setup.lease_ticks * TICK_US);
    let lease = match (former, lease_us) {
        (None, None) => None,
        (former, lease_us) => {
            let made_at = state.lease_time(setup);
            Some(new_lease(setup, former, made_at, now_us, lease_us))
        }
    };
    match lease.filter(|_| with_lease) {
        Some(lease) => {
            // A mark that gives nothing up is only stored with the outcome.
            let mark = if look::gives_up(&stored, asked.ack) { asked.ack } else { stored.mark };
            let put = LeaseChange::Put(Leased { of, lease });
            Looked::Wrote(Change { did: Did::Lease(of, lease.token), lease: put, mark, ..change })
        }
        None => {
            let put = lease.map_or(LeaseChange::Keep, |lease| LeaseChange::Put(Leased { of, lease }));
            Looked::Executes(Execution { of, ack: asked.ack, begun: Change { lease: put, ..change } })
        }
    }
}

fn new_lease(setup: &Setup, former: Option<Lease>, made_at: i64, now_us: i64, lease_us: Option<i64>) -> Lease {
    let made = match former {
        Some(former) => former.superseded(made_at, lease_us).expect("the times of the model are small"),
        None => Lease::first(made_at, lease_us.unwrap_or(0)),
    };
    if setup.errs(Fault::TokenCounted) {
        let until = now_us + lease_us.unwrap_or(0);
        return Lease { token: made_at, begun_at: now_us, until, ..made };
    }
    made
}

/// The change with a record in it: the outcome comes, and lease and checkpoint go.
fn recorded(setup: &Setup, change: Change, of: Which, class: Class, token: Option<i64>, now_us: i64) -> Change {
    let outcome = Outcome { of, class: class.letter(), token, expires_at: expires_at(setup, now_us) };
    Change { outcome: Some(outcome), checkpoint: Some((of, None)), lease: LeaseChange::Delete, ..change }
}

/// What a transaction writes at the end of executing a request.
pub fn finish(setup: &Setup, state: &State, execution: Execution, end: End) -> Change {
    let (stored, Execution { of, ack, begun }) = (state.stored, execution);
    let (now_us, begun) = (state.clock.now_us(setup), Change { did: Did::Own(of, end), ..begun });
    match end {
        End::Record => {
            let mark = stored.mark.max(ack);
            recorded(setup, Change { mark, ..begun }, of, Class::Succeeded, None, now_us)
        }
        // The lease that was found has been superseded, and the steps of its holder are done.
        End::Checkpoint => {
            let mark = if look::gives_up(&stored, ack) { ack } else { stored.mark };
            let kept = match stored.lease {
                Some(leased) if leased.of != of => setup.errs(Fault::LeaseKeptByAck),
                _ => setup.errs(Fault::LeaseKeptByCheckpoint),
            };
            let lease = if kept { begun.lease } else { LeaseChange::Delete };
            Change { checkpoint: Some((of, Some(expires_at(setup, now_us)))), lease, mark, ..begun }
        }
        End::Release => begun,
    }
}

fn by_token(setup: &Setup, state: &State, call: Call, claim: Claim) -> Change {
    let (of, now_us) = (claim.of, state.clock.now_us(setup));
    let change = nothing(&state.stored, Did::ByToken(of, call));
    match call {
        Call::Extend => {
            let extended = state.stored.lease_of(of).map(|lease| lease.extended(now_us, setup.lease_ticks * TICK_US));
            let put = extended.map_or(LeaseChange::Keep, |lease| LeaseChange::Put(Leased { of, lease }));
            Change { lease: put, ..change }
        }
        Call::Checkpoint => Change { checkpoint: Some((of, Some(expires_at(setup, now_us)))), ..change },
        Call::Release => Change { lease: LeaseChange::Delete, ..change },
        _ => {
            let change = recorded(setup, change, of, Class::Succeeded, Some(claim.token), now_us);
            if setup.errs(Fault::LeaseKeptByRecord) { Change { lease: LeaseChange::Keep, ..change } } else { change }
        }
    }
}

/// Acknowledges. A number is only given up if its lease has run out.
fn acknowledge(setup: &Setup, state: &State, upto: Which) -> Looked {
    let (stored, mark, now_us) = (state.stored, number(upto), state.clock.now_us(setup));
    if mark <= stored.mark {
        return Looked::Answered;
    }
    let change = Change { mark, ..nothing(&stored, Did::Ack(upto)) };
    match stored.lease.filter(|leased| leased.of <= upto) {
        Some(leased) if leased.lease.runs_at(now_us) => Looked::Answered,
        Some(_) if !setup.errs(Fault::LeaseKeptByAck) => Looked::Wrote(Change { lease: LeaseChange::Delete, ..change }),
        _ => Looked::Wrote(change),
    }
}

/// Deletes the lease if it ran out long ago, and the outcome if it expired long ago.
fn sweep(setup: &Setup, state: &State) -> Looked {
    let (stored, now_us) = (state.stored, state.clock.now_us(setup));
    let since_us = now_us - setup.wait_ticks * TICK_US;
    let dead = stored.lease.is_some_and(|leased| expires_at(setup, leased.lease.until) <= now_us);
    let clears = stored.outcome.is_some_and(|outcome| outcome.expires_at <= since_us);
    if !dead && !clears {
        return Looked::Answered;
    }
    let lease = if dead { LeaseChange::Delete } else { LeaseChange::Keep };
    Looked::Wrote(Change { clears, lease, ..nothing(&stored, Did::Sweep) })
}

/// Makes a change visible.
pub fn commit(stored: &mut Stored, change: &Change) {
    if change.clears {
        stored.outcome = None;
    }
    if let Some(outcome) = change.outcome {
        stored.outcome = Some(outcome);
    }
    match change.lease {
        LeaseChange::Keep => {}
        LeaseChange::Put(leased) => stored.lease = Some(leased),
        LeaseChange::Delete => stored.lease = None,
    }
    if let Some((of, expires_at)) = change.checkpoint {
        stored.checkpoints[usize::from(of)] = expires_at;
    }
    stored.mark = stored.mark.max(change.mark);
}
