//! The memory of the model: a client with two connections and its sessions, remembered whole. A commit carries
//! the log of a transaction over to the sessions.

use super::log::{Begun, Connection, Event, Lock};
use super::stream::{Checkpoint, Done, Kind, Stream};

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// The session was closed, or was silent for too long.
    Over,
    Fenced,
}

/// A session of the model.
#[derive(Clone, Debug)]
pub struct Session {
    pub kind: Kind,
    pub client: Option<usize>,
    pub request_id: Option<usize>,
    pub streams: [Stream; 2],
    pub saved: bool,
    /// Whether the session is past its end and nobody has noted the end.
    pub silent: bool,
    pub ended: Option<End>,
    /// Whether the session has ended and nothing of it had to be remembered.
    pub gone: bool,
}

/// The answer to a step: rows or an SQLSTATE.
pub type Answer = Result<String, &'static str>;

/// The sessions and connections of the model.
#[derive(Default)]
pub struct Memory {
    pub sessions: Vec<Session>,
    pub connections: [Connection; 2],
}

impl Memory {
    pub fn in_transaction(&self, by: usize) -> bool {
        self.connections[by].in_transaction
    }

    pub fn has_savepoint(&self, by: usize) -> bool {
        !self.connections[by].savepoints.is_empty()
    }

    /// The sessions that have not ended.
    pub fn alive(&self) -> Vec<usize> {
        (0..self.sessions.len()).filter(|&session| self.check_alive(session).is_ok()).collect()
    }

    /// Whether no open transaction uses the session.
    pub fn is_idle(&self, session: usize) -> bool {
        (0..2).all(|by| !self.holds(by, Lock::Session(session)))
    }

    /// The requests that may be recorded: session, stream and first number.
    pub fn open_requests(&self, by: usize) -> Vec<(usize, usize, i64)> {
        self.at_work(by).map(|(_, begun)| (begun.session, begun.stream, begun.range.0)).collect()
    }

    /// Whether every request that the transaction began has at least a checkpoint.
    pub fn may_commit(&self, by: usize) -> bool {
        let reached = |at: usize| {
            self.connections[by].log.iter().any(|event| matches!(event, Event::Checkpointed(of, _) if *of == at))
        };
        self.at_work(by).all(|(at, _)| reached(at))
    }

    /// A stream as the connection sees it, for the choice of numbers.
    pub fn stream(&self, by: usize, session: usize, stream: usize) -> Stream {
        self.view(by, session).streams[stream].clone()
    }

    /// The requests of this transaction that are neither recorded nor released, with their places in the log.
    pub fn at_work(&self, by: usize) -> impl Iterator<Item = (usize, &Begun)> {
        let log = &self.connections[by].log;
        log.iter().enumerate().filter_map(move |(at, event)| match event {
            Event::Begun(begun) => {
                let over = |event: &Event| matches!(event, Event::Recorded(of, _) | Event::Released(of) if *of == at);
                (!log.iter().any(over)).then_some((at, begun))
            }
            _ => None,
        })
    }

    pub fn check_alive(&self, session: usize) -> Result<(), &'static str> {
        match self.sessions[session].ended {
            None if self.sessions[session].silent => Err("ID004"),
            None => Ok(()),
            Some(End::Over) => Err("ID004"),
            Some(End::Fenced) => Err("ID005"),
        }
    }

    /// A session as a connection sees it: with what its open transaction has done.
    pub fn view(&self, by: usize, number: usize) -> Session {
        let mut session = self.sessions[number].clone();
        let log = &self.connections[by].log;
        for event in log {
            match event {
                Event::Saved(of) if *of == number => session.saved = true,
                Event::Acked(of, stream, upto) if *of == number => {
                    session.streams[*stream].acked = *upto;
                    session.streams[*stream].noted = true;
                }
                Event::Allocated(of, stream, upto) if *of == number => {
                    session.streams[*stream].allocated = *upto;
                    session.streams[*stream].noted = true;
                }
                Event::Noted(of, stream) if *of == number => session.streams[*stream].noted = true,
                Event::Dropped(of, stream, range) if *of == number => {
                    let done = &mut session.streams[*stream].done;
                    done.iter_mut().filter(|done| done.range == *range).for_each(|done| done.dropped = true);
                }
                Event::Recorded(at, answer) => {
                    let Event::Begun(begun) = &log[*at] else { continue };
                    if begun.session == number {
                        let stream = &mut session.streams[begun.stream];
                        let (range, payload) = (begun.range, begun.payload);
                        stream.checkpoints.remove(&range.0);
                        stream.done.push(Done { range, answer: answer.clone(), payload, dropped: false });
                    }
                }
                Event::Checkpointed(at, point) => {
                    let Event::Begun(begun) = &log[*at] else { continue };
                    if begun.session == number {
                        let (range, payload) = (begun.range, begun.payload);
                        let checkpoint = Checkpoint { range, point: point.clone(), payload };
                        session.streams[begun.stream].checkpoints.insert(begun.range.0, checkpoint);
                    }
                }
                _ => {}
            }
        }
        session
    }

    pub fn holds(&self, by: usize, lock: Lock) -> bool {
        self.connections[by].log.iter().any(|event| matches!(event, Event::Locked(held) if *held == lock))
    }

    /// Takes a lock for this transaction, unless the other connection has it. Returns whether it was free.
    pub fn try_lock(&mut self, by: usize, lock: Lock) -> bool {
        let free = !self.holds(1 - by, lock);
        if free {
            self.note(by, Event::Locked(lock));
        }
        free
    }

    pub fn note(&mut self, by: usize, event: Event) {
        self.connections[by].log.push(event);
    }
}
