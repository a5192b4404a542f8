//! The step of a client session from unlogged to logged, and what its client says of a stream.

use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::model::{ClientSession, Stream};
use crate::names;
use crate::store::cache;
use crate::store::rel::Snapshot;
use crate::store::reply::{self, WithOutcome};
use crate::store::session::client;
use crate::store::stream::{self, Marks};

/// Makes a session durable, in the transaction that gives it its first outcome, checkpoint or mark. The
/// first ones of one session wait for each other here, once.
pub fn save(session: &ClientSession) -> Result<(), Error> {
    if is_saved(session) {
        return Ok(());
    }
    if !names::save(&session.id).acquire(guc::wait_us()) {
        let what = format!("the first outcome of client session \"{}\" in another transaction", session.name);
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    if !is_saved(session) {
        client::insert(session);
        // Nobody has these alone, so they are had at once.
        for by in session.known_by() {
            names::save_of_registered(session.owner, by).try_share();
        }
    }
    Ok(())
}

fn is_saved(session: &ClientSession) -> bool {
    if cache::with(|cache| cache.saved.get(&session.id).is_some()) {
        return true;
    }
    let Some(saved) = client::find(&session.id) else { return false };
    if saved.committed {
        cache::with(|cache| cache.saved.put(session.id, ()));
    }
    true
}

/// What is said of a stream, locked against others who say something, to be stored.
pub fn locked_marks(session: &ClientSession, stream: Stream<'_>) -> Result<Marks, Error> {
    if !names::marks(stream).acquire(guc::wait_us()) {
        let what = format!("an allocation or acknowledgement in client session \"{}\"", session.name);
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    let marks = stream::find(stream);
    check_new(session, stream, &marks)?;
    Ok(marks)
}

/// Notes a named stream when it comes, so that those of a session can be counted. Left to another transaction
/// that is just storing something of it, or to the next outcome if that one rolls back.
pub fn note_stream(session: &ClientSession, stream: Stream<'_>, marks: &Marks) -> Result<(), Error> {
    if stream.name.is_empty() || marks.noted || !names::marks(stream).try_acquire() {
        return Ok(());
    }
    let marks = stream::find(stream);
    if !marks.noted {
        check_new(session, stream, &marks)?;
        stream::save(stream, &marks);
    }
    Ok(())
}

/// Refuses a stream that is one too many. One that has replies is not new: its note may have been rolled back.
fn check_new(session: &ClientSession, stream: Stream<'_>, marks: &Marks) -> Result<(), Error> {
    if stream.name.is_empty() || marks.noted {
        return Ok(());
    }
    let (count, limit) = (stream::count(stream.session), guc::max_streams());
    if count < limit || !reply::in_stream(stream, WithOutcome::None, Snapshot::LatestMvcc)?.is_empty() {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: format!("the number of streams of client session \"{}\"", session.name),
        found: format!("{count} besides this one"),
        limit: limit.to_string(),
        hint: "A stream is a numbering that goes on, a partition say; it is not meant for one request. Use those that there are, or raise idempotence.max_streams.",
    })
}

/// Stores that all numbers up to `acked` are answered or given up, as said along with a request. Where it
/// gives up none it only saves space, and is left to another transaction that is just storing a mark of this
/// stream.
pub fn note_ack(session: &ClientSession, stream: Stream<'_>, acked: i64, gives_up: bool) -> Result<(), Error> {
    let marks = if gives_up {
        locked_marks(session, stream)?
    } else if names::marks(stream).try_acquire() {
        stream::find(stream)
    } else {
        return Ok(());
    };
    if acked > marks.acked {
        stream::save(stream, &Marks { acked, ..marks });
    }
    Ok(())
}
