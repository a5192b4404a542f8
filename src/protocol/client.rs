//! What a client does with its session beside sending requests.

use crate::domain::identity::Lane;
use crate::domain::limits::NUMBER_MAX;
use crate::domain::liveness::End;
use crate::domain::sequence::Order;
use crate::domain::time_key;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::open;
use crate::pg::{self, Deadline};
use crate::protocol::giving_up;
use crate::protocol::liveness;
use crate::protocol::numbered;
use crate::protocol::position::{self, Position};
use crate::protocol::saving;
use crate::store::client::Client;
use crate::store::rel::Snapshot;
use crate::store::reply::{self, StreamOf, Wanted};
use crate::store::secret;
use crate::store::session::{Right, Standing};
use crate::store::stream::{self, Marks};
use std::rc::Rc;

/// Gives a sign of life with this transaction's commit; when the session would end after it.
pub fn heartbeat(name: &str) -> Result<i64, Error> {
    let session = writable(name, "idem_heartbeat", "A sign of life is written down.")?;
    liveness::attend_within(&session, Deadline::after(guc::wait_us()))?;
    Ok(pg::now_us().saturating_add(session.timeout_us))
}

/// Notes that all numbers up to `upto` are answered or given up, and drops the replies they had.
pub fn ack(name: &str, upto: i64, stream_name: &str) -> Result<(), Error> {
    let session = writable(name, "idem_ack", "What is acknowledged is written down.")?;
    numbered::check_stream(&session.name, stream_name)?;
    numbered::check_mark(&session.name, "upto", upto)?;
    let deadline = Deadline::after(guc::wait_us());
    liveness::attend_within(&session, deadline)?;
    let of = StreamOf { session: &session.id, stream: stream_name };
    // The mark moves forward only.
    let stored = stream::find(of).acked;
    if upto <= stored {
        return Ok(());
    }
    giving_up::take_lanes(&session, of, stored, upto, deadline)?;
    saving::save(&session)?;
    let marks = saving::locked_marks(&session, of)?;
    if upto > marks.acked {
        stream::save(of, &Marks { acked: upto, ..marks });
        drop_responses(&session, of, upto)?;
    }
    Ok(())
}

/// Only of slots that nobody is at work in: the others are overwritten soon.
fn drop_responses(session: &Client, of: StreamOf<'_>, upto: i64) -> Result<(), Error> {
    for reply in reply::in_stream(of, Wanted::None, Snapshot::LatestMvcc)? {
        if reply.kept.range.last > upto || !reply.kept.answers {
            continue;
        }
        let lane = match session.order {
            Order::Any => Lane::Slot(reply.kept.slot),
            Order::Strict => Lane::Line,
        };
        let lock = secret::digest_of_lane(of.session, of.stream, lane);
        if open::at_work_under(&lock).is_none() && Tag::request(&lock).try_acquire() {
            reply::drop_response(of, &reply)?;
        }
    }
    Ok(())
}

/// Hands out `count` numbers; gives the first.
pub fn allocate(name: &str, count: i32, stream_name: &str) -> Result<i64, Error> {
    let session = writable(name, "idem_allocate", "What is handed out is written down.")?;
    numbered::check_stream(&session.name, stream_name)?;
    if session.order == Order::Strict {
        return Err(Error::Invalid {
            message: format!("numbers of session \"{}\" cannot be allocated", session.name),
            detail: "Its ordering is \"strict\": the next number is always the last accepted one plus 1.".into(),
            hint: "Ask idem_position() for the next number, or register with ordering => 'any'.",
        });
    }
    let count = check_count(&session, count)?;
    liveness::attend_within(&session, Deadline::after(guc::wait_us()))?;
    saving::save(&session)?;
    let of = StreamOf { session: &session.id, stream: stream_name };
    let marks = saving::locked_marks(&session, of)?;
    let first = position::of(&session, stream_name)?.next_number;
    let allocated = first + count - 1;
    if allocated > NUMBER_MAX {
        return Err(Error::LimitExceeded {
            what: format!("the numbering of session \"{}\"", session.name),
            found: allocated.to_string(),
            limit: NUMBER_MAX.to_string(),
            hint: "Register anew; numbers start again from 1.",
        });
    }
    stream::save(of, &Marks { allocated, ..marks });
    // No crash may have them handed out again, whatever synchronous_commit says.
    pg::force_sync_commit();
    Ok(first)
}

fn check_count(session: &Client, count: i32) -> Result<i64, Error> {
    match usize::try_from(count) {
        Ok(0) | Err(_) => Err(Error::Invalid {
            message: format!("the number of numbers to allocate in session \"{}\" must be at least 1", session.name),
            detail: format!("Found {count}."),
            hint: "Ask for as many as are needed.",
        }),
        Ok(asked) if asked > guc::max_batch() => Err(Error::LimitExceeded {
            what: format!("the number of numbers to allocate in session \"{}\"", session.name),
            found: count.to_string(),
            limit: guc::max_batch().to_string(),
            hint: "Allocate them in several calls, or raise idempotence.max_batch.",
        }),
        Ok(_) => Ok(count.into()),
    }
}

/// Where a stream stands. Of a session that has ended it still answers.
pub fn position(name: &str, stream_name: &str) -> Result<Position, Error> {
    let session = of_caller(name, "see its position")?;
    liveness::check_known(&session)?;
    position::of(&session, stream_name)
}

/// Ends a session; whether it was still alive. To close it again does nothing, also when nothing is
/// known of it any more.
pub fn close(name: &str) -> Result<bool, Error> {
    let session = match writable(name, "idem_close", "The end of a session is written down.") {
        Err(Error::SessionEnded { .. }) => return Ok(false),
        session => session?,
    };
    if open::is_in_use(&session.id) {
        return Err(Error::SessionInUse { session: session.name.clone(), action: "close" });
    }
    match liveness::check(&session) {
        Ok(_) => {}
        Err(Error::SessionEnded { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    if !Tag::client(&session.id).acquire_in_turns(guc::wait_us()) {
        let what = format!("a transaction of client session \"{}\"", session.name);
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    // Others may have ended it while its lock was waited for.
    match liveness::last_seen(&session) {
        Ok(seen) => {
            let run_out = liveness::clock_has_run_out(&session, seen);
            liveness::end(&session, if run_out { End::Expired } else { End::Closed });
            Ok(!run_out)
        }
        Err(Error::SessionEnded { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A client session that the caller has the right to, in a transaction that can write.
fn writable(name: &str, function: &'static str, detail: &str) -> Result<Rc<Client>, Error> {
    let session = of_caller(name, "use it")?;
    if pg::read_only() {
        return Err(Error::ReadOnly { function, detail: detail.into() });
    }
    Ok(session)
}

/// A client session that the caller has the right to, ended or not.
fn of_caller(name: &str, action: &'static str) -> Result<Rc<Client>, Error> {
    match time_key::client_session(name) {
        Some(id) => Client::of_caller(name, &id, action),
        None => Err(not_a_client_session(name, action)),
    }
}

fn not_a_client_session(name: &str, action: &'static str) -> Error {
    let detail = match Standing::of_caller(name, Right::Use, action) {
        Ok(_) => "It is a standing session: it has no numbers, and does not end by itself.",
        Err(Error::NoSuchSession { .. }) => "Client sessions have a UUID for a name, which the server makes up.",
        Err(error) => return error,
    };
    let message = format!("session \"{name}\" is not a client session");
    Error::Invalid { message, detail: detail.into(), hint: "Use the session that idem_register() gave." }
}
