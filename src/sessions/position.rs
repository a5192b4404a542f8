//! Where a stream of a client session stands.

use crate::arguments;
use crate::domain::sequence::Order;
use crate::error::Error;
use crate::model::{ClientSession, Stream};
use crate::store::lease;
use crate::store::rel::Snapshot;
use crate::store::reply::{self, WithOutcome};
use crate::store::stream;

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

/// Finds the position of a stream.
pub fn of(session: &ClientSession, stream_name: &str) -> Result<Position, Error> {
    arguments::check_stream(&session.name, stream_name)?;
    let stream = Stream { session: &session.id, name: stream_name };
    let replies = reply::in_stream(stream, WithOutcome::None, Snapshot::LatestMvcc)?;
    let marks = stream::find(stream);
    let last_number = replies.iter().map(|reply| reply.kept.range.last).max().unwrap_or(0);
    let next_number = match session.order {
        Order::Any => last_number.max(marks.acked).max(marks.allocated).max(lease::greatest_number(stream)) + 1,
        Order::Strict => last_number.max(marks.acked) + 1,
    };
    Ok(Position { last_number, next_number, acked: marks.acked, allocated: marks.allocated })
}
