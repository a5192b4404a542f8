//! Where a stream of a client session stands.

use crate::arguments;
use crate::domain::sequence::Order;
use crate::error::Error;
use crate::model::{ClientSession, Stream};
use crate::store::rel::Snapshot;
use crate::store::reply::{self, WithOutcome};
use crate::store::stream;

/// What is known of a stream; 0 where nothing is.
pub struct Position {
    /// The greatest number that has an outcome.
    pub last_number: i64,
    /// The next: in strict order the only one that is accepted; otherwise the first that was neither
    /// recorded, acknowledged nor allocated, nor lies below one that was.
    pub next_number: i64,
    /// Up to where the client has all answers.
    pub acked: i64,
    /// Up to where numbers were handed out.
    pub allocated: i64,
}

/// Finds it.
pub fn of(session: &ClientSession, stream_name: &str) -> Result<Position, Error> {
    arguments::check_stream(&session.name, stream_name)?;
    let stream = Stream { session: &session.id, name: stream_name };
    let replies = reply::in_stream(stream, WithOutcome::None, Snapshot::LatestMvcc)?;
    let marks = stream::find(stream);
    let last_number = replies.iter().map(|reply| reply.kept.range.last).max().unwrap_or(0);
    let next_number = match session.order {
        Order::Any => last_number.max(marks.acked).max(marks.allocated) + 1,
        Order::Strict => last_number.max(marks.acked) + 1,
    };
    Ok(Position { last_number, next_number, acked: marks.acked, allocated: marks.allocated })
}
