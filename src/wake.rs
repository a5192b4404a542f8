//! Waking those who wait for a lease.
//!
//! A lease outlasts its transaction, so no lock tells when it ends. Whoever waits for one sleeps on a condition
//! variable in shared memory, and the commit that ends the lease wakes all who sleep there. Each lock of a request has
//! one of a fixed number of variables, so a sleeper may be woken for another lease; it looks again and goes on
//! sleeping. Where the library is not preloaded there is no shared memory, and the sleeper looks ten times a second.
//!
//! A sleeper also looks now and then without having been woken: COMMIT PREPARED wakes nobody.

use crate::domain::identity::Digest;
use crate::pg::{self, Conditions, Own, Patience, Prepared, Shared};

/// The number of condition variables.
const CONDITIONS: usize = 1024;

static SLEEPERS: Shared<Conditions<CONDITIONS>> = Shared::new();

/// The most looks of a sleeper in a second.
const LOOKS: u32 = 10;

const SECOND_US: i64 = 1_000_000;

/// Reserves the shared memory. Called while the postmaster preloads the library.
pub fn init() {
    SLEEPERS.want(c"idempotence leases", || SLEEPERS.get().into_iter().for_each(Conditions::make_ready));
}

/// The locks whose leases this transaction has ended.
static ENDED: Own<Vec<Digest>> = Own::new();

fn number(lock: &Digest) -> usize {
    (lock.lock_id() % CONDITIONS as u64) as usize
}

/// Has the commit of this transaction wake those who wait for the lease under this lock.
pub fn at_commit(lock: &Digest) {
    ENDED.with(|ended| ended.push(*lock));
}

/// The end of the transaction: wakes them if it has committed.
pub fn end_transaction(committed: bool) {
    // The list gives its memory back, which may be that of the arena.
    for lock in ENDED.take().iter().filter(|_| committed) {
        SLEEPERS.get().into_iter().for_each(|sleepers| sleepers.wake(number(lock)));
    }
}

/// Somebody who waits for a lease.
pub struct Sleeper {
    patience: Patience,
    prepared: Option<Prepared>,
    /// The second that looks are counted in, and how many there were.
    second: (i64, u32),
}

impl Sleeper {
    /// Prepares to sleep, at most for `wait_us`. The caller then looks at the lease again: the wake may have come
    /// before.
    pub fn of(lock: &Digest, wait_us: Option<i64>) -> Sleeper {
        let prepared = SLEEPERS.get().map(|sleepers| sleepers.prepare(number(lock)));
        Sleeper { patience: Patience::of(wait_us), prepared, second: (pg::now_us(), 0) }
    }

    /// Sleeps until it is time to look again, at the latest until this moment, as when the lease runs out. False: the wait
    /// is over. If the user's own `lock_timeout` is shorter, its end is an error.
    pub fn sleep(&mut self, until: i64) -> bool {
        let Some(left_us) = self.patience.left_us() else { return false };
        let now_us = pg::now_us();
        let left_us = left_us.min(until.saturating_sub(now_us)).max(0);
        if now_us.abs_diff(self.second.0) >= SECOND_US.unsigned_abs() {
            self.second = (now_us, 0);
        }
        self.second.1 += 1;
        match &self.prepared {
            Some(prepared) if self.second.1 < LOOKS => prepared.sleep(left_us.min(SECOND_US)),
            Some(_) => pg::nap(left_us.min(self.second.0 + SECOND_US - now_us)),
            None => pg::nap(left_us.min(SECOND_US / i64::from(LOOKS))),
        }
        true
    }
}
