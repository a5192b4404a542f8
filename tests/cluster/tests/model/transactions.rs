//! The begin, the end and the savepoints of a transaction in the model.

use super::log::{Connection, Event};
use super::memory::{Answer, Memory};

impl Memory {
    pub fn open(&mut self, by: usize) -> Answer {
        self.connections[by].in_transaction = true;
        Ok(String::new())
    }

    pub fn roll_back(&mut self, by: usize) -> Answer {
        self.connections[by] = Connection::default();
        Ok(String::new())
    }

    pub fn roll_back_to_savepoint(&mut self, by: usize) {
        let connection = &mut self.connections[by];
        if let Some(length) = connection.savepoints.last() {
            connection.log.truncate(*length);
        }
    }

    pub fn commit(&mut self, by: usize) -> Answer {
        let log = &self.connections[by].log;
        let satisfied = |at: usize| {
            log.iter().any(|event| {
                matches!(event, Event::Recorded(of, _) | Event::Released(of) | Event::Checkpointed(of, _) if *of == at)
            })
        };
        let forgotten = (0..log.len()).any(|at| matches!(log[at], Event::Begun(_)) && !satisfied(at));
        if !forgotten {
            for session in 0..self.sessions.len() {
                self.sessions[session] = self.view(by, session);
            }
        }
        self.connections[by] = Connection::default();
        if forgotten { Err("ID008") } else { Ok(String::new()) }
    }
}
