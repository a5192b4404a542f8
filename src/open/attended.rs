//! The client sessions that a transaction uses, which give a sign of life with its commit.

use super::index::FEW;
use crate::domain::identity::SessionId;
use crate::store::client::Client;
use std::collections::HashSet;
use std::rc::Rc;

/// A client session that this transaction uses.
pub struct Attended {
    /// Itself.
    pub client: Rc<Client>,
    /// Its last sign of life, as it stood when the transaction came to use it.
    pub last_seen: i64,
}

/// All of them, once each.
#[derive(Default)]
pub struct Attendance {
    sessions: Vec<Attended>,
    /// Their ids, once there are more than a few to look through.
    ids: Option<HashSet<SessionId>>,
}

impl Attendance {
    /// None.
    pub const fn new() -> Attendance {
        Attendance { sessions: Vec::new(), ids: None }
    }

    /// Adds a session that is not among them.
    pub fn add(&mut self, client: &Rc<Client>, last_seen: i64) {
        if self.has(&client.id) {
            return;
        }
        self.sessions.push(Attended { client: Rc::clone(client), last_seen });
        if self.sessions.len() > FEW {
            let ids = self.ids.get_or_insert_default();
            ids.extend(self.sessions.iter().skip(ids.len()).map(|session| session.client.id));
        }
    }

    /// Those that were added.
    pub fn into_sessions(self) -> Vec<Attended> {
        self.sessions
    }

    /// At the end of the transaction.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.ids = None;
    }

    fn has(&self, id: &SessionId) -> bool {
        match &self.ids {
            Some(ids) => ids.contains(id),
            None => self.sessions.iter().any(|session| session.client.id == *id),
        }
    }
}
