//! What a search goes through: which request, how many workers, crashes and moments, and which fault.

/// What the lock stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A request with a key.
    Key,
    /// A slot of a client session with the ordering `any`, which two numbers share: 1, and the number a window later.
    Slot,
}

/// A mistake that the steps make on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Any token completes the request if there is a lease.
    TokenUnchecked,
    /// A lease that has not run out is taken over.
    TakenOverEarly,
    /// The record leaves the lease where it is.
    LeaseKeptByRecord,
    /// Settling looks and decides before it takes the lock.
    SettledWithoutLook,
    /// A token is the number of leases made since the server started.
    TokenCounted,
    /// Giving a number up leaves its lease where it is.
    LeaseKeptByAck,
    /// A transaction that writes a checkpoint leaves an expired lease where it is.
    LeaseKeptByCheckpoint,
    /// A crash takes leases that are logged.
    LeaseLost,
}

/// The bounds and switches of a search.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What the lock stands for.
    pub form: Form,
    /// How many workers there are, at most [`crate::state::WORKERS`].
    pub workers: usize,
    /// How many times the server crashes or a worker dies.
    pub crashes: u8,
    /// How many ticks the clock makes.
    pub ticks: i64,
    /// How many leases are made.
    pub leases: i64,
    /// How many ticks a lease lasts.
    pub lease_ticks: i64,
    /// How many ticks an outcome lives, and a lease after it ran out. `None`: longer than the search.
    pub ttl_ticks: Option<i64>,
    /// For how many ticks a call may have waited before it gets the lock, and the sweep keeps expired outcomes.
    pub wait_ticks: i64,
    /// After how many attempts a request is given up.
    pub max_attempts: Option<i32>,
    /// Whether a crash leaves the leases in their table.
    pub logged: bool,
    /// Whether a crash may set the clock back by a tick.
    pub set_back: bool,
    /// Whether all that happens in a tick happens in the same microsecond. Then nobody releases a lease, or writes a
    /// checkpoint in a transaction without one, and the token of a begin that did not commit is forgotten: the row of
    /// the lease is gone then, so such a token may come again.
    pub same_moment: bool,
    /// What is done wrong on purpose.
    pub fault: Option<Fault>,
}

impl Setup {
    /// Three workers and two crashes, with leases that are logged.
    pub const KEY: Setup = Setup {
        form: Form::Key,
        workers: 3,
        crashes: 2,
        ticks: 3,
        leases: 4,
        lease_ticks: 1,
        ttl_ticks: None,
        wait_ticks: 0,
        max_attempts: None,
        logged: true,
        set_back: true,
        same_moment: false,
        fault: None,
    };

    /// The same for a slot, which has far more states.
    pub const SLOT: Setup = Setup { form: Form::Slot, leases: 3, ..Setup::KEY };

    /// A key whose outcomes, checkpoints and leases expire. A clock that was set back would bring what has expired back
    /// to life.
    pub const EXPIRING: Setup = Setup { ticks: 4, ttl_ticks: Some(1), wait_ticks: 1, set_back: false, ..Setup::KEY };

    /// This search with a fault in it.
    pub fn with(self, fault: Fault) -> Setup {
        Setup { fault: Some(fault), ..self }
    }

    /// Whether the steps make this mistake.
    pub fn errs(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// How many requests share the lock.
    pub fn requests(&self) -> usize {
        match self.form {
            Form::Key => 1,
            Form::Slot => 2,
        }
    }
}
