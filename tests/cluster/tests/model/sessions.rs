//! How sessions of the model begin and end.

use super::log::Lock;
use super::memory::{Answer, End, Memory, Session};
use super::stream::Kind;

impl Memory {
    pub fn register(
        &mut self,
        by: usize,
        client: Option<usize>,
        resume: bool,
        id: Option<usize>,
        kind: Kind,
    ) -> Answer {
        let resumed = |this: &Self, session: usize| {
            let next = this.sessions[session].streams[0].position(this.sessions[session].kind).1;
            Ok(format!("t|{session}|{next}"))
        };
        if let Some(before) = self.sessions.iter().position(|session| id.is_some() && session.request_id == id) {
            self.check_alive(before)?;
            return resumed(self, before);
        }
        let former = self
            .sessions
            .iter()
            .position(|session| client.is_some() && session.client == client && session.ended.is_none());
        if let Some(former) = former {
            if self.holds(1 - by, Lock::Session(former)) {
                return Err("55P03");
            }
            let silent = self.sessions[former].silent;
            if resume && !silent {
                return resumed(self, former);
            }
            self.end(former, if silent { End::Over } else { End::Fenced });
        }
        let streams = Default::default();
        self.sessions.push(Session {
            kind,
            client,
            request_id: id,
            streams,
            // The request id has no time in it. Only a durable row can tell a late copy of the registration.
            saved: client.is_some() && id.is_some(),
            silent: false,
            ended: None,
            gone: false,
        });
        Ok(format!("f|{}|1", self.sessions.len() - 1))
    }

    fn end(&mut self, session: usize, how: End) {
        let session = &mut self.sessions[session];
        session.ended = Some(how);
        session.gone = how == End::Over && !session.saved && session.request_id.is_none();
    }

    pub fn close(&mut self, by: usize, session: usize) -> Answer {
        match self.sessions[session].ended {
            Some(End::Over) => return Ok("f".into()),
            Some(End::Fenced) => return Err("ID005"),
            None if self.sessions[session].silent => return Ok("f".into()),
            None if self.holds(1 - by, Lock::Session(session)) => return Err("55P03"),
            None => {}
        }
        self.end(session, End::Over);
        Ok("t".into())
    }
}
