//! The request that the tables of outcomes and checkpoints are asked for.

use crate::domain::identity::{Digest, SessionId};

/// A request as the tables name it.
pub struct Probe<'a> {
    /// Its session's id.
    pub session: &'a SessionId,
    /// The session's name, for messages.
    pub session_name: &'a str,
    /// Its stream; empty in a standing session.
    pub stream: &'a str,
    /// Its key, or its number in decimal.
    pub key: &'a str,
    /// The digest that it is kept under.
    pub digest: Digest,
}
