//! What a transaction of the model has done so far: a log that a rollback cuts off.

use super::stream::Range;

/// A lock. Two transactions exclude each other, unless the lock is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lock {
    /// The slot of a number, or the whole stream if the order is strict: session, stream and slot.
    Lane(usize, usize, i64),
    /// The use of a session. This lock is shared.
    Session(usize),
    /// What makes a session durable.
    Save(usize),
    /// What is stored of a stream: session and stream.
    Mark(usize, usize),
}

/// A request that a transaction began.
#[derive(Clone, Debug)]
pub struct Begun {
    pub session: usize,
    pub stream: usize,
    pub range: Range,
    pub payload: Option<i64>,
    /// The number up to which the client has acknowledged its answers with the begin.
    pub said: i64,
}

/// What a transaction did. The first number of a recorded, released or checkpointed request is the place in
/// the log at which it was begun.
#[derive(Clone, Debug)]
pub enum Event {
    Locked(Lock),
    Begun(Begun),
    Recorded(usize, String),
    Released(usize),
    Checkpointed(usize, String),
    Acked(usize, usize, i64),
    Allocated(usize, usize, i64),
    Noted(usize, usize),
    Dropped(usize, usize, Range),
    Saved(usize),
}

/// A connection, with what its open transaction has done.
#[derive(Default)]
pub struct Connection {
    pub log: Vec<Event>,
    pub in_transaction: bool,
    /// The length of the log at each savepoint.
    pub savepoints: Vec<usize>,
}
