//! Finding a client session, which is in `session_live` while it is at work, and in `session` once it is saved.

use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::lock::Tag;
use crate::model::{ClientSession, KnownBy};
use crate::pg;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use pgrx::pg_sys;

/// The session with an id, ended or not.
pub fn by_id(id: &SessionId) -> Option<ClientSession> {
    live::find(id).map(|live| live.session).or_else(|| saved::find(id).map(|saved| saved.session))
}

/// The session that a registration would know: of a client, the one that has not ended; of the id of a
/// registration, the one that was made, ended or not.
pub fn registered(owner: pg_sys::Oid, by: KnownBy<'_>) -> Option<ClientSession> {
    match by {
        KnownBy::Client(client) => live::find_by_client(owner, client).or_else(|| saved::find_by_client(owner, client)),
        KnownBy::RequestId(id) => live::find_by_request_id(owner, id).or_else(|| saved::find_by_request_id(owner, id)),
    }
}

/// What a search came to.
pub enum Sought<T> {
    /// It was found.
    Found(T),
    /// This is a standby, and nothing of it has come here.
    NotHere,
    /// Nothing was found, but another transaction holds the lock: it may be about to commit what is sought. A
    /// transaction that was prepared before a crash may be all that is left of a session.
    InDoubt,
    /// There is nothing.
    Nothing,
}

/// Searches with `find`. Whoever writes what is sought holds `lock` until its commit. So where nothing is found,
/// that is certain only if nobody holds the lock; and since its holder may be committing just then, what it has
/// written is looked for once more after the lock was.
pub fn or_doubt<T>(
    lock: impl FnOnce() -> Tag,
    find: impl Fn() -> Result<Option<T>, Error>,
) -> Result<Sought<T>, Error> {
    if let Some(found) = find()? {
        return Ok(Sought::Found(found));
    }
    if pg::in_recovery() {
        return Ok(Sought::NotHere);
    }
    let held = lock().is_held_by_another();
    Ok(match find()? {
        Some(found) => Sought::Found(found),
        None if held => Sought::InDoubt,
        None => Sought::Nothing,
    })
}
