//! The newest errors of class `ID`, in a ring. An error is noted when it is raised, whether a caller catches it or not.

use crate::domain::limits::KEY_CHARS_MAX;
use crate::error::{self, Noted};
use crate::monitor::area::area;
use crate::pg;
use pgrx::pg_sys;

/// The most bytes of a name that are kept: as many as the longest key in plain letters has.
const NAME_BYTES: usize = KEY_CHARS_MAX + 1;

/// The most bytes of an application's name: as many as PostgreSQL itself keeps.
const APPLICATION_BYTES: usize = 64;

/// A text of limited length.
#[derive(Clone, Copy)]
#[repr(C)]
struct Text<const N: usize> {
    length: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    fn set(&mut self, text: &str) {
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
struct Place {
    at: i64,
    database: u32,
    role: u32,
    pid: i32,
    sqlstate: [u8; 5],
    session: Text<NAME_BYTES>,
    stream: Text<NAME_BYTES>,
    request: Text<NAME_BYTES>,
    application: Text<APPLICATION_BYTES>,
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

/// Has errors noted, where the library is preloaded.
pub fn init() {
    error::call_when_raised(note);
}

fn note(noted: &Noted<'_>) {
    let Some(area) = area() else { return };
    let (at, database, role, pid) =
        (pg::now_us(), pg::current_database().to_u32(), pg::current_role().to_u32(), pg::process_id());
    let application = pg::application_name();
    let mut ring = area.errors.lock();
    if ring.places == 0 {
        return;
    }
    let number = ring.noted;
    ring.noted += 1;
    let place = ring.place(number);
    (place.at, place.database, place.role, place.pid, place.sqlstate) = (at, database, role, pid, noted.sqlstate);
    place.session.set(noted.session);
    place.stream.set(noted.stream);
    place.request.set(noted.request);
    place.application.set(&application);
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

/// The errors of this database, the newest first.
pub fn read() -> Vec<NotedError> {
    let Some(area) = area() else { return Vec::new() };
    let database = pg::current_database().to_u32();
    let mut all = Vec::new();
    let mut ring = area.errors.lock();
    let kept = ring.noted.min(ring.places as u64);
    for back in 1..=kept {
        let number = ring.noted - back;
        let place = ring.place(number);
        if place.database != database {
            continue;
        }
        all.push(NotedError {
            at: place.at,
            session: place.session.get(),
            stream: place.stream.get(),
            request: place.request.get(),
            role: place.role.into(),
            sqlstate: String::from_utf8_lossy(&place.sqlstate).into_owned(),
            application: place.application.get(),
            pid: place.pid,
        });
    }
    all
}
