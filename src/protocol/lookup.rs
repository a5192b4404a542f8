//! Lookup: what is known of a request, without taking anything.

use crate::error::Error;
use crate::lock::Tag;
use crate::open;
use crate::pg;
use crate::protocol::request::Request;
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::outcome::{self, Outcome};
use crate::store::rel::Snapshot;

/// What is known.
pub enum Known {
    /// It was done.
    Outcome(Outcome),
    /// This or another transaction holds the claim.
    InProgress(Option<Checkpoint>),
    /// Nothing is here, aside perhaps from a checkpoint.
    Unknown(Option<Checkpoint>),
}

/// Looks a request up.
pub fn lookup(request: &Request<'_>) -> Result<Known, Error> {
    let asked_at = pg::now_us();
    let digest = request.digest();
    // The lock first and the outcome after: a commit in between is found by the second look. On a
    // standby the primary's locks are not to be seen.
    let held = open::holds(&request.session.name, &request.key)
        || !pg::in_recovery() && Tag::request(&digest).is_held_by_another();

    let wanted = request.wanted(digest);
    // An inbox renews expired rows in their place, see `store/inbox.rs`.
    let snapshot = if request.session.inbox { Snapshot::LatestMvcc } else { Snapshot::Itself };
    let found = outcome::find(&wanted, asked_at, snapshot)?;
    if let Some(found) = found.filter(|found| found.outcome.expires_at > asked_at) {
        return if found.visible {
            Ok(Known::Outcome(found.outcome))
        } else {
            Err(Error::Unserializable(request.name()))
        };
    }
    let checkpoint = checkpoint::find(&wanted, Snapshot::LatestMvcc)?
        .filter(|found| found.facts().expires_at > asked_at)
        .map(|found| found.checkpoint);
    Ok(if held { Known::InProgress(checkpoint) } else { Known::Unknown(checkpoint) })
}
