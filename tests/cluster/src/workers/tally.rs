//! What the workers met with.

use std::sync::atomic::AtomicUsize;

use anyhow::Result;

use crate::load::check_happened;

/// How often the workers met each kind of event.
#[derive(Debug, Default)]
pub struct Tally {
    /// A worker took a request over whose lease had run out.
    pub taken_over: AtomicUsize,
    /// A claim was refused as superseded.
    pub fenced: AtomicUsize,
    /// A worker dropped its connection while it had a claim.
    pub killed: AtomicUsize,
    /// A worker did nothing for about as long as its lease, and then went on.
    pub stopped: AtomicUsize,
    /// Another worker was at work.
    pub in_progress: AtomicUsize,
    /// There was no server, or it ended the connection.
    pub disconnected: AtomicUsize,
    /// The connection was lost during a COMMIT.
    pub in_doubt: AtomicUsize,
    /// SQLSTATE 40001.
    pub unserializable: AtomicUsize,
}

impl Tally {
    /// Checks that all that a test is about has happened. Whether a crash met a COMMIT is left to chance.
    pub fn check(&self) -> Result<()> {
        println!("{self:?}");
        check_happened(&[
            ("take-over", &self.taken_over),
            ("fenced claim", &self.fenced),
            ("killed worker", &self.killed),
            ("stopped worker", &self.stopped),
            ("wait for another worker", &self.in_progress),
            ("lost connection", &self.disconnected),
        ])
    }
}
