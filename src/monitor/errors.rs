//! The newest errors of class `ID`, in a ring (`ring.rs`). An error is noted when it is raised, whether a caller catches it or not.

use crate::error::{self, Noted};
use crate::monitor::area::area;
use crate::monitor::counters;
use crate::monitor::ring::NotedError;
use crate::pg::{self, SharedText};

/// Has errors noted, where the library is preloaded.
pub fn init() {
    error::call_when_raised(note);
}

fn note(noted: &Noted<'_>) {
    let Some(area) = area() else { return };
    let (at, database, role, pid) =
        (pg::now_us(), pg::current_database().to_u32(), pg::current_role().to_u32(), pg::process_id());
    let application = pg::application_name();
    counters::count_error(noted.number);
    area.errors.lock().note(noted.number, role, |place| {
        (place.at, place.database, place.pid, place.sqlstate) = (at, database, pid, noted.sqlstate);
        place.session = SharedText::of(noted.session);
        place.stream = SharedText::of(noted.stream);
        place.request = SharedText::of(noted.request);
        place.application = SharedText::of(&application);
    });
}

/// The errors of this database, the newest first.
pub fn read() -> Vec<NotedError> {
    let Some(area) = area() else { return Vec::new() };
    area.errors.lock().newest_of(pg::current_database().to_u32())
}
