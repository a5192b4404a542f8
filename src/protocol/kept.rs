//! What is kept of a request: its outcome, or where it stands among those of its stream.

use crate::domain::decision::Turn;
use crate::domain::identity::Digest;
use crate::domain::sequence::{self, Acked, Kept, Order, Place};
use crate::error::Error;
use crate::protocol::numbered::Numbered;
use crate::protocol::request::{Keyed, Request};
use crate::store::outcome::{self, Outcome};
use crate::store::rel::Snapshot;
use crate::store::reply::{self, Reply, Wanted};
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

/// How a request is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// By a caller that holds its lock: nothing changes under its eyes.
    UnderLock,
    /// By one that does not, to begin it.
    Ahead,
    /// By one that asks what became of it. A range of numbers is then found by any of them: that caller
    /// need not know where it ended.
    Back,
}

/// Finds it; `lock` is what is locked for it.
pub fn find(request: &Request<'_>, lock: &Digest, asked_at: i64, look: Look) -> Result<Found, Error> {
    match request {
        // A keyed request is kept under the digest that is locked.
        Request::Keyed(request) => find_keyed(request, *lock, asked_at),
        Request::Numbered(request) => find_numbered(request, look),
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

fn find_numbered(request: &Numbered<'_>, look: Look) -> Result<Found, Error> {
    let (of, session) = (request.stream_of(), &request.session);
    let snapshot = if look == Look::UnderLock { Snapshot::Itself } else { Snapshot::LatestMvcc };
    let wanted = if look == Look::Back { Wanted::With(request.range.first) } else { Wanted::Of(request.range) };
    let mut replies: Vec<Reply> = match session.order {
        Order::Any => reply::in_slot(of, request.slot(), wanted, snapshot)?.into_iter().collect(),
        Order::Strict => reply::in_stream(of, wanted, snapshot)?,
    };
    let marks = stream::find(of);
    let acked = Acked { stored: marks.acked, visible: marks.visible, said: request.acked };
    let kept: Vec<Kept> = replies.iter().map(|reply| reply.kept).collect();
    let asked = match replies.iter().find(|reply| reply.outcome.is_some()) {
        Some(reply) => reply.kept.range,
        None => request.range,
    };
    let sequence::Found { place, visible } = sequence::place(session.order, session.window, acked, &kept, asked);
    let outcome = match place {
        Place::Kept(at) => replies.swap_remove(at).outcome,
        _ => None,
    };
    let turn = match place {
        Place::Turn(_) => Turn::Now { visible },
        // What overlaps something that was done will never be executed.
        Place::Overlaps(_) if look == Look::Back => Turn::Over { visible },
        Place::Kept(_) | Place::Past => Turn::Over { visible },
        Place::Ahead(_) | Place::Overlaps(_) => Turn::OutOfSequence { visible },
    };
    Ok(Found { outcome, visible, turn, place: Some(place) })
}
