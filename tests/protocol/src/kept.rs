//! What is kept under the lock, the calls that change it, and what they change.

use crate::domain::lease::Lease;

/// The window of the session whose slot is modelled. The two numbers of the slot are 1 and 1 more than the window.
pub const WINDOW: i32 = 4;

/// One of the requests that share the lock: 0, or 1 for the greater number of a slot.
pub type Which = u8;

/// The number of a request in a slot.
pub fn number(which: Which) -> i64 {
    1 + i64::from(which) * i64::from(WINDOW)
}

/// An outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outcome {
    /// Of which request.
    pub of: Which,
    /// How the request ended.
    pub class: u8,
    /// The token that it was recorded with.
    pub token: Option<i64>,
    /// Until when it lives.
    pub expires_at: i64,
}

/// A lease in its table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leased {
    /// Of which request.
    pub of: Which,
    /// The lease itself.
    pub lease: Lease,
}

/// What is committed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stored {
    /// The outcome; of a slot, the reply.
    pub outcome: Option<Outcome>,
    /// The lease. There is one at most under a lock.
    pub lease: Option<Leased>,
    /// Until when the checkpoint of each request counts.
    pub checkpoints: [Option<i64>; 2],
    /// The stored mark of the stream.
    pub mark: i64,
}

impl Stored {
    /// The lease of a request, run out or not.
    pub fn lease_of(&self, which: Which) -> Option<Lease> {
        self.lease.filter(|leased| leased.of == which).map(|leased| leased.lease)
    }
}

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// `idem_begin`
    Begin {
        /// Which request.
        of: Which,
        /// Whether with a lease.
        lease: bool,
        /// Whether it acknowledges the number before.
        ack: bool,
    },
    /// `idem_record` with the worker's token.
    Record,
    /// `idem_extend` with the worker's token.
    Extend,
    /// `idem_checkpoint` with the worker's token.
    Checkpoint,
    /// `idem_release` with the worker's token.
    Release,
    /// `idem_settle`
    Settle {
        /// Which request.
        of: Which,
    },
    /// `idem_ack`
    Ack {
        /// Up to which request.
        upto: Which,
    },
    /// The sweep. It is no worker's call, but it needs the lock as calls do, so that any worker can stand for it.
    Sweep,
}

/// What a call does to the lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeaseChange {
    /// Nothing.
    Keep,
    /// It writes this one, over the one that is there.
    Put(Leased),
    /// It deletes the one that is there.
    Delete,
}

/// What was written and is not committed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Change {
    /// What the transaction did.
    pub did: Did,
    /// The outcome that it inserted.
    pub outcome: Option<Outcome>,
    /// Whether it deletes an expired outcome.
    pub clears: bool,
    /// The request whose checkpoint it wrote or deleted, and until when the new one counts.
    pub checkpoint: Option<(Which, Option<i64>)>,
    /// What it did to the lease.
    pub lease: LeaseChange,
    /// The mark that it stores.
    pub mark: i64,
    /// Whether it takes from somebody a lease that has not run out.
    pub early: bool,
    /// Whether its begin did not say that an effect may have happened, though it may.
    pub unsaid: bool,
}

/// What a transaction did, for the history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Did {
    /// It began a request with a lease of this token.
    Lease(Which, i64),
    /// It ended like this under a claim of its own.
    Own(Which, End),
    /// It completed something with a token.
    ByToken(Which, Call),
    /// It settled a request.
    Settle(Which),
    /// It recorded that a request had too many attempts.
    GiveUp(Which),
    /// It acknowledged up to a request.
    Ack(Which),
    /// It swept.
    Sweep,
}

/// How a transaction ends that executes a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// It records.
    Record,
    /// It writes a checkpoint.
    Checkpoint,
    /// It releases the request. What it wrote before is committed.
    Release,
}

/// A request that is executed in the transaction that began it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Execution {
    /// Which request.
    pub of: Which,
    /// The mark that came with the call.
    pub ack: i64,
    /// What begin did.
    pub begun: Change,
}
