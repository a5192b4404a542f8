//! Once: deduplication in inboxes, for consumers that need no answer back.

use crate::arguments;
use crate::domain::identity::Digest;
use crate::domain::right::Right;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::model::{Session, StandingSession};
use crate::monitor::{Counter, counters};
use crate::names;
use crate::pg::{self, Deadline};
use crate::requests::keyed::{Keyed, check_sort};
use crate::requests::waiting;
use crate::sessions::resolve;
use crate::store::inbox::{self, Key};
use crate::store::looks;
use std::rc::Rc;

/// Finds the keys that are seen for the first time, and notes them. Returns their places in the list; of a key that
/// comes more than once, the first place.
pub fn once(session: &str, keys: &[&str], function: &'static str) -> Result<Vec<usize>, Error> {
    // The right to the session and its sort are checked for an empty list too.
    let standing = resolve::standing(session, Right::Use, resolve::USE)?;
    check_sort(&standing, true)?;
    let what = || format!("the number of requests given for session \"{session}\"");
    arguments::check_batch(what, keys.len(), "Send them in several calls, or raise idempotence.max_batch.")?;
    let (session, now_us) = (&standing, pg::now_us());
    let mut requests = Vec::new();
    requests.try_reserve_exact(keys.len())?;
    for key in keys {
        requests.push(Keyed::of(Rc::clone(session), key, None)?);
        pg::check_memory()?;
    }
    let (fresh, contended) = unseen(session, &requests, now_us)?;
    let Some((_, first)) = fresh.first() else {
        count(session, 0, requests.len());
        return Ok(Vec::new());
    };
    let ttl_us = session.ttl_us();
    arguments::check_writable(function, || {
        format!("The {} is seen for the first time, which has to be noted.", requests[*first].name())
    })?;

    let row = |(digest, place): &Fresh| {
        let request = &requests[*place];
        Key { key: &request.key, digest: *digest, expires_at: request.expires_at_us(now_us, ttl_us) }
    };
    let rows: Vec<Key<'_>> = fresh.iter().map(row).collect();
    let what = || format!("a request of session \"{}\", seen by another transaction,", session.name);
    let inserted = pg::bounded_or_error(
        guc::wait_us(),
        || inbox::insert(session, &rows, now_us, now_us, contended),
        || Error::WaitRanOut { what: what(), hint: WAIT_BY_SETTING },
    )?;
    resolve::check_still_open(session)?;
    let inserted = fresh.iter().zip(inserted).filter(|(_, inserted)| *inserted);
    let mut places: Vec<usize> = inserted.map(|((_, place), _)| *place).collect();
    places.sort_unstable();
    count(session, places.len(), requests.len() - places.len());
    pg::check_memory()?;
    Ok(places)
}

/// Counts keys that were seen for the first time, and keys that were seen before.
fn count(session: &Rc<StandingSession>, fresh: usize, seen: usize) {
    let session = Session::Standing(Rc::clone(session));
    for (counter, number) in [(Counter::Recorded, fresh), (Counter::Replayed, seen)] {
        if number > 0 {
            counters::add(&session, counter, number as u64);
        }
    }
}

/// A request by its digest, and by its first place in the list.
type Fresh = (Digest, usize);

/// The requests that are not kept yet, each once, in the order of the digests; and whether any is contended, see [`looks::find`].
fn unseen(session: &StandingSession, requests: &[Keyed<'_>], now_us: i64) -> Result<(Vec<Fresh>, bool), Error> {
    for request in requests {
        request.check_time(now_us)?;
    }
    let digests = names::of_requests(&session.id, requests.iter().map(|request| &*request.key));
    let mut once_each: Vec<Fresh> = digests.zip(0..).collect();
    // As numbers they are compared faster, and in the same order.
    once_each.sort_unstable_by_key(|(digest, place)| (u128::from_be_bytes(digest.0), *place));
    once_each.dedup_by_key(|(digest, _)| *digest);
    let asked: Vec<_> = once_each.iter().map(|(digest, place)| (&*requests[*place].key, *digest)).collect();
    let (outcomes, contended) = looks::find(session, &asked, now_us)?;

    let mut fresh = Vec::with_capacity(once_each.len());
    let mut seen = Vec::new();
    for ((digest, place), found) in once_each.into_iter().zip(outcomes) {
        let asked = &requests[place];
        match found {
            Some((false, _)) => return Err(Error::Unserializable(asked.name())),
            Some((true, writer)) => seen.push(writer),
            None => {
                // By the same rule as in the decision table.
                if asked.key_expires_at_us().is_some_and(|expires_at| expires_at <= now_us) {
                    let ttl = arguments::describe_us(session.ttl_us());
                    return Err(Error::KeyTooOld { name: asked.name(), ttl });
                }
                fresh.push((digest, place));
            }
        }
    }
    // That a key was seen before is an answer that the caller relies on, so it must be durable.
    seen.dedup();
    let mut until = None;
    let mut deadline = || *until.get_or_insert_with(|| Deadline::after(guc::wait_us()));
    if !seen.iter().all(|writer| pg::wait_until_durable(*writer, pg::Durability::OfCaller, now_us, &mut deadline)) {
        let what = "a commit that noted one of the requests before";
        return Err(waiting::not_durable(what.into(), WAIT_BY_SETTING));
    }
    Ok((fresh, contended))
}
