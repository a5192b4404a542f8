//! Finds client sessions. A session is in `session_live` while it is at work, and in `session` once it is saved.

use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::lock::Tag;
use crate::model::{ClientSession, KnownBy};
use crate::pg;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use pgrx::pg_sys;

/// The session with this id, ended or not.
pub fn by_id(id: &SessionId) -> Option<ClientSession> {
    live::find(id).map(|live| live.session).or_else(|| saved::find(id).map(|saved| saved.session))
}

/// The session that a registration finds: by the client's name the session that has not ended, by the id of the
/// registration the session that was registered under it, ended or not.
pub fn registered(owner: pg_sys::Oid, by: KnownBy<'_>) -> Option<ClientSession> {
    live::find_registered(owner, by).or_else(|| saved::find_registered(owner, by))
}

/// The result of a search.
pub enum Search<T> {
    /// This was found.
    Found(T),
    /// Nothing was found, but this is a standby: it may be on its way from the primary.
    NotHere,
    /// Nothing was found, but another transaction holds the lock: it may be about to commit what is searched for. A
    /// transaction that was prepared before a crash may be all that is left of a session.
    InDoubt,
    /// What is searched for does not exist.
    Nothing,
}

/// As [`or_doubt`], on a primary, for what is mostly not there: it looks at the lock first, and so searches once.
pub fn or_doubt_at_once<T>(lock: Tag, find: impl FnOnce() -> Option<T>) -> Search<T> {
    let held = lock.is_held_by_another();
    match find() {
        Some(found) => Search::Found(found),
        None if held => Search::InDoubt,
        None => Search::Nothing,
    }
}

/// Searches with `find`. Whoever writes what is searched for holds `lock` until its commit. So a search that finds
/// nothing is certain only if no other transaction holds the lock. And since a holder may commit at that very moment,
/// the search is repeated after the look at the lock.
pub fn or_doubt<T>(
    lock: impl FnOnce() -> Tag,
    find: impl Fn() -> Result<Option<T>, Error>,
) -> Result<Search<T>, Error> {
    if let Some(found) = find()? {
        return Ok(Search::Found(found));
    }
    if pg::in_recovery() {
        return Ok(Search::NotHere);
    }
    let held = lock().is_held_by_another();
    Ok(match find()? {
        Some(found) => Search::Found(found),
        None if held => Search::InDoubt,
        None => Search::Nothing,
    })
}
