//! What is kept of a request besides its replies, wherever that is: in our tables, or in a journal. Each function says what
//! both have in common; who calls them need not know which it is.

use crate::domain::class::Class;
use crate::domain::identity::Digest;
use crate::error::Error;
use crate::journal::row::slack_us;
use crate::lock::Tag;
use crate::open::OpenRequest;
use crate::pg;
use crate::requests::keyed::Keyed;
use crate::requests::request::Request;
use crate::store::checkpoint::{self, Checkpoint};
use crate::store::lease::{self, NewLease, StoredLease};
use crate::store::outcome::{self, Outcome};
use crate::store::probe::Probe;
use crate::store::rel::Snapshot;

/// The lease that is kept under the request's lock. In a client session it may be that of another number of the lane.
pub fn lease(request: &Request<'_>, lock: &Digest, snapshot: Snapshot) -> Result<Option<StoredLease>, Error> {
    match request.in_journal() {
        None => lease::find(request.stream(), lock, snapshot),
        Some(kept) => Ok(kept.row()?.and_then(|row| row.lease)),
    }
}

/// Writes a lease over the one that is kept. The caller has the request's lock.
pub fn save_lease(request: &Request<'_>, new: &NewLease<'_>) -> Result<(), Error> {
    match request.in_journal() {
        None => lease::save(new)?,
        Some(kept) => kept.save_lease(new, request.unfinished_until(new.lease.until))?,
    }
    keep_lease_through_crash(request);
    Ok(())
}

/// Deletes the lease that is kept under the request's lock, where no outcome takes its place. The caller has the lock.
pub fn delete_lease(request: &Request<'_>, lock: &Digest) -> Result<(), Error> {
    match request.in_journal() {
        None => lease::delete(request.stream(), lock).map(drop)?,
        Some(kept) => kept.end_lease()?,
    }
    keep_lease_through_crash(request);
    Ok(())
}

/// Deletes the lease of a request whose outcome was just recorded; gives whether there was one. In a journal the outcome was
/// written over it.
pub fn end_lease_of_recorded(request: &Request<'_>, lock: &Digest) -> Result<bool, Error> {
    match request.in_journal() {
        None => lease::delete(request.stream(), lock),
        Some(_) => Ok(true),
    }
}

/// Whether this transaction has the claim. A row tells that to nobody, so in a journal it is taken for granted.
pub fn holds_claim(request: &Request<'_>, lock: &Digest) -> bool {
    request.in_journal().is_some() || Tag::request(lock).is_held_by_us()
}

/// Gives the claim back before the transaction ends. The row of a journal goes with whatever rolls its writing back.
pub fn release_claim(request: &Request<'_>, lock: &Digest) {
    if request.in_journal().is_none() {
        Tag::request(lock).release();
    }
}

/// No crash may undo what becomes of a lease.
fn keep_lease_through_crash(request: &Request<'_>) {
    match request.in_journal() {
        None => lease::keep_through_crash(),
        Some(kept) => kept.keep_through_crash(),
    }
}

/// No crash may undo the verdict on a request: somebody acts on it.
pub fn keep_verdict_through_crash(request: &Request<'_>) {
    match request.in_journal() {
        None => pg::force_sync_commit(),
        Some(kept) => kept.keep_through_crash(),
    }
}

/// The request's checkpoint. `probe` names it.
pub fn checkpoint(request: &Request<'_>, probe: &Probe<'_>, snapshot: Snapshot) -> Result<Option<Checkpoint>, Error> {
    match request.in_journal() {
        None => checkpoint::find(probe, snapshot),
        Some(kept) => Ok(kept.row()?.and_then(|row| row.checkpoint)),
    }
}

/// The lease and the checkpoint that count at `asked_at`. The caller need not have the request's lock.
pub fn unfinished(
    request: &Request<'_>,
    lock: &Digest,
    asked_at: i64,
) -> Result<(Option<StoredLease>, Option<Checkpoint>), Error> {
    let counts = |since: i64| request.unfinished_until(since) > asked_at;
    let lease = self::lease(request, lock, Snapshot::LatestMvcc)?
        .filter(|lease| request.is_of(lease) && counts(lease.lease.until));
    // Any number of a leased range finds the checkpoint of the range.
    let (key, until) = lease.as_ref().map_or((request.key(), i64::MIN), |lease| (&lease.request, lease.lease.until));
    let probe = Probe { key, ..request.probe(request.digest_of(key)) };
    let checkpoint = self::checkpoint(request, &probe, Snapshot::LatestMvcc)?
        .filter(|checkpoint| counts(checkpoint.written_at.max(until)));
    Ok((lease, checkpoint))
}

/// Writes a checkpoint over the one that is kept. The caller has the request's lock.
pub fn save_checkpoint(request: &Request<'_>, digest: Digest, checkpoint: &Checkpoint) -> Result<(), Error> {
    match request.in_journal() {
        None => checkpoint::save(&request.probe(digest), checkpoint),
        Some(kept) => {
            let until = kept.row()?.and_then(|row| row.lease).map(|lease| lease.lease.until);
            let until = request.unfinished_until(checkpoint.written_at.max(until.unwrap_or(i64::MIN)));
            kept.save_checkpoint(checkpoint, until)
        }
    }
}

/// Records the outcome of a request with a key, and clears away what was kept of it before. Gives the outcome as it is kept.
pub fn record(keyed: &Keyed<'_>, open: &OpenRequest, outcome: Outcome, ttl_us: i64) -> Result<Outcome, Error> {
    let expires_at = keyed.expires_at_us(outcome.recorded_at, ttl_us);
    let Some(kept) = &keyed.journal else {
        let probe = keyed.probe(open.digest);
        if open.leftovers.outcome {
            // The outcome that begin found had expired: a live one would have been replayed.
            outcome::clear(&probe)?;
        }
        if open.leftovers.checkpoint {
            checkpoint::delete(&probe)?;
        }
        let outcome = Outcome { expires_at: Some(expires_at), ..outcome };
        outcome::insert(&probe, &outcome);
        return Ok(outcome);
    };
    let expires_at = kept.record(&outcome, expires_at, expires_at.saturating_add(slack_us(ttl_us)))?;
    Ok(Outcome { expires_at: Some(expires_at), ..outcome })
}

/// Clears away an outcome that has expired, where a lease is about to be written and the record comes later.
pub fn clear_expired(request: &Request<'_>, digest: Digest) -> Result<Option<Class>, Error> {
    match request {
        Request::Keyed(keyed) if keyed.journal.is_none() => outcome::clear(&keyed.probe(digest)),
        // The lease is written over the outcome. A numbered request has no outcome that expires.
        _ => Ok(None),
    }
}

/// Takes back what the claim has written, where a request is released of which nothing else is kept.
pub fn take_back_claim(request: &Request<'_>, open: &OpenRequest) -> Result<(), Error> {
    let unwritten = !open.leftovers.outcome && !open.leftovers.checkpoint && !open.leftovers.lease;
    match request.in_journal() {
        Some(kept) if unwritten => kept.delete(),
        _ => Ok(()),
    }
}

/// Takes away the response of a request with a key, and the state of its checkpoint. Gives the class of the outcome that had
/// a response, and whether there was a state. The caller has the claim.
pub fn redact(request: &Request<'_>, digest: Digest) -> Result<(Option<Class>, bool), Error> {
    let Some(kept) = request.in_journal() else {
        let probe = request.probe(digest);
        return Ok((outcome::redact(&probe)?, checkpoint::redact(&probe)?));
    };
    let Some(row) = kept.row()?.filter(|row| row.tells()) else { return Ok((None, false)) };
    kept.redact()?;
    let class = row.outcome.map(|outcome| outcome.class);
    Ok((class, class.is_none()))
}

/// Deletes all that is kept of a request with a key. Gives the class of the outcome, and whether there was a checkpoint. The
/// caller has the claim.
pub fn forget(request: &Request<'_>, digest: Digest) -> Result<(Option<Class>, bool), Error> {
    let Some(kept) = request.in_journal() else {
        let probe = request.probe(digest);
        let forgotten = (outcome::clear(&probe)?, checkpoint::delete(&probe)?);
        if lease::delete(request.stream(), &digest)? {
            lease::keep_through_crash();
        }
        return Ok(forgotten);
    };
    let Some(row) = kept.row()? else { return Ok((None, false)) };
    kept.delete()?;
    Ok((row.outcome.map(|outcome| outcome.class), row.checkpoint.is_some()))
}
