//! The ring of errors in shared memory.

use crate::domain::limits::KEY_CHARS_MAX;
use pgrx::pg_sys;

/// The most bytes of a name that are kept: as many as the longest key in plain letters has.
const NAME_BYTES: usize = KEY_CHARS_MAX + 1;

/// The most bytes of an application's name: as many as PostgreSQL itself keeps.
const APPLICATION_BYTES: usize = 64;

/// A text of limited length.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text<const N: usize> {
    length: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// Sets it, to as much of a text as there is room for.
    pub fn set(&mut self, text: &str) {
        let length = text.floor_char_boundary(N);
        self.bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length = length as u16;
    }

    fn get(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.length).min(N)]).into_owned()
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Place {
    pub(super) at: i64,
    pub(super) database: u32,
    pub(super) role: u32,
    pub(super) pid: i32,
    pub(super) sqlstate: [u8; 5],
    pub(super) session: Text<NAME_BYTES>,
    pub(super) stream: Text<NAME_BYTES>,
    pub(super) request: Text<NAME_BYTES>,
    pub(super) application: Text<APPLICATION_BYTES>,
}

impl Place {
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

/// The ring. Its places follow it.
#[repr(C, align(64))]
pub struct ErrorRing {
    places: usize,
    /// How many errors were noted.
    noted: u64,
}

impl ErrorRing {
    /// A ring without an error.
    pub fn new(places: usize) -> ErrorRing {
        ErrorRing { places, noted: 0 }
    }

    /// Notes one more error over the oldest one.
    pub(super) fn note(&mut self, fill: impl FnOnce(&mut Place)) {
        if self.places > 0 {
            let number = self.noted;
            self.noted += 1;
            fill(self.place(number));
        }
    }

    /// The errors of a database, the newest first.
    pub fn newest_of(&mut self, database: u32) -> Vec<NotedError> {
        let kept = self.noted.min(self.places as u64);
        let newest = self.noted;
        let mut all = Vec::new();
        for back in 1..=kept {
            let place = self.place(newest - back);
            if place.database == database {
                all.push(place.read());
            }
        }
        all
    }

    fn place(&mut self, number: u64) -> &mut Place {
        let number = number as usize % self.places;
        // SAFETY: the places follow the ring in shared memory, as many as it was made with. They were all zeros at first,
        // which are valid.
        unsafe { &mut *(&raw mut *self).add(1).cast::<Place>().add(number) }
    }
}

/// The size of a ring of so many errors.
pub fn ring_bytes(places: usize) -> usize {
    size_of::<ErrorRing>() + places * size_of::<Place>()
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
