//! Sessions as plain data: what the tables keep about them, and what the steps of a call pass on.

use crate::domain::identity::SessionId;
use crate::domain::sequence::Order;
use crate::error::Error;
use crate::guc;
use pgrx::pg_sys;
use std::rc::Rc;

/// A standing session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StandingSession {
    /// The id, which stays the same when the session is dropped and made again.
    pub id: SessionId,
    /// The name that callers use.
    pub name: String,
    /// The role that owns it.
    pub owner: pg_sys::Oid,
    /// The role that it is lent to, if it is.
    pub usable_by: Option<pg_sys::Oid>,
    /// Every request must come with a payload.
    pub require_payload: bool,
    /// It only deduplicates: its requests go through `idem_once`, never through `idem_begin`.
    pub inbox: bool,
    /// Its keys are UUIDs of version 7, and keys that are too old are refused.
    pub time_keys: bool,
    /// How long its outcomes live; `None`: as long as `idempotence.retention` says.
    pub ttl_us: Option<i64>,
    /// After how many attempts a request is given up instead of taken over; `None`: never.
    pub max_attempts: Option<i32>,
    /// The node that it is bound to: on other servers it is a signpost, which says where its requests go.
    pub node: Option<String>,
    /// The table that keeps its requests, qualified and quoted; `None`: ours do.
    pub journal: Option<String>,
    /// When it was made.
    pub created_at: i64,
    /// When it was dropped, if it was.
    pub dropped_at: Option<i64>,
}

impl StandingSession {
    /// How long its outcomes live, by its own ttl or the setting.
    pub fn ttl_us(&self) -> i64 {
        self.ttl_us.unwrap_or_else(guc::retention_us)
    }

    /// The beginning of a key as it is kept: a time key is kept in lower case.
    pub fn prefix_as_kept(&self, prefix: &str) -> String {
        if self.time_keys { prefix.to_lowercase() } else { prefix.to_owned() }
    }

    /// Refuses a use of it on another server than the one that it is bound to.
    pub fn check_here(&self) -> Result<(), Error> {
        match &self.node {
            Some(node) if *node != guc::node() => {
                Err(Error::Elsewhere { session: self.name.clone(), node: node.clone(), here: guc::node(), bound: true })
            }
            _ => Ok(()),
        }
    }
}

/// The part of a client session that never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSession {
    /// The id, which the server generates and never reuses.
    pub id: SessionId,
    /// The name that callers use: the id as text and, after an `@`, the node where it was registered.
    pub name: String,
    /// The role that registered it.
    pub owner: pg_sys::Oid,
    /// The name of the client. Among the sessions of an owner that have not ended it is unique.
    pub client: Option<String>,
    /// The id that the registration came with.
    pub request_id: Option<SessionId>,
    /// The order in which its numbers may come.
    pub order: Order,
    /// How many replies of each stream it keeps.
    pub window: i32,
    /// The longest silence of its client that it outlasts.
    pub timeout_us: i64,
    /// When it was registered.
    pub created_at: i64,
}

impl ClientSession {
    /// The node where it was registered.
    pub fn node(&self) -> Option<&str> {
        self.name.split_once('@').map(|(_, node)| node)
    }

    /// What a registration can find it by.
    pub fn known_by(&self) -> impl Iterator<Item = KnownBy<'_>> {
        let id = self.request_id.as_ref().map(KnownBy::RequestId);
        id.into_iter().chain(self.client.as_deref().map(KnownBy::Client))
    }
}

/// What a registration finds a session by.
#[derive(Clone, Copy)]
pub enum KnownBy<'a> {
    /// The client's name.
    Client(&'a str),
    /// The id that the registration came with.
    RequestId(&'a SessionId),
}

/// The session of a request.
#[derive(Clone)]
pub enum Session {
    /// Its requests have keys.
    Standing(Rc<StandingSession>),
    /// Its requests are numbered.
    Client(Rc<ClientSession>),
}

impl Session {
    /// The name that callers use.
    pub fn name(&self) -> &str {
        match self {
            Session::Standing(session) => &session.name,
            Session::Client(session) => &session.name,
        }
    }
}

/// A stream of a client session.
#[derive(Clone, Copy)]
pub struct Stream<'a> {
    /// The session's id.
    pub session: &'a SessionId,
    /// The stream's name; the empty name is the session's own numbering.
    pub name: &'a str,
}
