//! Giving numbers up: a mark moves over numbers that have no outcome. From then on these numbers never take effect.
//!
//! The transaction that stores such a mark first takes the lanes of these numbers and keeps them to its end. So it
//! waits for a number that is at work, which then either has its outcome before the mark counts or never gets one. A
//! number that is begun later waits for its lane and then finds the mark. Numbers that have outcomes need no lane, so a
//! client that leaves no number out takes no lanes.

use crate::domain::identity::Digest;
use crate::domain::sequence::{self, Order};
use crate::error::{Error, RequestName, WAIT_BY_SETTING};
use crate::lock::Tag;
use crate::model::{ClientSession, Stream};
use crate::names;
use crate::open;
use crate::pg::{self, Deadline};
use crate::store::lease;
use crate::store::rel::Snapshot;
use crate::store::reply;
use crate::wake::Sleeper;

/// Takes the lanes of the numbers that are given up when the mark moves from `stored` to `upto`. Tells whether there
/// are any.
pub fn take_lanes(
    session: &ClientSession,
    stream: Stream<'_>,
    stored: i64,
    upto: i64,
    deadline: Deadline,
) -> Result<bool, Error> {
    let lanes = lanes(session, stream, stored, upto)?;
    for (slot, number) in &lanes {
        let lock = names::of_lane(session, stream, *slot);
        if let Some(own) = open::at_work_under(&lock, upto) {
            return Err(Error::GivesUpOwn(own));
        }
        let name = || RequestName::in_stream(&session.name, stream.name, &number.to_string());
        let acquire = || Tag::request(&lock).acquire(deadline.left_us());
        let mut sleeper = None;
        loop {
            if !open::with_room(name, acquire)? {
                return Err(Error::WaitRanOut { what: name().to_string(), hint: WAIT_BY_SETTING });
            }
            let Some(until) = supersede_lease(stream, &lock, upto)? else { break };
            // The holder of the lease needs the lane to record.
            Tag::request(&lock).release();
            let sleeper = sleeper.get_or_insert_with(|| Sleeper::of(&lock, deadline.left_us()));
            if !sleeper.sleep(until) {
                return Err(Error::Leased { name: name(), until: pg::describe_moment(until), hint: WAIT_BY_SETTING });
            }
        }
    }
    Ok(!lanes.is_empty())
}

/// Deletes the lease in a lane if its number is given up and the lease has run out: from then on its holder is refused.
/// Gives when the lease runs out if it has not.
fn supersede_lease(stream: Stream<'_>, lock: &Digest, upto: i64) -> Result<Option<i64>, Error> {
    let found = lease::find(stream, lock, Snapshot::Itself)?;
    let Some(found) = found.filter(|found| found.range().is_some_and(|range| range.first <= upto)) else {
        return Ok(None);
    };
    if found.lease.runs_at(pg::now_us()) {
        return Ok(Some(found.lease.until));
    }
    lease::delete(stream, lock)?;
    lease::keep_through_crash();
    Ok(None)
}

/// These lanes in the order of locking, each by a slot of it, with a number in it that is given up.
fn lanes(session: &ClientSession, stream: Stream<'_>, stored: i64, upto: i64) -> Result<Vec<(i32, i64)>, Error> {
    debug_assert!(upto > stored, "the mark moves forward");
    let mut lanes = Vec::new();
    match session.order {
        Order::Any => {
            for (slot, number) in sequence::newest_of_slots(stored, upto, session.window) {
                let kept = reply::in_slot(stream, slot, None, Snapshot::LatestMvcc)?;
                if kept.is_none_or(|reply| reply.kept.range.first < number) {
                    lanes.push((slot, number));
                }
            }
        }
        Order::Strict => {
            let replies = reply::in_stream(stream, None, Snapshot::LatestMvcc)?;
            let accepted = replies.iter().map(|reply| reply.kept.range.last).max().unwrap_or(0).max(stored);
            if upto > accepted {
                lanes.push((0, accepted + 1));
            }
        }
    }
    Ok(lanes)
}
