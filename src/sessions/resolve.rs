//! Finds the session that a name means, checks the caller's right to it, and whether it lives on this server. The check
//! of the right comes before any lock, so that nobody blocks another role's requests or learns of them. `standing.rs`
//! also decides to whom a session may be given, and who may make a dropped session again.
//!
//! A client session is looked for by its id first. If it is here, it is this server's own, whatever node its name tells:
//! pg_upgrade and a restored dump bring sessions that have the name of another node. Only where nothing is known of it
//! does the node in the name count.

use crate::arguments;
use crate::domain::identity::{self, ClientName, SessionId};
use crate::domain::limits::SESSION_CHARS_MAX;
use crate::domain::node;
use crate::domain::right::Right;
use crate::error::Error;
use crate::guc;
use crate::model::{ClientSession, Session, StandingSession};
use crate::pg;
use crate::sessions::liveness;
use crate::store::cache;
use crate::store::catalog;
use crate::store::restore;
use crate::store::session::client as saved;
use crate::store::session::standing;
use crate::store::session_live as live;
use pgrx::pg_sys;
use std::rc::Rc;

/// The action for which the session of a request is resolved, as [`Error::NotYours`] names it.
pub const USE: &str = "use its requests";
/// The action for which the session of a request that is redacted is resolved.
pub const REDACT: &str = "redact its requests";

/// The session of a request, if the caller may use it. `begun` gives the standing session as it was when this
/// transaction began the request, where its rules of that time still count.
pub fn session(name: &str, begun: impl FnOnce() -> Option<Rc<StandingSession>>) -> Result<Session, Error> {
    if let Some(session) = client_session(name)? {
        check_client(&session, USE)?;
        return Ok(Session::Client(session));
    }
    let Some(session) = begun() else { return standing(name, Right::Use, USE).map(Session::Standing) };
    // It was here when the request was begun, so the request is completed here.
    check(&session, Right::Use, USE)?;
    Ok(Session::Standing(session))
}

/// The standing session with this name, if the caller has the right to it. Its requests can be used only where it lives.
pub fn standing(name: &str, right: Right, action: &'static str) -> Result<Rc<StandingSession>, Error> {
    let Some(session) = even_dropped(name).filter(|session| session.dropped_at.is_none()) else {
        return Err(not_standing(name, action));
    };
    check(&session, right, action)?;
    if right == Right::Use {
        session.check_here()?;
    }
    Ok(session)
}

/// Refuses a standing session that was dropped, or bound to another node, since the caller has found it. The caller calls
/// this under a lock that whoever has done so looks for: the claim of the request, or in an inbox the lock on the table of
/// outcomes. So nobody executes in a session for whose requests somebody has waited since then, see
/// `requests/at_rest.rs`.
pub fn check_still_open(session: &Rc<StandingSession>) -> Result<(), Error> {
    cache::take_in_messages();
    let is_same = |now: &Rc<StandingSession>| Rc::ptr_eq(now, session);
    if cache::with(|cache| cache.standing.get(session.name.as_str()).is_some_and(is_same)) {
        return Ok(());
    }
    standing(&session.name, Right::Use, USE).map(drop)
}

/// The session of a request that an admin repairs: any one, also a dropped one, or one that is bound to another node.
pub fn any_session(name: &str) -> Result<Session, Error> {
    match client_session(name)? {
        Some(session) => Ok(Session::Client(session)),
        None => even_dropped(name).map(Session::Standing).ok_or_else(|| unknown(name)),
    }
}

/// The session that a caller looks at, dropped or ended too, and whether the caller may use its requests. A monitor that
/// may not use them looks at the session all the same.
pub fn to_look_at(name: &str) -> Result<(Session, bool), Error> {
    const LOOK: &str = "look at its requests";
    let session = any_session(name)?;
    match check_any(&session, Right::Use, LOOK) {
        Ok(()) => Ok((session, true)),
        Err(_) if catalog::is_monitor() => Ok((session, false)),
        Err(error) => Err(error),
    }
}

/// The session with this name: one whose owner's privileges the caller has, also a dropped one. For an admin any one.
pub fn owned_or_any(name: &str, action: &'static str) -> Result<Session, Error> {
    let found = any_session(name)?;
    check_owned(&found, action)?;
    Ok(found)
}

/// Refuses a caller who neither has the privileges of the session's owner, nor is an admin.
pub fn check_owned(found: &Session, action: &'static str) -> Result<(), Error> {
    match check_any(found, Right::Own, action) {
        Err(error) if !pg::is_admin() => Err(error),
        _ => Ok(()),
    }
}

/// The standing session with this name, dropped or not. Whoever uses it has to be checked.
pub fn even_dropped(name: &str) -> Option<Rc<StandingSession>> {
    // A remembered session is used without a lock on its table, so messages about changes by others are taken in here.
    cache::take_in_messages();
    cache::remembered_if_there(
        |cache| cache.standing.get(name).cloned(),
        || standing::find(name).map(|(session, committed)| (Rc::new(session), committed)),
        |cache, session| cache::put(&mut cache.standing, session.name.clone(), session),
    )
}

/// The client session with this name, ended or not, if the caller has the right to it.
pub fn client(name: &str, action: &'static str) -> Result<Rc<ClientSession>, Error> {
    let session = client_session(name)?.ok_or_else(|| not_a_client_session(name, action))?;
    check_client(&session, action)?;
    Ok(session)
}

/// Refuses a caller that has no right to the standing session (42501).
pub fn check(session: &StandingSession, right: Right, action: &'static str) -> Result<(), Error> {
    let borrower = session.usable_by.filter(|_| right == Right::Use);
    allow(may_use(session.owner, borrower), &session.name, right, action)
}

/// As [`check`]. The right to a client session is always its owner's.
fn check_client(session: &ClientSession, action: &'static str) -> Result<(), Error> {
    allow(may_use(session.owner, None), &session.name, Right::Own, action)
}

fn check_any(session: &Session, right: Right, action: &'static str) -> Result<(), Error> {
    match session {
        // That a session of another role was dropped is nobody's business: it is as if it had never been.
        Session::Standing(session) if session.dropped_at.is_some() => {
            check(session, right, action).map_err(|_| unknown(&session.name))
        }
        Session::Standing(session) => check(session, right, action),
        Session::Client(session) => check_client(session, action),
    }
}

/// The error for a name that no standing session has.
pub fn unknown(name: &str) -> Error {
    const HINT: &str = "The first argument is the session, the second one the request.";
    match arguments::check_chars("the name of a session", name, SESSION_CHARS_MAX, HINT) {
        Err(too_long) => too_long,
        Ok(()) => restore::sessions_left_out().unwrap_or(Error::NoSuchSession { session: name.into() }),
    }
}

/// Whether the current role may use a session of this owner, which may be lent to another role.
pub fn may_use(owner: pg_sys::Oid, borrower: Option<pg_sys::Oid>) -> bool {
    pg::has_privileges_of(owner) || borrower.is_some_and(pg::has_privileges_of)
}

fn allow(may: bool, session: &str, right: Right, action: &'static str) -> Result<(), Error> {
    if may { Ok(()) } else { Err(Error::NotYours { session: session.into(), action, right }) }
}

/// The client session with this name, ended or not. `None`: the name is that of a standing session. Whoever uses the
/// session has to be checked.
fn client_session(name: &str) -> Result<Option<Rc<ClientSession>>, Error> {
    let Some(named) = identity::client_session(name) else { return Ok(None) };
    let id = named.id.as_bytes();
    match liveness::or_doubt(id, name, || Ok(remembered_by_id(id))) {
        Ok(None) => {
            let ended = || Error::SessionEnded { session: name.into(), how: None };
            Err(elsewhere(name, named).or_else(restore::sessions_left_out).unwrap_or_else(ended))
        }
        Err(error @ Error::SessionNotHere { .. }) => Err(elsewhere(name, named).unwrap_or(error)),
        found => found,
    }
}

/// The error for a client session that nothing is known of here, if its name tells another node than this one.
fn elsewhere(name: &str, named: ClientName<'_>) -> Option<Error> {
    let (session, node, here) = (name.to_owned(), named.node?, guc::node());
    if let Some(detail) = node::fault(node.as_bytes()) {
        return Some(Error::Invalid {
            message: format!("\"{session}\" is not the name of a session"),
            detail: format!("What follows the @ in the name of a client session is the name of a node. {detail}"),
            hint: "Use the name that idem_register() gave, as it is.",
        });
    }
    (node != here).then(|| Error::Elsewhere { session, node: node.into(), here, bound: false })
}

fn remembered_by_id(id: &SessionId) -> Option<Rc<ClientSession>> {
    // It is in `session_live` while it is at work, and in `session` once it is saved.
    let find = || live::find(id).map(|live| live.session).or_else(|| saved::find(id).map(|saved| saved.session));
    cache::remembered_if_there(
        |cache| cache.clients.get(id).cloned(),
        // The row may be this transaction's own, and may never be committed. It may be remembered all the same: what it says
        // about the id never changes, and each use looks whether the session is there.
        || find().map(|session| (Rc::new(session), true)),
        |cache, session| cache::put(&mut cache.clients, session.id, session),
    )
}

/// As [`unknown`], for a name that may be that of a client session.
fn not_standing(name: &str, action: &'static str) -> Error {
    match client_session(name) {
        Err(error) => error,
        Ok(None) => unknown(name),
        Ok(Some(session)) => check_client(&session, action).err().unwrap_or_else(|| Error::Invalid {
            message: format!("session \"{}\" is a client session", session.name),
            detail: "It is neither an inbox nor to be changed or dropped: its client registered it as it is.".into(),
            hint: "Use its requests with idem_begin() and idem_record(); end it with idem_close().",
        }),
    }
}

fn not_a_client_session(name: &str, action: &'static str) -> Error {
    let detail = match standing(name, Right::Use, action) {
        Ok(_) => "It is a standing session: it has no numbers, and does not end by itself.",
        Err(Error::NoSuchSession { .. }) => {
            "The name of a client session begins with a UUID, and the server makes it up."
        }
        Err(error) => return error,
    };
    let message = format!("session \"{name}\" is not a client session");
    Error::Invalid { message, detail: detail.into(), hint: "Use the session that idem_register() gave." }
}
