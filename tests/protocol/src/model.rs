//! The steps of the model, for the checker.

use crate::kept::{Call, Change, Did, End, Which};
use crate::promises;
use crate::setup::{Fault, Form, Setup};
use crate::state::{At, Claim, State, TICK_US};
use crate::write::{self, Looked, finish, look};
use stateright::{Model, Property};

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The clock goes on.
    Tick,
    /// The server crashes and starts again.
    Crash {
        /// Whether its clock was set back meanwhile.
        set_back: bool,
    },
    /// A worker dies, and another one comes in its place.
    Die(usize),
    /// A worker calls, and gets the lock. It has waited for so many ticks.
    Lock(usize, Call, i64),
    /// A worker decides to settle without the lock.
    LookFirst(usize, Which),
    /// A worker gets the lock after it has decided.
    LockLate(usize),
    /// A worker that has the lock looks and writes.
    Look(usize),
    /// A worker ends the execution of a request in its transaction.
    Finish(usize, End),
    /// A worker commits.
    Commit(usize),
    /// A worker rolls back.
    Rollback(usize),
}

/// The calls that a worker may make.
fn calls(setup: &Setup, claim: Option<Claim>) -> Vec<Call> {
    let mut calls = Vec::new();
    for of in 0..setup.requests() as Which {
        for lease in [true, false] {
            calls.push(Call::Begin { of, lease, ack: false });
            if of > 0 {
                calls.push(Call::Begin { of, lease, ack: true });
            }
        }
        if !setup.errs(Fault::SettledWithoutLook) {
            calls.push(Call::Settle { of });
        }
        if setup.form == Form::Slot {
            calls.push(Call::Ack { upto: of });
        }
    }
    if claim.is_some() {
        calls.extend([Call::Record, Call::Extend, Call::Checkpoint]);
        calls.extend((!setup.same_moment).then_some(Call::Release));
    }
    calls.extend(setup.ttl_ticks.map(|_| Call::Sweep));
    calls
}

/// Whether a call may be made at all: leases are made only up to the bound.
fn allows(setup: &Setup, state: &State, call: Call) -> bool {
    !matches!(call, Call::Begin { .. }) || state.clock.leases < setup.leases
}

fn steps_of(setup: &Setup, state: &State, by: usize, steps: &mut Vec<Step>) {
    let worker = state.workers[by];
    match worker.at {
        At::Idle => {
            if state.lock_is_free() {
                for call in calls(setup, worker.claim) {
                    if allows(setup, state, call) {
                        steps.extend((0..=setup.wait_ticks).map(|ticks| Step::Lock(by, call, ticks)));
                    }
                }
            }
            if setup.errs(Fault::SettledWithoutLook) {
                steps.extend((0..setup.requests()).map(|of| Step::LookFirst(by, of as Which)));
            }
        }
        At::Locked(..) => steps.push(Step::Look(by)),
        At::Executing(_) => {
            steps.extend([Step::Finish(by, End::Record), Step::Finish(by, End::Release), Step::Rollback(by)]);
            steps.extend((!setup.same_moment).then_some(Step::Finish(by, End::Checkpoint)));
        }
        At::Written(_) => steps.extend([Step::Commit(by), Step::Rollback(by)]),
        At::Unlocked(_) if state.lock_is_free() => steps.push(Step::LockLate(by)),
        At::Unlocked(_) => {}
    }
    if state.crashes > 0 && (worker.at != At::Idle || worker.claim.is_some()) {
        steps.push(Step::Die(by));
    }
}

fn crash(setup: &Setup, state: &mut State, set_back: bool) {
    state.crashes -= 1;
    for worker in &mut state.workers {
        // The worker does not know that its begin never committed, so it goes on with the token.
        if let At::Written(Change { did: Did::Lease(of, token), .. }) = worker.at
            && !setup.same_moment
        {
            worker.claim = Some(Claim { of, token, stale: true });
        }
        worker.at = At::Idle;
    }
    if set_back {
        state.clock.tick -= 1;
    }
    if setup.errs(Fault::TokenCounted) {
        state.clock.leases = 0;
    }
    if !setup.logged {
        state.stored.lease = None;
        state.history.note_loss();
        for claim in state.workers.iter_mut().filter_map(|worker| worker.claim.as_mut()) {
            claim.stale = true;
        }
    } else if setup.errs(Fault::LeaseLost) {
        state.stored.lease = None;
    }
}

fn commit(setup: &Setup, state: &mut State, by: usize, change: &Change) {
    let before = state.stored;
    write::commit(&mut state.stored, change);
    let stale = state.workers[by].claim.is_none_or(|claim| claim.stale);
    state.history.note_commit(&before, change, stale, state.clock.now_us(setup));
    state.make_stale(by, change);
    if let Did::Lease(of, token) = change.did {
        state.workers[by].claim = Some(Claim { of, token, stale: false });
    }
    state.workers[by].at = At::Idle;
}

impl Model for Setup {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        // What follows from a broken promise is of no interest.
        if promises::is_broken(self, state) {
            return;
        }
        for by in 0..self.workers {
            steps_of(self, state, by, steps);
        }
        if state.clock.tick < self.ticks {
            steps.push(Step::Tick);
        }
        if state.crashes > 0 {
            steps.push(Step::Crash { set_back: false });
            if self.set_back && state.clock.tick > 0 {
                steps.push(Step::Crash { set_back: true });
            }
        }
    }

    fn next_state(&self, former: &State, step: Step) -> Option<State> {
        let mut state = former.clone();
        match step {
            Step::Tick => state.clock.tick += 1,
            Step::Crash { set_back } => crash(self, &mut state, set_back),
            Step::Die(by) => {
                state.crashes -= 1;
                state.workers[by].claim = None;
                state.workers[by].at = At::Idle;
            }
            Step::Lock(by, call, ticks) => {
                // Where nothing expires it does not matter when the call came, so these states are the same.
                let asked_at = self.ttl_ticks.map_or(0, |_| state.clock.now_us(self) - ticks * TICK_US);
                state.workers[by].at = At::Locked(call, asked_at);
            }
            Step::LookFirst(by, of) => {
                let now_us = state.clock.now_us(self);
                match look(self, &mut state, Call::Settle { of }, now_us, None) {
                    Looked::Wrote(change) => state.workers[by].at = At::Unlocked(change),
                    _ => return None,
                }
            }
            Step::LockLate(by) => {
                let At::Unlocked(change) = state.workers[by].at else { return None };
                state.workers[by].at = At::Written(change);
            }
            Step::Look(by) => {
                let At::Locked(call, asked_at) = state.workers[by].at else { return None };
                let claim = state.workers[by].claim;
                state.workers[by].at = match look(self, &mut state, call, asked_at, claim) {
                    Looked::Answered => At::Idle,
                    Looked::Executes(execution) => At::Executing(execution),
                    Looked::Wrote(change) => At::Written(change),
                };
            }
            Step::Finish(by, end) => {
                let At::Executing(execution) = state.workers[by].at else { return None };
                state.workers[by].at = At::Written(finish(self, &state, execution, end));
            }
            Step::Commit(by) => {
                let At::Written(change) = state.workers[by].at else { return None };
                commit(self, &mut state, by, &change);
            }
            Step::Rollback(by) => state.workers[by].at = At::Idle,
        }
        state.sort_workers(self);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        promises::all(self)
    }
}
