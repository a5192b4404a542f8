//! An entry of the open list: a request that this transaction has begun.

use crate::domain::decision::Fingerprint;
use crate::domain::identity::Digest;
use crate::domain::sequence::Range;
use crate::error::RequestName;
use crate::model::Session;
use crate::monitor::in_flight::{Place, State};
use crate::store::tuple::Hint;

/// The names by which the list finds a request.
#[derive(Clone, Copy)]
pub struct RequestKey<'a> {
    /// Its session's name.
    pub session: &'a str,
    /// Its stream, or in a session with a journal its tenant; empty in any other standing session.
    pub stream: &'a str,
    /// Its key, or its first number, in canonical form.
    pub request: &'a str,
}

impl RequestKey<'_> {
    /// The request's name for messages.
    pub fn name(&self) -> RequestName {
        RequestName::in_stream(self.session, self.stream, self.request)
    }
}

/// What the steps after begin need to know of an open request.
#[derive(Clone, Copy)]
pub struct OpenRequest {
    /// The digest that is locked for it.
    pub lock: Digest,
    /// The digest under which its checkpoint is kept and, if it has a key, its outcome.
    pub digest: Digest,
    /// What a numbered request is recorded with.
    pub numbers: Option<Numbers>,
    /// The fingerprint of the payload that it was begun with; without a payload, that of its checkpoint.
    pub fingerprint: Option<Fingerprint>,
    /// What the record has to clear away.
    pub leftovers: Leftovers,
    /// The token that its outcome is recorded with, if it was begun with a lease.
    pub token: Option<i64>,
}

/// What may be kept of a request that is open, and has to make way for its outcome.
#[derive(Clone, Copy, Default)]
pub struct Leftovers {
    /// An outcome that has expired.
    pub outcome: bool,
    /// A checkpoint.
    pub checkpoint: bool,
    /// A lease.
    pub lease: bool,
}

/// What a numbered request is recorded with.
#[derive(Clone, Copy)]
pub struct Numbers {
    /// Its numbers.
    pub range: Range,
    /// The slot that its reply goes to.
    pub slot: i32,
    /// The mark that came with it; 0 if none came.
    pub acked: i64,
    /// Where the reply stood that its own reply is written over.
    pub former: Option<Hint>,
}

/// A request that this transaction has begun, open or not.
pub struct Entry {
    pub session: Session,
    pub stream: String,
    pub request: String,
    pub open: OpenRequest,
    pub state: State,
    /// Where those who watch see it.
    pub place: Place,
}

impl Entry {
    pub fn key(&self) -> RequestKey<'_> {
        RequestKey { session: self.session.name(), stream: &self.stream, request: &self.request }
    }

    pub fn is(&self, key: RequestKey<'_>) -> bool {
        #[cfg(test)]
        count_work();
        self.request == key.request && self.stream == key.stream && self.session.name() == key.session
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Begun | State::Saved)
    }

    pub fn name(&self) -> RequestName {
        self.key().name()
    }
}

#[cfg(test)]
thread_local! {
    static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one more look at an entry.
#[cfg(test)]
pub fn count_work() {
    WORK.set(WORK.get() + 1);
}

/// How often this thread has looked at entries.
#[cfg(test)]
pub fn work() -> usize {
    WORK.get()
}
