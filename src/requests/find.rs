//! Finds what is kept of a request: its outcome and, for a numbered request, its place in its stream.

use crate::domain::identity::Digest;
use crate::domain::sequence::{self, Acked, Kept, Order, Place, Placed, Range};
use crate::error::Error;
use crate::requests::keyed::Keyed;
use crate::requests::numbered::Numbered;
use crate::requests::request::Request;
use crate::store::claimed::Claimed;
use crate::store::outcome::{self, Outcome};
use crate::store::rel::{Access, Snapshot};
use crate::store::reply::{self, Reply};
use crate::store::stream;
use crate::store::tuple::Hint;

/// What is kept of a request.
pub struct KeptRequest {
    /// The outcome. That of a keyed request may be expired.
    pub outcome: Option<Outcome>,
    /// Where the request stands in its stream. One with a key is always next.
    pub placed: Placed,
    /// Where the reply stands that the request's own reply is written over.
    pub former: Option<Hint>,
    /// The locks of the record, given back with this unless the request starts.
    pub claimed: Option<Claimed>,
}

/// Who looks for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Seeker {
    /// A caller that wants to begin the request and holds its lock. What is kept of it does not change meanwhile.
    LockHolder,
    /// A caller that wants to begin the request and does not hold its lock.
    Beginner,
    /// A caller that wants to begin the request, and takes its lock next unless it finds an outcome.
    Passer,
    /// A caller that asks what became of the request.
    Inquirer,
}

/// Finds what is kept of a request; `lock` is the digest that is locked for it.
pub fn find(request: &Request<'_>, lock: &Digest, asked_at: i64, seeker: Seeker) -> Result<KeptRequest, Error> {
    match request {
        // The digest that is locked for a keyed request is the one that it is kept under.
        Request::Keyed(request) => {
            let (outcome, claimed) = find_keyed(request, *lock, asked_at, seeker)?;
            Ok(KeptRequest { outcome, placed: Placed { place: Place::Next(0), visible: true }, former: None, claimed })
        }
        Request::Numbered(request) => find_numbered(request, seeker),
    }
}

fn find_keyed(
    request: &Keyed<'_>,
    digest: Digest,
    asked_at: i64,
    seeker: Seeker,
) -> Result<(Option<Outcome>, Option<Claimed>), Error> {
    if let Some(kept) = &request.journal {
        // Nobody else changes the row while this transaction has it locked.
        let row = if seeker == Seeker::LockHolder { kept.row()? } else { kept.row_anew()? };
        return Ok((row.and_then(|row| row.outcome), None));
    }
    let (snapshot, access) = match seeker {
        // An inbox renews expired rows in their place, see `store/inbox.rs`. All other outcome rows never change.
        _ if request.session.inbox => (Snapshot::LatestMvcc, Access::Read),
        // Nobody records the request beside whoever holds its lock, but an import, which has none (`import.rs`).
        Seeker::LockHolder => (Snapshot::WithInserted, Access::Claim),
        _ => (Snapshot::Itself, Access::Read),
    };
    let probe = request.probe(digest);
    let found = outcome::find(&probe, asked_at, snapshot, access)?;
    if found.0.is_none() && seeker == Seeker::Beginner {
        // A redaction may just have moved the outcome behind this look, see `store/outcome.rs`. A beginner without the
        // lock gets here only if another transaction has the lock, or if it cannot take any. Lookup looks twice itself.
        return outcome::find(&probe, asked_at, snapshot, access);
    }
    Ok(found)
}

fn find_numbered(request: &Numbered<'_>, seeker: Seeker) -> Result<KeptRequest, Error> {
    let (stream, session) = (request.stream(), &request.session);
    let snapshot = if seeker == Seeker::LockHolder { Snapshot::Itself } else { Snapshot::LatestMvcc };
    let mut replies = replies(request, snapshot)?;
    let marks = stream::find(stream);
    let acked = Acked { stored: marks.acked, visible: marks.visible, with_request: request.acked };
    let kept: Vec<Kept> = replies.iter().map(|reply| reply.kept).collect();
    let asked = match replies.iter().find(|reply| reply.outcome.is_some()) {
        Some(reply) if request.by_any_number => reply.kept.range,
        _ => request.range,
    };
    let mut placed = sequence::place(session.order, session.window, acked, &kept, asked);
    let (outcome, former) = match placed.place {
        Place::Kept(at) => (replies.swap_remove(at).outcome, None),
        Place::Next(slot) => (None, replies.iter().find(|reply| reply.kept.slot == slot).map(|reply| reply.hint)),
        _ => (None, None),
    };
    if seeker == Seeker::Inquirer && matches!(placed.place, Place::Overlaps(_)) {
        // A request that overlaps another one will never be executed.
        placed.place = Place::Discarded;
    }
    Ok(KeptRequest { outcome, placed, former, claimed: None })
}

/// The replies that may be kept of a request: that of its slot, or those of its stream. That of the request itself, and any
/// that it overlaps, has its outcome with it.
fn replies(request: &Numbered<'_>, snapshot: Snapshot) -> Result<Vec<Reply>, Error> {
    let Range { first, last } = request.range;
    let of = Some(Range { first, last: if request.by_any_number { first } else { last } });
    match request.session.order {
        Order::Any => Ok(reply::in_slot(request.stream(), request.slot(), of, snapshot)?.into_iter().collect()),
        Order::Strict => reply::in_stream(request.stream(), of, snapshot),
    }
}

/// The reply that answers a request. The caller has its lane's lock.
pub fn answering(request: &Numbered<'_>) -> Result<Option<Reply>, Error> {
    Ok(replies(request, Snapshot::Itself)?.into_iter().find(|reply| reply.outcome.is_some()))
}
