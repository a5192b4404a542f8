//! What a client does with its session besides sending requests: heartbeat, ack, allocate, position, close.

use crate::arguments;
use crate::domain::end::End;
use crate::domain::limits::NUMBER_MAX;
use crate::domain::sequence::Order;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::model::{ClientSession, Stream};
use crate::names;
use crate::open;
use crate::pg::{self, Deadline};
use crate::sessions::{giving_up, liveness, resolve, save};
use crate::store::lease;
use crate::store::rel::Snapshot;
use crate::store::reply;
use crate::store::stream::{self, Marks};
use std::rc::Rc;

/// Has this transaction's commit give a sign of life. Returns when the session ends, at the earliest, without another
/// one.
pub fn heartbeat(name: &str) -> Result<i64, Error> {
    let session = writable(name, "idem_heartbeat", "A sign of life is written down.")?;
    liveness::attend_within(&session, Deadline::after(guc::wait_us()))?;
    Ok(pg::now_us().saturating_add(session.timeout_us))
}

/// Stores the mark `upto`: all numbers up to it are answered or given up. Drops the responses that are kept of them.
pub fn ack(name: &str, upto: i64, stream_name: &str) -> Result<(), Error> {
    let session = writable(name, "idem_ack", "What is acknowledged is written down.")?;
    arguments::check_stream(&session.name, stream_name)?;
    arguments::check_mark(&session.name, "upto", upto)?;
    let deadline = Deadline::after(guc::wait_us());
    liveness::attend_within(&session, deadline)?;
    let stream = Stream { session: &session.id, name: stream_name };
    // The mark moves forward only.
    let stored = stream::find(stream).acked;
    if upto <= stored {
        return Ok(());
    }
    giving_up::take_lanes(&session, stream, stored, upto, deadline)?;
    save::save(&session)?;
    let marks = save::locked_marks(&session, stream)?;
    if upto > marks.acked {
        stream::save(stream, &Marks { acked: upto, ..marks });
        drop_responses(&session, stream, upto)?;
    }
    debug_assert!(stream::find(stream).acked >= upto, "the mark only moves forward");
    Ok(())
}

/// Drops the responses of all numbers up to `upto`. Leaves out slots in which a request is at work: its reply soon
/// takes the place.
fn drop_responses(session: &ClientSession, stream: Stream<'_>, upto: i64) -> Result<(), Error> {
    let replies = reply::in_stream(stream, None, Snapshot::LatestMvcc)?;
    for reply in replies.iter().filter(|reply| reply.kept.range.last <= upto && reply.kept.answers) {
        let lock = names::of_lane(session, stream, reply.kept.slot);
        if open::at_work_under(&lock, i64::MAX).is_none() && Tag::request(&lock).try_acquire() {
            reply::drop_response(stream, reply);
        }
    }
    Ok(())
}

/// Hands out `count` numbers and returns the first of them.
pub fn allocate(name: &str, count: i32, stream_name: &str) -> Result<i64, Error> {
    let session = writable(name, "idem_allocate", "What is handed out is written down.")?;
    arguments::check_stream(&session.name, stream_name)?;
    if session.order == Order::Strict {
        return Err(Error::Invalid {
            message: format!("numbers of session \"{}\" cannot be allocated", session.name),
            detail: "Its ordering is \"strict\": the next number is always the last accepted one plus 1.".into(),
            hint: "Ask idem_position() for the next number, or register with ordering => 'any'.",
        });
    }
    let count = check_count(&session, count)?;
    liveness::attend_within(&session, Deadline::after(guc::wait_us()))?;
    save::save(&session)?;
    let stream = Stream { session: &session.id, name: stream_name };
    let marks = save::locked_marks(&session, stream)?;
    let first = position_of(&session, stream_name)?.next_number;
    let allocated = first + count - 1;
    if allocated > NUMBER_MAX {
        return Err(Error::LimitExceeded {
            what: format!("the numbering of session \"{}\"", session.name),
            found: allocated.to_string(),
            limit: NUMBER_MAX.to_string(),
            hint: "Register anew; numbers start again from 1.",
        });
    }
    stream::save(stream, &Marks { allocated, ..marks });
    // After a crash these numbers must not be handed out again, whatever synchronous_commit says.
    pg::force_sync_commit();
    Ok(first)
}

fn check_count(session: &ClientSession, count: i32) -> Result<i64, Error> {
    let what = || format!("the number of numbers to allocate in session \"{}\"", session.name);
    match usize::try_from(count) {
        Ok(asked @ 1..) => {
            arguments::check_batch(what, asked, "Allocate them in several calls, or raise idempotence.max_batch.")?;
            Ok(count.into())
        }
        _ => Err(Error::Invalid {
            message: format!("{} must be at least 1", what()),
            detail: format!("Found {count}."),
            hint: "Ask for as many as are needed.",
        }),
    }
}

/// What is known of a stream. A number is 0 if nothing is known of it.
pub struct Position {
    /// The greatest number that has an outcome.
    pub last_number: i64,
    /// The next number. In strict order it is the only one that is accepted. Otherwise it is the number after all that
    /// were recorded, acknowledged, allocated or leased.
    pub next_number: i64,
    /// The mark: all numbers up to here are answered or given up.
    pub acked: i64,
    /// All numbers up to here were handed out by idem_allocate.
    pub allocated: i64,
}

/// Tells where a stream stands, also in a session that has ended.
pub fn position(name: &str, stream_name: &str) -> Result<Position, Error> {
    let session = resolve::client(name, "see its position")?;
    liveness::check_known(&session)?;
    position_of(&session, stream_name)
}

/// Finds the position of a stream.
pub fn position_of(session: &ClientSession, stream_name: &str) -> Result<Position, Error> {
    arguments::check_stream(&session.name, stream_name)?;
    let stream = Stream { session: &session.id, name: stream_name };
    let replies = reply::in_stream(stream, None, Snapshot::LatestMvcc)?;
    let marks = stream::find(stream);
    let last_number = replies.iter().map(|reply| reply.kept.range.last).max().unwrap_or(0);
    let next_number = match session.order {
        Order::Any => last_number.max(marks.acked).max(marks.allocated).max(lease::greatest_number(stream)) + 1,
        Order::Strict => last_number.max(marks.acked) + 1,
    };
    Ok(Position { last_number, next_number, acked: marks.acked, allocated: marks.allocated })
}

/// Ends a session. Tells whether it was still alive. Closing a session that has ended does nothing, also when nothing
/// is known of it any more, or another transaction has ended it while this one waited for its lock.
pub fn close(name: &str) -> Result<bool, Error> {
    match end(name) {
        Err(Error::SessionEnded { .. }) => Ok(false),
        done => done,
    }
}

fn end(name: &str) -> Result<bool, Error> {
    let session = writable(name, "idem_close", "The end of a session is written down.")?;
    if open::is_in_use(&session.id) {
        return Err(Error::SessionInUse { session: session.name.clone(), action: "close" });
    }
    liveness::check(&session)?;
    if !liveness::take_to_end(&session, "close", Deadline::after(guc::wait_us()))? {
        let what = format!("a transaction of client session \"{}\"", session.name);
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    let run_out = liveness::clock_has_run_out(&session, liveness::last_seen(&session)?);
    liveness::end(&session, if run_out { End::Expired } else { End::Closed });
    Ok(!run_out)
}

/// The client session with this name, if the caller has the right to it and the transaction can write.
fn writable(name: &str, function: &'static str, detail: &str) -> Result<Rc<ClientSession>, Error> {
    let session = resolve::client(name, "use it")?;
    arguments::check_writable(function, || detail.into())?;
    Ok(session)
}
