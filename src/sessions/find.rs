//! What it means that nothing is found of a client session.

use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::names;
use crate::pg;

/// Searches with `find` for what the tables have of a client session. Whoever writes it holds the session's lock until its
/// commit. So a search that finds nothing is certain only if no other transaction holds the lock. And since a holder may
/// commit at that very moment, the search is repeated after the look at the lock.
///
/// Where nothing is found, that is an error on a standby: it may be on its way from the primary. And it is one while another
/// transaction holds the lock, which may be about to commit what is searched for. A transaction that was prepared before a
/// crash may be all that is left of a session.
pub fn or_doubt<T>(
    id: &SessionId,
    name: &str,
    find: impl Fn() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    if let Some(found) = find()? {
        return Ok(Some(found));
    }
    if pg::in_recovery() {
        return Err(Error::SessionNotHere { session: name.into() });
    }
    let held = names::client_session_lock(id).is_held_by_another();
    match find()? {
        None if held => Err(Error::SessionInDoubt { session: name.into() }),
        found => Ok(found),
    }
}
