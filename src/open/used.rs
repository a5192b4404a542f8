//! The client sessions that a transaction uses. Its commit gives a sign of life for each of them.

use super::index::SCANNED_MAX;
use crate::domain::identity::SessionId;
use crate::model::ClientSession;
use std::collections::HashSet;
use std::rc::Rc;

/// A client session that this transaction uses.
pub struct UsedSession {
    /// The session.
    pub session: Rc<ClientSession>,
    /// Its last sign of life before the transaction began to use it.
    pub last_seen: i64,
}

/// All client sessions that the transaction uses, once each.
#[derive(Default)]
pub struct UsedSessions {
    sessions: Vec<UsedSession>,
    /// Their ids, once there are more than a few sessions.
    ids: Option<HashSet<SessionId>>,
}

impl UsedSessions {
    /// Adds a session, unless it is there already.
    pub fn add(&mut self, session: &Rc<ClientSession>, last_seen: i64) {
        if self.has(&session.id) {
            return;
        }
        self.sessions.push(UsedSession { session: Rc::clone(session), last_seen });
        if self.sessions.len() > SCANNED_MAX {
            let ids = self.ids.get_or_insert_default();
            ids.extend(self.sessions.iter().skip(ids.len()).map(|used| used.session.id));
        }
    }

    /// The sessions that were added.
    pub fn into_sessions(self) -> Vec<UsedSession> {
        self.sessions
    }

    /// Forgets them, at the end of the transaction.
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
