//! The calls of a session in the model, with their answers.

use super::log::{Begun, Event, Lock};
use super::memory::{Answer, Memory};
use super::step::Call;
use super::stream::{Done, Kind, Place, Stream};

impl Memory {
    pub fn call(&mut self, by: usize, session: usize, call: &Call) -> Answer {
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
            Place::Discarded => return Err("ID003"),
            Place::OutOfSequence if free => return Err("ID006"),
            Place::OutOfSequence => return Ok("in_progress||".into()),
            // The request stopped at a checkpoint. It goes on with the same range or not at all.
            Place::Next if checkpoint.is_some_and(|checkpoint| checkpoint.range != begun.range) => {
                return if free { Err("ID006") } else { Ok("in_progress||".into()) };
            }
            Place::Next => {}
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
        // Each number of a range stands for the range.
        let answer = stream.kept(session.kind).into_iter().map(|at| &stream.done[at]).find(|done| done.covers(number));
        let range = answer.filter(|done| !done.dropped).map_or((number, number), |done| done.range);
        let point = stream.checkpoints.get(&number).map(|checkpoint| &checkpoint.point);
        let status = match stream.place(session.kind, range, 0) {
            Place::Answered(at) => return Ok(format!("{}|", stream.done[at].answer)),
            Place::Discarded => return Ok("discarded||".into()),
            // The number was done, as a part of another request.
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

    /// Makes the session durable. Only one transaction at a time can do this.
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

    /// Takes the lock that a transaction needs before it stores anything of a stream.
    fn mark(&mut self, by: usize, session: usize, stream: usize) -> Result<(), &'static str> {
        if self.try_lock(by, Lock::Mark(session, stream)) { Ok(()) } else { Err("55P03") }
    }

    /// Notes a named stream when it is new, unless the other connection is storing something of it.
    fn note_stream(&mut self, by: usize, session: usize, stream: usize) {
        let is_new = stream > 0 && !self.view(by, session).streams[stream].noted;
        if is_new && self.try_lock(by, Lock::Mark(session, stream)) {
            self.note(by, Event::Noted(session, stream));
        }
    }

    /// The number up to which the begin of the request has acknowledged the answers.
    fn said(&self, by: usize, at: usize) -> i64 {
        let Event::Begun(begun) = &self.connections[by].log[at] else { unreachable!() };
        begun.said
    }

    /// Takes the lanes of the numbers that an acknowledgement gives up. Returns whether there are any.
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
