//! What is stored along with anything that is stored of a numbered request: its session, its stream, and the
//! acknowledgement that came with it.

use crate::error::Error;
use crate::open::Numbers;
use crate::pg::Deadline;
use crate::requests::numbered::Numbered;
use crate::sessions::{giving_up, save};
use crate::store::stream::{self, Marks};

/// The acknowledgement that came with a request, and the marks of its stream.
pub struct Ack {
    /// The marks that were stored before this acknowledgement.
    marks: Marks,
    acked: i64,
    /// Whether it gives numbers up that have no outcome. Their lanes are taken then.
    gives_up: bool,
}

/// Takes the lanes of the numbers that the request's acknowledgement gives up. By the order of locks this comes before
/// the locks of saving.
pub fn before(request: &Numbered<'_>, numbers: Numbers, deadline: Deadline) -> Result<Ack, Error> {
    let stream = request.stream();
    if numbers.acked == 0 && stream.name.is_empty() {
        // Nothing depends on the marks: there is no acknowledgement to store and no named stream to note.
        debug_assert!(
            numbers.range.first > stream::find(stream).acked,
            "its lane's lock keeps a number from being given up"
        );
        return Ok(Ack { marks: Marks::default(), acked: 0, gives_up: false });
    }
    let marks = stream::find(stream);
    if numbers.range.first <= marks.acked {
        // It was given up since it was begun. The request's lock on its lane prevents that. If it happened all the same, this
        // is the last moment to find out.
        return Err(Error::Discarded { name: request.name(), window: request.session.window });
    }
    let acked = numbers.acked;
    let gives_up =
        acked > marks.acked && giving_up::take_lanes(&request.session, stream, marks.acked, acked, deadline)?;
    Ok(Ack { marks, acked, gives_up })
}

impl Ack {
    /// Saves the session and notes the stream.
    pub fn save_session(&self, request: &Numbered<'_>) -> Result<(), Error> {
        save::save(&request.session)?;
        save::note_stream(&request.session, request.stream(), &self.marks)
    }

    /// Stores the acknowledgement, if it is above the stored mark.
    pub fn note(self, request: &Numbered<'_>) -> Result<(), Error> {
        if self.acked <= self.marks.acked {
            return Ok(());
        }
        save::note_ack(&request.session, request.stream(), self.acked, self.gives_up)
    }

    /// Saves the session, notes the stream, and stores an acknowledgement that gives numbers up. Otherwise the
    /// acknowledgement is only stored with the outcome.
    pub fn save(self, request: &Numbered<'_>) -> Result<(), Error> {
        self.save_session(request)?;
        if self.gives_up { self.note(request) } else { Ok(()) }
    }
}
