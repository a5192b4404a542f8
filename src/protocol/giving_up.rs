//! Giving numbers up. A mark moves over numbers that have no outcome: these never take effect afterwards.
//!
//! Whoever stores such a mark has the lanes of these numbers, to the end of its transaction: one of them
//! that is at work is waited for, so that it has its outcome before the mark counts or none at all; one that
//! is begun later waits, and finds the mark. Numbers that have outcomes need no lane, so this costs nothing
//! to a client that leaves no number out.

use crate::domain::identity::Lane;
use crate::domain::sequence::{self, Order, Range};
use crate::error::{Error, Name, WAIT_BY_SETTING};
use crate::lock::Tag;
use crate::open;
use crate::pg::{self, Deadline};
use crate::protocol::numbered::Numbered;
use crate::store::client::Client;
use crate::store::rel::Snapshot;
use crate::store::reply::{self, StreamOf, Wanted};
use crate::store::secret;
use crate::store::stream::Marks;

/// Takes the lanes of the numbers that a mark moved from `stored` to `upto` gives up; whether there are any.
pub fn take_lanes(
    session: &Client,
    of: StreamOf<'_>,
    stored: i64,
    upto: i64,
    deadline: Deadline,
) -> Result<bool, Error> {
    let lanes = lanes(session, of, stored, upto)?;
    for (lane, number) in &lanes {
        let lock = secret::digest_of_lane(of.session, of.stream, *lane);
        if let Some(own) = open::begun_under(&lock, upto) {
            return Err(Error::GivesUpOwn(own));
        }
        let name = || Name::in_stream(&session.name, of.stream, &number.to_string());
        let acquire = || Tag::request(&lock).acquire(deadline.left_us());
        if !pg::or_out_of_memory(acquire).map_err(|error| open::no_room(name(), &error))? {
            return Err(Error::WaitRanOut { what: name().to_string(), hint: WAIT_BY_SETTING });
        }
    }
    Ok(!lanes.is_empty())
}

/// The lanes, in their order, each with a number of it that is given up.
fn lanes(session: &Client, of: StreamOf<'_>, stored: i64, upto: i64) -> Result<Vec<(Lane, i64)>, Error> {
    let mut lanes = Vec::new();
    if upto <= stored {
        return Ok(lanes);
    }
    match session.order {
        Order::Any => {
            for (slot, number) in sequence::newest_of_slots(stored, upto, session.window) {
                let kept = reply::in_slot(of, slot, Wanted::None, Snapshot::LatestMvcc)?;
                if kept.is_none_or(|reply| reply.kept.range.first < number) {
                    lanes.push((Lane::Slot(slot), number));
                }
            }
        }
        Order::Strict => {
            let replies = reply::in_stream(of, Wanted::None, Snapshot::LatestMvcc)?;
            let accepted = replies.iter().map(|reply| reply.kept.range.last).max().unwrap_or(0).max(stored);
            if upto > accepted {
                lanes.push((Lane::Line, accepted + 1));
            }
        }
    }
    Ok(lanes)
}

/// Refuses a number that was given up since it was begun. Its lane keeps that from happening; a record is
/// the last moment at which it can be found out if it did.
pub fn refuse_given_up(request: &Numbered<'_>, range: Range, marks: &Marks) -> Result<(), Error> {
    if range.first <= marks.acked {
        return Err(Error::OutcomeDiscarded { name: request.name(), window: request.session.window });
    }
    Ok(())
}
