//! Once: deduplication in inboxes, for consumers that need no answer back.

use crate::arguments;
use crate::domain::identity::Digest;
use crate::domain::right::Right;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::model::{Session, StandingSession};
use crate::monitor::{Counter, counters};
use crate::pg::{self, Deadline};
use crate::requests::keyed::{Keyed, check_sort};
use crate::sessions::resolve;
use crate::store::inbox::{self, Key};
use crate::store::outcome;
use crate::store::rel::Snapshot;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Finds the keys that are seen for the first time, and notes them. Returns their places in the list; of a key that
/// comes more than once, the first place.
pub fn once(session: &str, keys: &[&str], function: &'static str) -> Result<Vec<usize>, Error> {
    pg::begin_call();
    // The right to the session and its sort are checked for an empty list too.
    let standing = || resolve::standing(session, Right::Use, resolve::USE);
    check_sort(&*standing()?, true)?;
    check_count(session, keys.len())?;
    let now_us = pg::now_us();
    let mut requests = Vec::new();
    requests.try_reserve_exact(keys.len())?;
    for key in keys {
        requests.push(Keyed::of(standing()?, key)?);
        pg::check_memory()?;
    }
    let fresh = unseen(&requests, now_us)?;
    let Some((_, first)) = fresh.first() else {
        if let Some(request) = requests.first() {
            count(&request.session, 0, requests.len());
        }
        return Ok(Vec::new());
    };
    let session = &requests[*first].session;
    let ttl_us = session.ttl_us();
    arguments::check_writable(function, || {
        format!("The {} is seen for the first time, which has to be noted.", requests[*first].name())
    })?;

    let rows: Vec<Key<'_>> = fresh
        .iter()
        .map(|(digest, place)| {
            let request = &requests[*place];
            Key { key: &request.key, digest: *digest, expires_at: request.expires_at_us(now_us, ttl_us) }
        })
        .collect();
    let what = || format!("a request of session \"{}\", seen by another transaction,", session.name);
    let inserted = pg::bounded_or_error(
        guc::wait_us(),
        || inbox::insert(session, &rows, now_us, now_us),
        || Error::WaitRanOut { what: what(), hint: WAIT_BY_SETTING },
    )?;
    let places = in_order_of_places(&fresh, &inserted);
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

/// The requests that are not kept yet, once each: the digest and the first place, in the order of the digests.
fn unseen(requests: &[Keyed<'_>], now_us: i64) -> Result<Vec<(Digest, usize)>, Error> {
    let mut first_places = HashMap::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        first_places.entry(request.digest()).or_insert(place);
    }
    let mut fresh = Vec::with_capacity(first_places.len());
    let mut seen = Vec::new();
    for (digest, place) in first_places {
        let request = &requests[place];
        request.check_time(now_us)?;
        let found = outcome::find(&request.probe(digest), now_us, Snapshot::Itself)?;
        match found.filter(|found| found.outcome.lives_at(now_us)) {
            Some(found) if !found.visible => return Err(Error::Unserializable(request.name())),
            Some(found) => seen.push(found.outcome.writer),
            None => {
                check_age(request, now_us)?;
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
        return Err(Error::WaitRanOut { what: what.into(), hint: WAIT_BY_SETTING });
    }
    fresh.sort_unstable();
    Ok(fresh)
}

/// Refuses a time key that is too old (ID010), by the same rule as the decision table.
fn check_age(request: &Keyed<'_>, now_us: i64) -> Result<(), Error> {
    match request.key_expires_at_us() {
        Some(expires_at) if expires_at <= now_us => {
            Err(Error::KeyTooOld { name: request.name(), ttl: arguments::describe_us(request.session.ttl_us()) })
        }
        _ => Ok(()),
    }
}

fn check_count(session: &str, count: usize) -> Result<(), Error> {
    if count <= guc::max_batch() {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: format!("the number of requests given for session \"{session}\""),
        found: count.to_string(),
        limit: guc::max_batch().to_string(),
        hint: "Send them in several calls, or raise idempotence.max_batch.",
    })
}

/// The places of the keys that were inserted.
fn in_order_of_places(fresh: &[(Digest, usize)], inserted: &HashSet<Digest>) -> Vec<usize> {
    let mut places: Vec<usize> =
        fresh.iter().filter(|(digest, _)| inserted.contains(digest)).map(|(_, place)| *place).collect();
    places.sort_unstable();
    places
}
