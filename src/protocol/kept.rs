//! What is kept of a request: its outcome, or where it stands among those of its stream.

use crate::domain::decision::Turn;
use crate::domain::identity::Digest;
use crate::domain::sequence::{self, Acked, Kept, Order, Place};
use crate::error::Error;
use crate::protocol::numbered::Numbered;
use crate::protocol::request::{Keyed, Request};
use crate::store::outcome::{self, Outcome};
use crate::store::rel::Snapshot;
use crate::store::reply;
use crate::store::stream;

/// What was found.
pub struct Found {
    /// The outcome, of a keyed request also an expired one.
    pub outcome: Option<Outcome>,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
    /// Whether the request may be executed at all.
    pub turn: Turn,
    /// Where a numbered request stands.
    pub place: Option<Place>,
}

/// Finds it; `lock` is what is locked for it. A caller that holds that lock says so: then nothing changes
/// under its eyes.
pub fn find(request: &Request<'_>, lock: &Digest, asked_at: i64, under_lock: bool) -> Result<Found, Error> {
    match request {
        // A keyed request is kept under the digest that is locked.
        Request::Keyed(request) => find_keyed(request, *lock, asked_at),
        Request::Numbered(request) => find_numbered(request, under_lock),
    }
}

fn find_keyed(request: &Keyed<'_>, digest: Digest, asked_at: i64) -> Result<Found, Error> {
    // An inbox renews expired rows in their place, see `store/inbox.rs`; otherwise outcomes never change.
    let snapshot = if request.session.inbox { Snapshot::LatestMvcc } else { Snapshot::Itself };
    let found = outcome::find(&request.wanted(digest), asked_at, snapshot)?;
    let visible = found.as_ref().is_none_or(|found| found.visible);
    let outcome = found.map(|found| found.outcome);
    Ok(Found { outcome, visible, turn: Turn::Now { visible: true }, place: None })
}

fn find_numbered(request: &Numbered<'_>, under_lock: bool) -> Result<Found, Error> {
    let (of, session) = (request.stream_of(), &request.session);
    let snapshot = if under_lock { Snapshot::Itself } else { Snapshot::LatestMvcc };
    let mut replies = match session.order {
        Order::Any => reply::in_slot(of, request.slot(), request.range, snapshot)?.into_iter().collect(),
        Order::Strict => reply::in_stream(of, Some(request.range), snapshot)?,
    };
    let marks = stream::find(of);
    let acked = Acked { stored: marks.acked, visible: marks.visible, said: request.acked };
    let kept: Vec<Kept> = replies.iter().map(|reply| reply.kept).collect();
    let sequence::Found { place, visible } =
        sequence::place(session.order, session.window, acked, &kept, request.range);
    let outcome = match place {
        Place::Kept(at) => replies.swap_remove(at).outcome,
        _ => None,
    };
    let turn = match place {
        Place::Turn(_) => Turn::Now { visible },
        Place::Kept(_) | Place::Past => Turn::Over { visible },
        Place::Ahead(_) | Place::Overlaps(_) => Turn::OutOfSequence,
    };
    Ok(Found { outcome, visible, turn, place: Some(place) })
}
