//! Which request a look into the tables of outcomes and checkpoints is for.

use crate::domain::identity::{Digest, SessionId};

/// A request, as the tables know it.
pub struct Probe<'a> {
    /// Its session's id.
    pub session: &'a SessionId,
    /// The session's name, for messages.
    pub session_name: &'a str,
    /// Its stream; empty in a standing session.
    pub stream: &'a str,
    /// Its key or number.
    pub key: &'a str,
    /// Where it is kept.
    pub digest: Digest,
}
