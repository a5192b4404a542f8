//! The newest errors in shared memory. If there is no room for one more, the oldest of the SQLSTATE that takes most places
//! gives way. So a flood of one error leaves the others their share.

use crate::domain::limits::KEY_CHARS_MAX;
use crate::error::OWN_SQLSTATES;
use crate::pg::SharedText;
use pgrx::pg_sys;

/// The most bytes of a name that are kept: as many as the longest key in plain letters has.
const NAME_BYTES: usize = KEY_CHARS_MAX + 1;

/// The most bytes of an application's name: as many as PostgreSQL itself keeps.
const APPLICATION_BYTES: usize = 64;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ErrorPlace {
    /// How many errors were noted before.
    number: u64,
    /// The place of the next newer error of the SQLSTATE.
    newer: u32,
    pub(super) at: i64,
    pub(super) database: u32,
    pub(super) role: u32,
    pub(super) pid: i32,
    pub(super) sqlstate: [u8; 5],
    pub(super) session: SharedText<NAME_BYTES>,
    pub(super) stream: SharedText<NAME_BYTES>,
    pub(super) request: SharedText<NAME_BYTES>,
    pub(super) application: SharedText<APPLICATION_BYTES>,
}

impl ErrorPlace {
    fn read(&self) -> NotedError {
        NotedError {
            at: self.at,
            session: self.session.get(),
            stream: self.stream.get(),
            request: self.request.get(),
            role: self.role.into(),
            sqlstate: String::from_utf8_lossy(&self.sqlstate).into_owned(),
            application: self.application.get(),
            pid: self.pid,
        }
    }
}

/// The errors. Their places follow it.
#[repr(C, align(64))]
pub struct ErrorRing {
    places: usize,
    /// How many places are taken.
    taken: usize,
    /// How many errors were noted.
    noted: u64,
    queues: [Queue; OWN_SQLSTATES],
}

/// The errors of an SQLSTATE, from the oldest to the newest.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Queue {
    length: usize,
    oldest: u32,
    newest: u32,
}

impl ErrorRing {
    /// Room for errors, without one.
    pub fn new(places: usize) -> ErrorRing {
        ErrorRing { places, taken: 0, noted: 0, queues: [Queue::default(); OWN_SQLSTATES] }
    }

    /// Notes one more error. `own` is the number of its SQLSTATE: 0 is ID001.
    pub(super) fn note(&mut self, own: usize, fill: impl FnOnce(&mut ErrorPlace)) {
        let Some(at) = self.free_place(own) else { return };
        let number = self.noted;
        self.noted += 1;
        let place = self.place(at);
        place.number = number;
        fill(place);
        let Queue { length, newest, .. } = self.queues[own];
        if length > 0 {
            self.place(newest).newer = at;
        } else {
            self.queues[own].oldest = at;
        }
        self.queues[own].newest = at;
        self.queues[own].length += 1;
    }

    /// A place that nobody takes any more.
    fn free_place(&mut self, own: usize) -> Option<u32> {
        if self.taken < self.places {
            self.taken += 1;
            return u32::try_from(self.taken - 1).ok();
        }
        let longest = (0..OWN_SQLSTATES).max_by_key(|number| (self.queues[*number].length, *number == own))?;
        let Queue { length: 1.., oldest, .. } = self.queues[longest] else { return None };
        self.queues[longest].oldest = self.place(oldest).newer;
        self.queues[longest].length -= 1;
        Some(oldest)
    }

    /// The errors of a database, the newest first.
    pub fn newest_of(&mut self, database: u32) -> Vec<NotedError> {
        let mut all = Vec::new();
        for at in 0..self.taken as u32 {
            let place = self.place(at);
            if place.database == database {
                all.push((place.number, place.read()));
            }
        }
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        all.into_iter().map(|(_, error)| error).collect()
    }

    fn place(&mut self, at: u32) -> &mut ErrorPlace {
        let at = at as usize % self.places;
        // SAFETY: the places follow it in shared memory, as many as it was made with. They were all zeros at first, which
        // are valid.
        unsafe { &mut *(&raw mut *self).add(1).cast::<ErrorPlace>().add(at) }
    }
}

/// The size of room for so many errors.
pub fn ring_bytes(places: usize) -> usize {
    size_of::<ErrorRing>() + places * size_of::<ErrorPlace>()
}

/// An error that was noted.
pub struct NotedError {
    /// When it was raised.
    pub at: i64,
    /// The name of the session that it tells of; empty if it tells of none.
    pub session: String,
    /// The stream; empty if there is none.
    pub stream: String,
    /// The request; empty if the error tells of none.
    pub request: String,
    /// The role that was current.
    pub role: pg_sys::Oid,
    /// The SQLSTATE.
    pub sqlstate: String,
    /// What the client calls itself.
    pub application: String,
    /// The process.
    pub pid: i32,
}
