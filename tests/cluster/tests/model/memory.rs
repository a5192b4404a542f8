//! The model: two connections of a client and its sessions, remembered whole, and the answer that each
//! step must get. What a transaction does is a log that is cut off by a rollback and carried over by a
//! commit; what it has locked stands in the same log.

use super::step::{Call, Step};
use super::stream::{Checkpoint, Done, Kind, Place, Range, Stream};

/// The streams that are used.
pub const STREAMS: [&str; 2] = ["", "s"];

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// Closed, or silent for too long.
    Over,
    Fenced,
}

/// A session.
#[derive(Clone, Debug)]
pub struct Session {
    pub kind: Kind,
    client: Option<usize>,
    request_id: Option<usize>,
    streams: [Stream; 2],
    saved: bool,
    /// Past its end, though nobody has noted it.
    silent: bool,
    ended: Option<End>,
    /// Ended where nothing had to be remembered of it.
    gone: bool,
}

/// What only one transaction can have, or only together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lock {
    /// The slot of a number, or the whole stream.
    Lane(usize, usize, i64),
    /// Shared.
    Session(usize),
    Save(usize),
    Mark(usize, usize),
}

#[derive(Clone, Debug)]
struct Begun {
    session: usize,
    stream: usize,
    range: Range,
    payload: Option<i64>,
    said: i64,
}

/// What a transaction did. Numbers are those of the log's entry that began the request.
#[derive(Clone, Debug)]
enum Event {
    Locked(Lock),
    Begun(Begun),
    Recorded(usize, String),
    Released(usize),
    Checkpointed(usize, String),
    Acked(usize, usize, i64),
    Allocated(usize, usize, i64),
    Noted(usize, usize),
    Dropped(usize, usize, Range),
    Saved(usize),
}

/// A connection, in a transaction or not.
#[derive(Default)]
struct Connection {
    log: Vec<Event>,
    in_transaction: bool,
    /// How long the log was at each savepoint.
    savepoints: Vec<usize>,
}

/// An answer, or an SQLSTATE.
type Answer = Result<String, &'static str>;

/// All of it.
#[derive(Default)]
pub struct Memory {
    pub sessions: Vec<Session>,
    connections: [Connection; 2],
}

impl Memory {
    pub fn in_transaction(&self, by: usize) -> bool {
        self.connections[by].in_transaction
    }

    pub fn has_savepoint(&self, by: usize) -> bool {
        !self.connections[by].savepoints.is_empty()
    }

    /// Sessions that have not ended.
    pub fn alive(&self) -> Vec<usize> {
        (0..self.sessions.len()).filter(|&session| self.check_alive(session).is_ok()).collect()
    }

    /// Nobody uses it in an open transaction.
    pub fn is_idle(&self, session: usize) -> bool {
        (0..2).all(|by| !self.holds(by, Lock::Session(session)))
    }

    /// What may be recorded: session, stream and first number.
    pub fn open_requests(&self, by: usize) -> Vec<(usize, usize, i64)> {
        self.at_work(by).map(|(_, begun)| (begun.session, begun.stream, begun.range.0)).collect()
    }

    /// Nothing that it began has been left without a checkpoint at least.
    pub fn may_commit(&self, by: usize) -> bool {
        let reached = |at: usize| {
            self.connections[by].log.iter().any(|event| matches!(event, Event::Checkpointed(of, _) if *of == at))
        };
        self.at_work(by).all(|(at, _)| reached(at))
    }

    /// Where a session's stream is, for whoever chooses numbers.
    pub fn stream(&self, by: usize, session: usize, stream: usize) -> Stream {
        self.view(by, session).streams[stream].clone()
    }

    /// The answer that a step must get; what it does is done.
    pub fn take(&mut self, by: usize, step: &Step) -> String {
        let answer = match step {
            Step::Begin => self.open(by),
            Step::Commit => self.commit(by),
            Step::Rollback => self.roll_back(by),
            Step::Savepoint => {
                let length = self.connections[by].log.len();
                self.connections[by].savepoints.push(length);
                Ok(String::new())
            }
            Step::RollbackTo => {
                self.roll_back_to_savepoint(by);
                Ok(String::new())
            }
            Step::ReleaseSavepoint => {
                self.connections[by].savepoints.pop();
                Ok(String::new())
            }
            Step::Register { client, resume, request_id, kind } => {
                self.register(by, *client, *resume, *request_id, *kind)
            }
            Step::Close { session } => self.close(by, *session),
            Step::Silence { session } => {
                self.sessions[*session].silent = true;
                Ok(String::new())
            }
            Step::Call { session, call } => {
                let answer = self.call(by, *session, call);
                if self.connections[by].in_transaction {
                    answer
                } else if answer.is_ok() {
                    self.commit(by).and(answer)
                } else {
                    _ = self.roll_back(by);
                    answer
                }
            }
        };
        answer.unwrap_or_else(str::to_owned)
    }

    // Transactions

    fn open(&mut self, by: usize) -> Answer {
        self.connections[by].in_transaction = true;
        Ok(String::new())
    }

    fn roll_back(&mut self, by: usize) -> Answer {
        self.connections[by] = Connection::default();
        Ok(String::new())
    }

    fn roll_back_to_savepoint(&mut self, by: usize) {
        let connection = &mut self.connections[by];
        if let Some(length) = connection.savepoints.last() {
            connection.log.truncate(*length);
        }
    }

    fn commit(&mut self, by: usize) -> Answer {
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

    /// A session as a connection sees it: with its own doings.
    fn view(&self, by: usize, number: usize) -> Session {
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

    fn holds(&self, by: usize, lock: Lock) -> bool {
        self.connections[by].log.iter().any(|event| matches!(event, Event::Locked(held) if *held == lock))
    }

    /// Takes a lock for this transaction, unless the other has it.
    fn try_lock(&mut self, by: usize, lock: Lock) -> bool {
        let free = !self.holds(1 - by, lock);
        if free {
            self.note(by, Event::Locked(lock));
        }
        free
    }

    fn note(&mut self, by: usize, event: Event) {
        self.connections[by].log.push(event);
    }

    // Sessions

    fn register(&mut self, by: usize, client: Option<usize>, resume: bool, id: Option<usize>, kind: Kind) -> Answer {
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
            // Its id has no time in it: nothing but a durable row would tell a late copy.
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

    fn close(&mut self, by: usize, session: usize) -> Answer {
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

    fn check_alive(&self, session: usize) -> Result<(), &'static str> {
        match self.sessions[session].ended {
            None if self.sessions[session].silent => Err("ID004"),
            None => Ok(()),
            Some(End::Over) => Err("ID004"),
            Some(End::Fenced) => Err("ID005"),
        }
    }

    // Requests

    fn call(&mut self, by: usize, session: usize, call: &Call) -> Answer {
        if self.sessions[session].gone {
            return Err("ID004");
        }
        match call {
            Call::Begin { stream, range, payload, said } => {
                let begun = Begun { session, stream: *stream, range: *range, payload: *payload, said: *said };
                self.begin(by, begun)
            }
            Call::Record { stream, first, answer } => {
                let at = self.open_request(by, session, *stream, *first)?;
                let said = self.said(by, at);
                let gives_up = self.give_up(by, session, *stream, said)?;
                self.save(by, session)?;
                self.note_stream(by, session, *stream);
                self.note(by, Event::Recorded(at, answer.clone()));
                let behind = said > self.view(by, session).streams[*stream].acked;
                if behind && self.try_lock(by, Lock::Mark(session, *stream)) {
                    self.note(by, Event::Acked(session, *stream, said));
                } else if gives_up {
                    return Err("55P03");
                }
                Ok(String::new())
            }
            Call::Checkpoint { stream, first, point } => {
                let at = self.open_request(by, session, *stream, *first)?;
                let said = self.said(by, at);
                let gives_up = self.give_up(by, session, *stream, said)?;
                self.save(by, session)?;
                self.note_stream(by, session, *stream);
                if gives_up {
                    self.mark(by, session, *stream)?;
                    self.note(by, Event::Acked(session, *stream, said));
                }
                self.note(by, Event::Checkpointed(at, point.clone()));
                Ok(String::new())
            }
            Call::Release { stream, first } => {
                let at = self.open_request(by, session, *stream, *first)?;
                self.note(by, Event::Released(at));
                Ok(String::new())
            }
            Call::Lookup { stream, number } => self.look_up(by, session, *stream, *number),
            Call::Position { stream } => {
                let session = self.view(by, session);
                let stream = &session.streams[*stream];
                let (last, next) = stream.position(session.kind);
                Ok(format!("{last}|{next}|{}|{}", stream.acked, stream.allocated))
            }
            Call::Heartbeat => self.attend(by, session).map(|()| "t".into()),
            Call::Ack { stream, upto } => self.ack(by, session, *stream, *upto),
            Call::Allocate { stream, count } => {
                self.attend(by, session)?;
                self.save(by, session)?;
                self.mark(by, session, *stream)?;
                let view = self.view(by, session);
                let first = view.streams[*stream].position(view.kind).1;
                self.note(by, Event::Allocated(session, *stream, first + count - 1));
                Ok(first.to_string())
            }
        }
    }

    fn lane(&self, session: usize, stream: usize, first: i64) -> Lock {
        let kind = self.sessions[session].kind;
        Lock::Lane(session, stream, if kind.strict { 0 } else { first % kind.window })
    }

    /// Requests of this transaction that are neither recorded nor released: their entries in the log.
    fn at_work(&self, by: usize) -> impl Iterator<Item = (usize, &Begun)> {
        let log = &self.connections[by].log;
        log.iter().enumerate().filter_map(move |(at, event)| match event {
            Event::Begun(begun) => {
                let over = |event: &Event| matches!(event, Event::Recorded(of, _) | Event::Released(of) if *of == at);
                (!log.iter().any(over)).then_some((at, begun))
            }
            _ => None,
        })
    }

    fn open_request(&self, by: usize, session: usize, stream: usize, first: i64) -> Result<usize, &'static str> {
        let is_it = |begun: &Begun| (begun.session, begun.stream, begun.range.0) == (session, stream, first);
        self.at_work(by).find(|(_, begun)| is_it(begun)).map(|(at, _)| at).ok_or("ID007")
    }

    fn works_in(&self, by: usize, lane: Lock) -> bool {
        self.at_work(by).any(|(_, begun)| self.lane(begun.session, begun.stream, begun.range.0) == lane)
    }

    fn begin(&mut self, by: usize, mut begun: Begun) -> Answer {
        let lane = self.lane(begun.session, begun.stream, begun.range.0);
        if self.open_request(by, begun.session, begun.stream, begun.range.0).is_ok() {
            return Err("ID002");
        }
        self.check_alive(begun.session)?;
        let free = !self.holds(1 - by, lane);
        let session = self.view(by, begun.session);
        let stream = &session.streams[begun.stream];
        let checkpoint = stream.checkpoints.get(&begun.range.0);
        let differs = |kept: Option<i64>| matches!((kept, begun.payload), (Some(kept), Some(given)) if kept != given);
        match stream.place(session.kind, begun.range, begun.said) {
            Place::Answered(at) if differs(stream.done[at].payload) => return Err("ID001"),
            Place::Answered(at) => return Ok(format!("{}|", stream.done[at].answer)),
            Place::Past => return Err("ID003"),
            Place::OutOfSequence if free => return Err("ID006"),
            Place::OutOfSequence => return Ok("in_progress||".into()),
            // It stopped on its way, and goes on as the same range or not at all.
            Place::Turn if checkpoint.is_some_and(|checkpoint| checkpoint.range != begun.range) => {
                return if free { Err("ID006") } else { Ok("in_progress||".into()) };
            }
            Place::Turn => {}
        }
        if checkpoint.is_some_and(|checkpoint| differs(checkpoint.payload)) {
            return Err("ID001");
        }
        if self.works_in(by, lane) {
            return Err("ID006");
        }
        if !free {
            return Ok("in_progress||".into());
        }
        let point = checkpoint.map_or("", |checkpoint| &checkpoint.point).to_owned();
        begun.payload = begun.payload.or(checkpoint.and_then(|checkpoint| checkpoint.payload));
        self.note(by, Event::Locked(lane));
        self.note(by, Event::Locked(Lock::Session(begun.session)));
        self.note(by, Event::Begun(begun));
        Ok(format!("started||{point}"))
    }

    fn look_up(&self, by: usize, session: usize, stream: usize, number: i64) -> Answer {
        let held = self.open_request(by, session, stream, number).is_ok()
            || self.holds(1 - by, self.lane(session, stream, number));
        let session = self.view(by, session);
        let stream = &session.streams[stream];
        // Any number of a range stands for it.
        let answer = stream.kept(session.kind).into_iter().map(|at| &stream.done[at]).find(|done| done.covers(number));
        let range = answer.filter(|done| !done.dropped).map_or((number, number), |done| done.range);
        let point = stream.checkpoints.get(&number).map(|checkpoint| &checkpoint.point);
        let status = match stream.place(session.kind, range, 0) {
            Place::Answered(at) => return Ok(format!("{}|", stream.done[at].answer)),
            Place::Past => return Ok("discarded||".into()),
            // Done, as a part of another request.
            Place::OutOfSequence if answer.is_some() => return Ok("discarded||".into()),
            _ if held => "in_progress",
            _ if point.is_some() => "suspended",
            _ => "unknown",
        };
        Ok(format!("{status}||{}", point.map_or("", |point| point)))
    }

    fn attend(&mut self, by: usize, session: usize) -> Result<(), &'static str> {
        self.check_alive(session)?;
        self.note(by, Event::Locked(Lock::Session(session)));
        Ok(())
    }

    /// The step to logged: one at a time.
    fn save(&mut self, by: usize, session: usize) -> Result<(), &'static str> {
        if self.view(by, session).saved {
            return Ok(());
        }
        if !self.try_lock(by, Lock::Save(session)) {
            return Err("55P03");
        }
        self.note(by, Event::Saved(session));
        Ok(())
    }

    /// What comes before anything is stored of a stream.
    fn mark(&mut self, by: usize, session: usize, stream: usize) -> Result<(), &'static str> {
        if self.try_lock(by, Lock::Mark(session, stream)) { Ok(()) } else { Err("55P03") }
    }

    /// A named stream is noted when it comes, unless the other connection is just storing something of it.
    fn note_stream(&mut self, by: usize, session: usize, stream: usize) {
        let is_new = stream > 0 && !self.view(by, session).streams[stream].noted;
        if is_new && self.try_lock(by, Lock::Mark(session, stream)) {
            self.note(by, Event::Noted(session, stream));
        }
    }

    /// What was said along with a request.
    fn said(&self, by: usize, at: usize) -> i64 {
        let Event::Begun(begun) = &self.connections[by].log[at] else { unreachable!() };
        begun.said
    }

    /// Takes the lanes of the numbers that a mark gives up; whether there are any.
    fn give_up(&mut self, by: usize, session: usize, stream: usize, upto: i64) -> Result<bool, &'static str> {
        let view = self.view(by, session);
        let Stream { acked, done, .. } = &view.streams[stream];
        let newest: Vec<i64> = match view.kind {
            _ if upto <= *acked => Vec::new(),
            Kind { strict: true, .. } => vec![upto],
            Kind { window, .. } => {
                (0..window).filter_map(|slot| (acked + 1..=upto).rev().find(|number| number % window == slot)).collect()
            }
        };
        let is_over = |number: i64| {
            let lane = self.lane(session, stream, number);
            done.iter().any(|done| done.range.1 >= number && self.lane(session, stream, done.range.0) == lane)
        };
        let given_up: Vec<Lock> = newest
            .into_iter()
            .filter(|number| !is_over(*number))
            .map(|number| self.lane(session, stream, number))
            .collect();
        for lane in &given_up {
            let is_own =
                |begun: &Begun| begun.range.0 <= upto && self.lane(begun.session, begun.stream, begun.range.0) == *lane;
            if self.at_work(by).any(|(_, begun)| is_own(begun)) {
                return Err("55006");
            }
            if !self.try_lock(by, *lane) {
                return Err("55P03");
            }
        }
        Ok(!given_up.is_empty())
    }

    fn ack(&mut self, by: usize, session: usize, stream: usize, upto: i64) -> Answer {
        self.attend(by, session)?;
        if upto <= self.view(by, session).streams[stream].acked {
            return Ok(String::new());
        }
        self.give_up(by, session, stream, upto)?;
        self.save(by, session)?;
        self.mark(by, session, stream)?;
        self.note(by, Event::Acked(session, stream, upto));
        let view = self.view(by, session);
        for at in view.streams[stream].kept(view.kind) {
            let Done { range, dropped, .. } = view.streams[stream].done[at];
            let lane = self.lane(session, stream, range.0);
            if range.1 <= upto && !dropped && !self.works_in(by, lane) && self.try_lock(by, lane) {
                self.note(by, Event::Dropped(session, stream, range));
            }
        }
        Ok(String::new())
    }
}
