//! Makes a client session durable, and stores what its client says about a stream.
//!
//! A record of a numbered request comes here in this order (`requests/finish.rs`): it takes the lanes of the numbers that its
//! acknowledgement gives up (`requests/saving.rs`), saves its session, notes its stream, deletes the checkpoint, writes the
//! reply, and stores the acknowledgement.

use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::LockClass;
use crate::model::{ClientSession, Stream};
use crate::names;
use crate::store::cache;
use crate::store::rel::Snapshot;
use crate::store::reply::{self, WithOutcome};
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

/// Stores a row for a new named stream, so that the streams of a session can be counted. If another transaction is just
/// storing the marks of the stream, that transaction stores the row. If it rolls back, the next outcome stores it.
pub fn note_stream(session: &ClientSession, stream: Stream<'_>, marks: &Marks) -> Result<(), Error> {
    if stream.name.is_empty() || marks.noted || !names::marks_lock(stream).try_acquire() {
        return Ok(());
    }
    let marks = stream::find(stream);
    if !marks.noted {
        check_new(session, stream, &marks)?;
        stream::save(stream, &marks);
    }
    Ok(())
}

/// Refuses a new stream if the session has as many as it may have. A stream that has replies is not new, though it may
/// have no row.
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

/// Stores the mark `acked` that came with a request: all numbers up to it are answered or given up. A mark that gives
/// no number up is only a hint that saves space. It is dropped if another transaction is just changing the marks of
/// this stream.
pub fn note_ack(session: &ClientSession, stream: Stream<'_>, acked: i64, gives_up: bool) -> Result<(), Error> {
    let marks = if gives_up {
        locked_marks(session, stream)?
    } else if names::marks_lock(stream).try_acquire() {
        stream::find(stream)
    } else {
        return Ok(());
    };
    if acked > marks.acked {
        stream::save(stream, &Marks { acked, ..marks });
    }
    Ok(())
}
