//! An entry of the open list: a request that this transaction has begun.

use crate::domain::decision::Fingerprint;
use crate::domain::identity::Digest;
use crate::domain::sequence::Range;
use crate::error::RequestName;
use crate::model::Session;

/// RequestKey request is meant.
#[derive(Clone, Copy)]
pub struct RequestKey<'a> {
    /// Its session's name.
    pub session: &'a str,
    /// Its stream; empty in a standing session.
    pub stream: &'a str,
    /// Its key, or its number, in canonical form.
    pub request: &'a str,
}

impl RequestKey<'_> {
    /// For messages.
    pub fn name(&self) -> RequestName {
        RequestName::in_stream(self.session, self.stream, self.request)
    }
}

/// What the steps after begin need to know of an open request.
#[derive(Clone, Copy)]
pub struct Open {
    /// What is locked for it.
    pub lock: Digest,
    /// Where a keyed one's outcome and anyone's checkpoint is kept.
    pub digest: Digest,
    /// What a numbered one is recorded with.
    pub numbers: Option<Numbers>,
    /// Of the payload it was begun with, or of an earlier attempt's.
    pub fingerprint: Option<Fingerprint>,
    /// An expired outcome or a checkpoint is there, key the record clears away.
    pub leftovers: bool,
}

/// See [`Open`].
#[derive(Clone, Copy)]
pub struct Numbers {
    /// All of them.
    pub range: Range,
    /// Where its reply goes.
    pub slot: i32,
    /// Up to where its client said with it that it has all answers.
    pub acked: i64,
}

/// What becomes of an open request.
#[derive(Clone, Copy)]
pub enum Finish {
    /// It has its outcome.
    Record,
    /// It got so far.
    Checkpoint,
    /// It was given up.
    Release,
}

/// A request of this transaction.
pub struct Entry {
    pub session: Session,
    pub stream: String,
    pub request: String,
    pub is: Open,
    pub checkpointed: bool,
    pub became: Became,
}

/// What became of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Became {
    Open,
    Recorded,
    Released,
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
        self.became == Became::Open
    }

    pub fn name(&self) -> RequestName {
        self.key().name()
    }
}

#[cfg(test)]
thread_local! {
    static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts how often an entry is looked at.
#[cfg(test)]
pub fn count_work() {
    WORK.set(WORK.get() + 1);
}

/// How often entries were looked at in this thread.
#[cfg(test)]
pub fn work() -> usize {
    WORK.get()
}
