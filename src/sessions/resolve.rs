//! Finds the session that a name means and checks the caller's right to it. The check
//! comes before any lock, so that nobody blocks another role's requests or learns of them. `standing.rs` also
//! decides to whom a session may be given, and who may make a dropped session again.

use crate::domain::identity::{self, SessionId};
use crate::domain::limits::SESSION_CHARS_MAX;
use crate::domain::right::Right;
use crate::error::Error;
use crate::model::{ClientSession, Session, StandingSession};
use crate::names;
use crate::pg;
use crate::sessions::find::{self, Search};
use crate::store::cache;
use crate::store::catalog;
use crate::store::session::standing;
use pgrx::pg_sys;
use std::rc::Rc;
use uuid::Uuid;

/// The action for which the session of a request is resolved, as [`Error::NotYours`] names it.
pub const USE: &str = "use its requests";

/// The session of a request, if the caller may use it. `begun` gives the standing session as it was when this
/// transaction began the request, where its rules of that time still count.
pub fn session(name: &str, begun: impl FnOnce() -> Option<Rc<StandingSession>>) -> Result<Session, Error> {
    if let Some(id) = identity::client_session(name) {
        return by_id(name, &id, USE).map(Session::Client);
    }
    match begun() {
        Some(session) => allowed(session, Right::Use, USE),
        None => standing(name, Right::Use, USE),
    }
    .map(Session::Standing)
}

/// The standing session with this name, if the caller has the right to it.
pub fn standing(name: &str, right: Right, action: &'static str) -> Result<Rc<StandingSession>, Error> {
    // A remembered session is used without a lock on its table, so messages about changes by others are taken in here.
    cache::take_in_messages();
    match remembered(name).filter(|session| session.dropped_at.is_none()) {
        Some(session) => allowed(session, right, action),
        None => Err(not_standing(name, action)),
    }
}

/// Refuses a standing session that was dropped since the caller has found it. The caller calls this under a lock that
/// whoever has dropped the session looks for: the claim of the request, or in an inbox the lock on the table of outcomes.
/// So nobody executes in a session for whose requests somebody has waited since it was dropped, see `requests/at_rest.rs`.
pub fn check_still_open(session: &Rc<StandingSession>) -> Result<(), Error> {
    cache::take_in_messages();
    let is_same = |now: &Rc<StandingSession>| Rc::ptr_eq(now, session);
    if cache::with(|cache| cache.standing.get(session.name.as_str()).is_some_and(is_same)) {
        return Ok(());
    }
    standing(&session.name, Right::Use, USE).map(drop)
}

/// The session of a request that an admin repairs: any one, also a dropped one.
pub fn any_session(name: &str) -> Result<Session, Error> {
    match identity::client_session(name) {
        Some(id) => find_by_id(name, id.as_bytes()).map(Session::Client),
        None => even_dropped(name).map(Session::Standing).ok_or_else(|| unknown(name)),
    }
}

/// The session that a caller looks at, dropped or ended too, and whether the caller may use its requests. A monitor that
/// may not use them looks at the session all the same.
pub fn to_look_at(name: &str) -> Result<(Session, bool), Error> {
    const LOOK: &str = "look at its requests";
    let session = any_session(name)?;
    let checked = match &session {
        Session::Standing(session) => check(session, Right::Use, LOOK),
        Session::Client(session) => check_roles(session.owner, None, &session.name, LOOK, Right::Own),
    };
    match checked {
        Ok(()) => Ok((session, true)),
        Err(_) if catalog::is_monitor() => Ok((session, false)),
        Err(error) => Err(or_unknown(&session, error)),
    }
}

/// The session of a request that is redacted: one whose owner's privileges the caller has, also a dropped one. For an
/// admin any one.
pub fn to_redact(name: &str) -> Result<Session, Error> {
    owned_or_any(name, "redact its requests")
}

/// The session that is exported: as [`to_redact`].
pub fn to_export(name: &str) -> Result<Session, Error> {
    owned_or_any(name, "export it")
}

fn owned_or_any(name: &str, action: &'static str) -> Result<Session, Error> {
    let found = any_session(name)?;
    let owner = match &found {
        Session::Standing(session) => session.owner,
        Session::Client(session) => session.owner,
    };
    match check_roles(owner, None, found.name(), action, Right::Own) {
        Err(error) if !pg::is_admin() => Err(or_unknown(&found, error)),
        _ => Ok(found),
    }
}

/// The error for a caller without the right to a session. That a session of another role was dropped is nobody's business:
/// it is as if it had never been.
fn or_unknown(session: &Session, error: Error) -> Error {
    match session {
        Session::Standing(session) if session.dropped_at.is_some() => unknown(&session.name),
        _ => error,
    }
}

/// The standing session with this name, dropped or not. Whoever uses it has to be checked.
pub fn even_dropped(name: &str) -> Option<Rc<StandingSession>> {
    cache::take_in_messages();
    remembered(name)
}

/// The client session with this name, ended or not, if the caller has the right to it.
pub fn client(name: &str, action: &'static str) -> Result<Rc<ClientSession>, Error> {
    match identity::client_session(name) {
        Some(id) => by_id(name, &id, action),
        None => Err(not_a_client_session(name, action)),
    }
}

/// Returns the standing session if the caller has the right to it.
pub fn allowed(session: Rc<StandingSession>, right: Right, action: &'static str) -> Result<Rc<StandingSession>, Error> {
    check(&session, right, action)?;
    Ok(session)
}

/// Refuses a caller that has no right to the standing session (42501).
pub fn check(session: &StandingSession, right: Right, action: &'static str) -> Result<(), Error> {
    let borrower = session.usable_by.filter(|_| right == Right::Use);
    check_roles(session.owner, borrower, &session.name, action, right)
}

/// The error for a name that no standing session has.
pub fn unknown(name: &str) -> Error {
    if identity::client_session(name).is_some() {
        Error::SessionEnded { session: name.into(), how: None }
    } else if name.chars().nth(SESSION_CHARS_MAX).is_some() {
        Error::LimitExceeded {
            what: "the name of a session".into(),
            found: format!("{} characters", name.chars().count()),
            limit: format!("{SESSION_CHARS_MAX} characters"),
            hint: "The first argument is the session, the second one the request.",
        }
    } else {
        Error::NoSuchSession { session: name.into() }
    }
}

/// Whether the current role may use a session of this owner, which may be lent to another role.
pub fn may_use(owner: pg_sys::Oid, borrower: Option<pg_sys::Oid>) -> bool {
    pg::has_privileges_of(owner) || borrower.is_some_and(pg::has_privileges_of)
}

fn check_roles(
    owner: pg_sys::Oid,
    borrower: Option<pg_sys::Oid>,
    session: &str,
    action: &'static str,
    right: Right,
) -> Result<(), Error> {
    if may_use(owner, borrower) { Ok(()) } else { Err(Error::NotYours { session: session.into(), action, right }) }
}

fn by_id(name: &str, id: &Uuid, action: &'static str) -> Result<Rc<ClientSession>, Error> {
    let session = find_by_id(name, id.as_bytes())?;
    check_roles(session.owner, None, &session.name, action, Right::Own)?;
    Ok(session)
}

fn find_by_id(name: &str, id: &SessionId) -> Result<Rc<ClientSession>, Error> {
    let session = name.to_owned();
    match find::or_doubt(|| names::client_session_lock(id), || Ok(remembered_by_id(id)))? {
        Search::Found(found) => Ok(found),
        Search::NotHere => Err(Error::SessionNotHere { session }),
        Search::InDoubt => Err(Error::SessionInDoubt { session }),
        Search::Nothing => Err(Error::SessionEnded { session, how: None }),
    }
}

fn remembered_by_id(id: &SessionId) -> Option<Rc<ClientSession>> {
    cache::remembered(
        |cache| cache.clients.get(id).map(|session| Some(Rc::clone(session))),
        || match find::by_id(id) {
            // The row may be this transaction's own, and may never be committed. It may be remembered all the same:
            // what it says about the id never changes, and each use looks whether the session is there.
            Some(session) => (Some(Rc::new(session)), true),
            None => (None, false),
        },
        |cache, session| {
            if let Some(session) = session {
                cache.clients.put(session.id, session);
            }
        },
    )
}

fn remembered(name: &str) -> Option<Rc<StandingSession>> {
    cache::remembered(
        |cache| cache.standing.get(name).map(|session| Some(Rc::clone(session))),
        || match standing::find(name) {
            Some((session, committed)) => (Some(Rc::new(session)), committed),
            // That there is no session is not remembered: callers may ask for any number of names.
            None => (None, false),
        },
        |cache, session| {
            if let Some(session) = session {
                cache.standing.put(session.name.clone(), session);
            }
        },
    )
}

/// As [`unknown`], for a name that may be that of a client session.
fn not_standing(name: &str, action: &'static str) -> Error {
    let Some(id) = identity::client_session(name) else { return unknown(name) };
    match by_id(name, &id, action) {
        Err(error) => error,
        Ok(session) => Error::Invalid {
            message: format!("session \"{}\" is a client session", session.name),
            detail: "It is neither an inbox nor to be changed or dropped: its client registered it as it is.".into(),
            hint: "Use its requests with idem_begin() and idem_record(); end it with idem_close().",
        },
    }
}

fn not_a_client_session(name: &str, action: &'static str) -> Error {
    let detail = match standing(name, Right::Use, action) {
        Ok(_) => "It is a standing session: it has no numbers, and does not end by itself.",
        Err(Error::NoSuchSession { .. }) => "Client sessions have a UUID for a name, which the server makes up.",
        Err(error) => return error,
    };
    let message = format!("session \"{name}\" is not a client session");
    Error::Invalid { message, detail: detail.into(), hint: "Use the session that idem_register() gave." }
}
