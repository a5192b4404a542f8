//! What a DBA watches in shared memory: counters, the requests in flight, the newest errors.
//!
//! There is such memory only where the library is preloaded. It has, in this order (`area.rs`):
//!
//! * for each backend a *roll*, which has the names of the requests that the backend's transaction has begun (`roll.rs`,
//!   `in_flight.rs`). Only the backend writes its roll. Readers copy a roll, and copy it again if it changed meanwhile;
//! * for each prepared transaction such a roll, filled at PREPARE TRANSACTION;
//! * for each backend a few *cells*, in which the backend counts (`tallies.rs`, `counters.rs`). A cell counts for one session.
//!   Only its backend adds to it, and takes no lock for that. Whoever reads the counters moves them from the cells to the
//!   *tallies*;
//! * the newest errors, in a ring (`ring.rs`). An error is noted when it is raised, whether a caller catches it or not.
//!
//! The tallies, one for each session, are a hash table beside it.
//!
//! **Locks.** Two lightweight locks, taken alone and never together. The first guards the tallies, the keys of the cells,
//! and the rolls of prepared transactions. The second guards the ring of errors. A call that only counts takes none,
//! unless its backend has not counted for the session before. So a replay writes one cache line, of a cell of its own.
//! Nothing is done under a lock that raises an error.
//!
//! **What is lost when.** Cells and tallies stay when a backend ends, however it ends. The names in a roll go with their
//! transaction. If a process crashes, the server makes all shared memory anew. When the server stops in good order, the
//! counters go to a file, and the next start takes them from there (`file.rs`).

mod area;
pub mod counters;
mod file;
pub mod in_flight;
mod ring;
mod roll;
mod tallies;

use crate::error::{self, RequestName};
use crate::pg::{self, SharedText};
use area::area;

pub use area::check_there;
pub use ring::NotedError;
pub use tallies::{Counter, Key, Tally};

/// Reserves the memory, where the postmaster preloads the library, and has errors noted.
pub fn init() {
    error::call_when_raised(note);
    area::init();
}

fn note(sqlstate: &[u8; 5], about: &RequestName) {
    let Some(area) = area() else { return };
    let error = NotedError {
        number: 0,
        newer: 0,
        at: pg::now_us(),
        database: pg::current_database().to_u32(),
        role: pg::current_role(),
        pid: pg::process_id(),
        sqlstate: *sqlstate,
        session: SharedText::of(&about.session),
        stream: SharedText::of(&about.stream),
        request: SharedText::of(&about.request),
        application: SharedText::of(&pg::application_name()),
    };
    let number = error::own_number(sqlstate);
    counters::count_error(number);
    area.errors.lock().note(number, error);
}

/// The newest errors of this database, the newest first.
pub fn errors() -> Vec<NotedError> {
    let Some(area) = area() else { return Vec::new() };
    area.errors.lock().newest_of(pg::current_database().to_u32())
}
