//! A state of the model: the clock, what is committed, and where each worker is.

use crate::history::History;
use crate::kept::{Call, Change, Did, End, Execution, LeaseChange, Stored, Which};
use crate::setup::{Fault, Setup};

/// The number of workers that a state has room for.
pub const WORKERS: usize = 3;

/// How many microseconds a tick has.
pub const TICK_US: i64 = 100;

/// The database's clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clock {
    /// Whole ticks.
    pub tick: i64,
    /// How many leases were made. So many microseconds are added to the ticks, so that no two leases have the same
    /// time.
    pub leases: i64,
}

impl Clock {
    /// What the clock shows.
    pub fn now_us(self, setup: &Setup) -> i64 {
        self.tick * TICK_US + if setup.same_moment { 0 } else { self.leases }
    }
}

/// Where a worker is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum At {
    /// In no transaction.
    Idle,
    /// It has the lock. The call came at this moment, before it waited for the lock.
    Locked(Call, i64),
    /// It has the lock and executes a request in this transaction.
    Executing(Execution),
    /// It has the lock and is about to commit.
    Written(Change),
    /// It has decided without the lock, by [`Fault::SettledWithoutLook`].
    Unlocked(Change),
}

/// A token that a worker keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Claim {
    /// Of which request.
    pub of: Which,
    /// The token.
    pub token: i64,
    /// Whether the worker has no right to it any more: it was superseded, completed, given back, swept or lost. Nobody
    /// tells the worker.
    pub stale: bool,
}

/// A worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Worker {
    /// What it was given last.
    pub claim: Option<Claim>,
    /// Where it is.
    pub at: At,
}

/// A state of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The clock.
    pub clock: Clock,
    /// What is committed.
    pub stored: Stored,
    /// The workers.
    pub workers: [Worker; WORKERS],
    /// How many crashes and deaths are left.
    pub crashes: u8,
    /// What has happened so far, as far as a promise needs it.
    pub history: History,
}

impl State {
    /// The first state: nothing is kept and nobody is at work.
    pub fn first(setup: &Setup) -> State {
        State {
            clock: Clock { tick: 1, leases: 0 },
            stored: Stored::default(),
            workers: [Worker { claim: None, at: At::Idle }; WORKERS],
            crashes: setup.crashes,
            history: History::default(),
        }
    }

    /// Whether nobody has the lock.
    pub fn lock_is_free(&self) -> bool {
        self.workers.iter().all(|worker| matches!(worker.at, At::Idle | At::Unlocked(_)))
    }

    /// Counts a lease that is made. Gives the time for it.
    pub fn lease_time(&mut self, setup: &Setup) -> i64 {
        self.clock.leases += 1;
        if setup.errs(Fault::TokenCounted) { self.clock.leases } else { self.clock.now_us(setup) }
    }

    /// Puts the workers in order. They are alike, so states that differ only in their order are the same.
    pub fn sort_workers(&mut self, setup: &Setup) {
        self.workers[..setup.workers].sort_by_key(|worker| (worker.at != At::Idle, worker.claim));
    }

    /// Takes away the right to a claim from those who lose it by this commit of the worker `by`.
    pub fn make_stale(&mut self, by: usize, change: &Change) {
        let loses = |at: usize, of: Which| match change.did {
            Did::Lease(..) => at != by,
            Did::Own(_, End::Release) => change.lease != LeaseChange::Keep,
            Did::ByToken(_, Call::Extend | Call::Checkpoint) => false,
            Did::ByToken(_, Call::Release) => at == by,
            Did::Own(..) | Did::ByToken(..) | Did::Settle(_) | Did::GiveUp(_) => true,
            Did::Ack(upto) => of <= upto,
            Did::Sweep => change.lease == LeaseChange::Delete,
        };
        for (at, worker) in self.workers.iter_mut().enumerate() {
            if let Some(claim) = &mut worker.claim {
                claim.stale |= loses(at, claim.of);
            }
        }
    }
}
