//! Makes a client session durable, and stores what its client says about a stream.
//!
//! A record of a numbered request comes here in this order (`requests/finish.rs`): it takes the lanes of the numbers that its
//! acknowledgement gives up, saves its session, notes its stream, deletes the checkpoint, writes the
//! reply, and stores the acknowledgement.

use crate::error::{Error, RequestName, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::LockClass;
use crate::model::{ClientSession, Stream};
use crate::names;
use crate::open::Numbers;
use crate::pg::Deadline;
use crate::sessions::giving_up;
use crate::store::cache;
use crate::store::rel::Snapshot;
use crate::store::reply;
use crate::store::session::client;
use crate::store::stream::{self, Marks};

/// Makes a session durable, in the transaction that stores its first outcome, checkpoint, mark or allocation, or that
/// registers it in a way that no crash may undo. Such transactions of one session wait for each other here until one
/// of them has committed.
pub fn save(session: &ClientSession) -> Result<(), Error> {
    if is_saved(session) {
        return Ok(());
    }
    let what = || format!("the first outcome of client session \"{}\" in another transaction", session.name);
    names::save_lock(&session.id).acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, what)?;
    if !is_saved(session) {
        client::insert(session);
        // Nobody ever takes these locks alone, so they are shared without a wait.
        for by in session.known_by() {
            names::registered_lock(LockClass::SaveOfRegistered, session.owner, by).try_share();
        }
    }
    Ok(())
}

fn is_saved(session: &ClientSession) -> bool {
    if cache::with(|cache| cache.saved.contains_key(&session.id)) {
        return true;
    }
    let Some(saved) = client::find(&session.id) else { return false };
    if saved.committed {
        cache::with(|cache| cache::put(&mut cache.saved, session.id, ()));
    }
    true
}

/// The marks of a stream, for a change. Takes the lock that keeps other transactions from changing them.
pub fn locked_marks(session: &ClientSession, stream: Stream<'_>) -> Result<Marks, Error> {
    let what = || format!("an allocation or acknowledgement in client session \"{}\"", session.name);
    names::marks_lock(stream).acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, what)?;
    let marks = stream::find(stream);
    check_new(session, stream, &marks)?;
    Ok(marks)
}

/// Refuses a new stream if the session has as many as it may have. A stream that has replies is not new, though it may
/// have no row.
fn check_new(session: &ClientSession, stream: Stream<'_>, marks: &Marks) -> Result<(), Error> {
    if stream.name.is_empty() || marks.noted {
        return Ok(());
    }
    let (count, limit) = (stream::count(stream.session), guc::max_streams());
    if count < limit || !reply::in_stream(stream, None, Snapshot::LatestMvcc)?.is_empty() {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: format!("the number of streams of client session \"{}\"", session.name),
        found: format!("{count} besides this one"),
        limit: limit.to_string(),
        hint: "A stream is a numbering that goes on, a partition say; it is not meant for one request. Use those that there are, or raise idempotence.max_streams.",
    })
}

/// The acknowledgement that came with a request, and the marks of its stream.
pub struct Ack<'a> {
    session: &'a ClientSession,
    stream: Stream<'a>,
    /// The marks that were stored before this acknowledgement.
    marks: Marks,
    acked: i64,
    /// Whether it gives numbers up that have no outcome. Their lanes are taken then.
    gives_up: bool,
}

impl<'a> Ack<'a> {
    /// Takes the lanes of the numbers that the acknowledgement gives up which came with a request of these numbers. By the
    /// order of locks this comes before the locks of saving.
    pub fn of(
        session: &'a ClientSession,
        stream: Stream<'a>,
        numbers: Numbers,
        deadline: Deadline,
    ) -> Result<Ack<'a>, Error> {
        let (first, acked) = (numbers.range.first, numbers.acked);
        if acked == 0 && stream.name.is_empty() {
            // Nothing depends on the marks: there is no acknowledgement to store and no named stream to note.
            debug_assert!(first > stream::find(stream).acked, "its lane's lock keeps a number from being given up");
            return Ok(Ack { session, stream, marks: Marks::default(), acked, gives_up: false });
        }
        let marks = stream::find(stream);
        if first <= marks.acked {
            // It was given up since it was begun. The request's lock on its lane prevents that. If it happened all the same,
            // this is the last moment to find out.
            let name = RequestName::in_stream(&session.name, stream.name, &first.to_string());
            return Err(Error::Discarded { name, window: session.window });
        }
        let gives_up = acked > marks.acked && giving_up::take_lanes(session, stream, marks.acked, acked, deadline)?;
        Ok(Ack { session, stream, marks, acked, gives_up })
    }

    /// Saves the session, and stores a row for a new named stream, so that the streams of a session can be counted. If another
    /// transaction is just storing the marks of the stream, that transaction stores the row. If it rolls back, the next
    /// outcome stores it.
    pub fn save_session(&self) -> Result<(), Error> {
        save(self.session)?;
        if self.stream.name.is_empty() || self.marks.noted || !names::marks_lock(self.stream).try_acquire() {
            return Ok(());
        }
        let marks = stream::find(self.stream);
        if !marks.noted {
            check_new(self.session, self.stream, &marks)?;
            stream::save(self.stream, &marks);
        }
        Ok(())
    }

    /// Stores the acknowledgement, if it is above the stored mark: all numbers up to it are answered or given up. One that
    /// gives no number up is only a hint that saves space. It is dropped if another transaction is just changing the marks
    /// of this stream.
    pub fn note(self) -> Result<(), Error> {
        if self.acked <= self.marks.acked {
            return Ok(());
        }
        let marks = if self.gives_up {
            locked_marks(self.session, self.stream)?
        } else if names::marks_lock(self.stream).try_acquire() {
            stream::find(self.stream)
        } else {
            return Ok(());
        };
        if self.acked > marks.acked {
            stream::save(self.stream, &Marks { acked: self.acked, ..marks });
        }
        Ok(())
    }

    /// Saves the session, notes the stream, and stores an acknowledgement that gives numbers up. Otherwise the
    /// acknowledgement is only stored with the outcome.
    pub fn save(self) -> Result<(), Error> {
        self.save_session()?;
        if self.gives_up { self.note() } else { Ok(()) }
    }
}
