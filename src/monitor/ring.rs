//! The newest errors in shared memory. If there is no room for one more, an error of the role that takes most places gives
//! way, the oldest of that one's SQLSTATE that takes most. So a flood leaves the errors of other roles, and other errors of
//! the same role, their share.

use crate::domain::limits::KEY_CHARS_MAX;
use crate::error::OWN_SQLSTATES;
use crate::pg::SharedText;
use pgrx::pg_sys;

/// The most bytes of a name that are kept: as many as the longest key in plain letters has.
const NAME_BYTES: usize = KEY_CHARS_MAX + 1;

/// The most bytes of an application's name: as many as PostgreSQL itself keeps.
const APPLICATION_BYTES: usize = 64;

/// An error that was noted, in its place.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NotedError {
    /// How many errors were noted before.
    pub(super) number: u64,
    /// The place of the next newer error of the queue.
    pub(super) newer: u32,
    /// When it was raised.
    pub at: i64,
    pub(super) database: u32,
    /// The role that was current.
    pub role: pg_sys::Oid,
    /// The process.
    pub pid: i32,
    /// The SQLSTATE.
    pub sqlstate: [u8; 5],
    /// The name of the session that it tells of; empty if it tells of none.
    pub session: SharedText<NAME_BYTES>,
    /// The stream; empty if there is none.
    pub stream: SharedText<NAME_BYTES>,
    /// The request; empty if the error tells of none.
    pub request: SharedText<NAME_BYTES>,
    /// What the client calls itself.
    pub application: SharedText<APPLICATION_BYTES>,
}

/// The errors. Their places follow it.
#[repr(C, align(64))]
pub struct ErrorRing {
    places: usize,
    /// How many places are taken.
    taken: usize,
    /// How many errors were noted.
    noted: u64,
    queues: [[Queue; OWN_SQLSTATES]; SHARES],
}

/// Among how many the places are shared. Roles share one if their oids differ by a multiple of it.
const SHARES: usize = 128;

/// The errors of a share with one SQLSTATE, from the oldest to the newest.
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
        ErrorRing { places, taken: 0, noted: 0, queues: [[Queue::default(); OWN_SQLSTATES]; SHARES] }
    }

    /// Notes one more error. `own` is the number of its SQLSTATE: 0 is ID001.
    pub(super) fn note(&mut self, own: usize, error: NotedError) {
        let share = error.role.to_u32() as usize % SHARES;
        let Some(at) = self.free_place(own, share) else { return };
        *self.place(at) = NotedError { number: self.noted, ..error };
        self.noted += 1;
        let Queue { length, newest, .. } = self.queues[share][own];
        if length > 0 {
            self.place(newest).newer = at;
        } else {
            self.queues[share][own].oldest = at;
        }
        self.queues[share][own].newest = at;
        self.queues[share][own].length += 1;
    }

    /// A place that nobody takes any more.
    fn free_place(&mut self, own: usize, share: usize) -> Option<u32> {
        if self.taken < self.places {
            self.taken += 1;
            return u32::try_from(self.taken - 1).ok();
        }
        let taken = |share: usize| self.queues[share].iter().map(|queue| queue.length).sum::<usize>();
        let greatest = (0..SHARES).max_by_key(|number| (taken(*number), *number == share))?;
        let length = |number: usize| self.queues[greatest][number].length;
        let longest = (0..OWN_SQLSTATES).max_by_key(|number| (length(*number), *number == own))?;
        let Queue { length: 1.., oldest, .. } = self.queues[greatest][longest] else { return None };
        self.queues[greatest][longest].oldest = self.place(oldest).newer;
        self.queues[greatest][longest].length -= 1;
        Some(oldest)
    }

    /// The errors of a database, the newest first.
    pub fn newest_of(&mut self, database: u32) -> Vec<NotedError> {
        let taken = self.taken as u32;
        let of_database = |at| Some(&*self.place(at)).filter(|error| error.database == database).copied();
        let mut all: Vec<NotedError> = (0..taken).filter_map(of_database).collect();
        all.sort_unstable_by_key(|error| std::cmp::Reverse(error.number));
        all
    }

    fn place(&mut self, at: u32) -> &mut NotedError {
        let at = at as usize % self.places;
        // SAFETY: the places follow it in shared memory, as many as it was made with. They were all zeros at first, which
        // are valid.
        unsafe { &mut *(&raw mut *self).add(1).cast::<NotedError>().add(at) }
    }
}

/// The size of room for so many errors.
pub fn ring_bytes(places: usize) -> usize {
    size_of::<ErrorRing>() + places * size_of::<NotedError>()
}
