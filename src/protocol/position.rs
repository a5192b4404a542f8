//! Where a stream of a client session stands.

use crate::domain::sequence::Order;
use crate::error::Error;
use crate::protocol::numbered;
use crate::store::client::Client;
use crate::store::rel::Snapshot;
use crate::store::reply::{self, StreamOf, Wanted};
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
pub fn of(session: &Client, stream_name: &str) -> Result<Position, Error> {
    numbered::check_stream(&session.name, stream_name)?;
    let of = StreamOf { session: &session.id, stream: stream_name };
    let replies = reply::in_stream(of, Wanted::None, Snapshot::LatestMvcc)?;
    let marks = stream::find(of);
    let last_number = replies.iter().map(|reply| reply.kept.range.last).max().unwrap_or(0);
    let next_number = match session.order {
        Order::Any => last_number.max(marks.acked).max(marks.allocated) + 1,
        Order::Strict => last_number.max(marks.acked) + 1,
    };
    Ok(Position { last_number, next_number, acked: marks.acked, allocated: marks.allocated })
}
