//! The client sessions that a transaction uses, which give a sign of life with its commit.

use super::index::FEW;
use crate::domain::identity::SessionId;
use crate::model::ClientSession;
use std::collections::HashSet;
use std::rc::Rc;

/// A client session that this transaction uses.
pub struct UsedSession {
    /// Itself.
    pub session: Rc<ClientSession>,
    /// Its last sign of life, as it stood when the transaction came to use it.
    pub last_seen: i64,
}

/// All of them, once each.
#[derive(Default)]
pub struct UsedSessions {
    sessions: Vec<UsedSession>,
    /// Their ids, once there are more than a few to look through.
    ids: Option<HashSet<SessionId>>,
}

impl UsedSessions {
    /// None.
    pub const fn new() -> UsedSessions {
        UsedSessions { sessions: Vec::new(), ids: None }
    }

    /// Adds a session that is not among them.
    pub fn add(&mut self, session: &Rc<ClientSession>, last_seen: i64) {
        if self.has(&session.id) {
            return;
        }
        self.sessions.push(UsedSession { session: Rc::clone(session), last_seen });
        if self.sessions.len() > FEW {
            let ids = self.ids.get_or_insert_default();
            ids.extend(self.sessions.iter().skip(ids.len()).map(|used| used.session.id));
        }
    }

    /// Those that were added.
    pub fn into_sessions(self) -> Vec<UsedSession> {
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
            None => self.sessions.iter().any(|used| used.session.id == *id),
        }
    }
}
