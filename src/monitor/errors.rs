//! The newest errors of class `ID`, in a ring (`ring.rs`). An error is noted when it is raised, whether a caller catches it or not.

use crate::error::{self, RequestName};
use crate::monitor::area::area;
use crate::monitor::counters;
use crate::monitor::ring::NotedError;
use crate::pg::{self, SharedText};

/// Has errors noted, where the library is preloaded.
pub fn init() {
    error::call_when_raised(note);
}

fn note(sqlstate: &[u8; 5], about: &RequestName) {
    let Some(area) = area() else { return };
    let (at, database, role, pid) =
        (pg::now_us(), pg::current_database().to_u32(), pg::current_role().to_u32(), pg::process_id());
    let application = pg::application_name();
    let number = error::own_number(sqlstate);
    counters::count_error(number);
    area.errors.lock().note(number, role, |place| {
        (place.at, place.database, place.pid, place.sqlstate) = (at, database, pid, *sqlstate);
        place.session = SharedText::of(&about.session);
        place.stream = SharedText::of(&about.stream);
        place.request = SharedText::of(&about.request);
        place.application = SharedText::of(&application);
    });
}

/// The errors of this database, the newest first.
pub fn read() -> Vec<NotedError> {
    let Some(area) = area() else { return Vec::new() };
    area.errors.lock().newest_of(pg::current_database().to_u32())
}
