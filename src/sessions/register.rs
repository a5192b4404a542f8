//! Registering: a client gets its session.
//!
//! The client's name and the registration's id are locked first. If the registration repeats an earlier one (the same
//! id), it returns the session of the earlier one, or is refused if that session has ended. Otherwise the client's former
//! session, if it is alive, is resumed or fenced. A client that does not resume a session gets a new one.

use crate::arguments::{self, WAIT_BY_ARGUMENT};
use crate::domain::allowance::Kind;
use crate::domain::end::End;
use crate::domain::identity::{self, SessionId};
use crate::domain::limits::{CLIENT_CHARS_MAX, TIMEOUT_US_MAX, TIMEOUT_US_MIN, WINDOW_MAX};
use crate::domain::sequence::Order;
use crate::domain::time_key;
use crate::error::Error;
use crate::guc;
use crate::lock::LockClass;
use crate::model::{ClientSession, KnownBy};
use crate::names;
use crate::open;
use crate::pg::{self, Deadline};
use crate::sessions::{calls, liveness, quota, save};
use crate::store::secret;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use pgrx::datum::Interval;
use pgrx::pg_sys;
use std::rc::Rc;
use uuid::Uuid;

/// What a client registers with.
pub struct Registration<'a> {
    /// The client's name, unique for its owner.
    pub client: Option<&'a str>,
    /// The longest silence that the session is to outlast.
    pub timeout: Option<Interval>,
    /// How many replies of each stream are to be kept.
    pub window_size: Option<i32>,
    /// `any` or `strict`.
    pub ordering: &'a str,
    /// Whether to take over the client's live session instead of fencing it.
    pub resume: bool,
    /// The id of the registration, the same in each copy of it.
    pub request_id: Option<SessionId>,
    /// How long to wait for transactions of the former session.
    pub wait_us: Option<i64>,
}

/// What the client gets.
pub struct Registered {
    /// The session.
    pub session: Rc<ClientSession>,
    /// Whether the session was there before.
    pub resumed: bool,
    /// When it ends at the earliest, without another sign of life.
    pub expires_at: i64,
    /// The next number in the session's own numbering.
    pub next_number: i64,
}

/// Registers a client.
pub fn register(asked: &Registration<'_>) -> Result<Registered, Error> {
    let session = new_session(asked)?;
    arguments::check_writable("idem_register", || "A session is a row of a table, though an unlogged one.".into())?;
    let deadline = Deadline::after(asked.wait_us);
    secret::put_in_use()?;
    // Only one registration of a client, or with an id, runs at a time.
    for by in session.known_by() {
        let what = || "a registration of the same client by another transaction".into();
        let lock = names::registered_lock(LockClass::Registration, session.owner, by);
        lock.acquire_or_fail(deadline.left_us(), WAIT_BY_ARGUMENT, what)?;
    }
    if let Some(request_id) = &session.request_id
        && let Some(before) = find_certain(session.owner, KnownBy::RequestId(request_id), deadline)?
    {
        let before = Rc::new(before);
        liveness::attend_within(&before, deadline)?;
        return registered(before);
    }
    if let Some(client) = session.client.as_deref()
        && let Some(former) = find_certain(session.owner, KnownBy::Client(client), deadline)?
        && let Some(resumed) = resume_or_fence(former, &session, asked.resume, deadline)?
    {
        return Ok(resumed);
    }
    quota::take(session.owner, Kind::Client)?;
    if session.known_by().next().is_some() {
        // It may leave a row for its end without ever having an outcome.
        quota::take(session.owner, Kind::Ended)?;
    }
    // The session's time begins here, after the waits.
    let now_us = pg::now_us();
    live::insert(&session, now_us);
    if session.client.is_some() && session.request_id.is_some() && asked_for_at(&session).is_none() {
        // The id tells no time by which a late copy of this registration could be recognised. Only the session's row
        // can tell, so the row must survive a crash.
        save::save(&session)?;
        pg::force_sync_commit();
    }
    let expires_at = now_us.saturating_add(session.timeout_us);
    Ok(Registered { session: Rc::new(session), resumed: false, expires_at, next_number: 1 })
}

/// The session that is asked for, checked and within the limits.
fn new_session(asked: &Registration<'_>) -> Result<ClientSession, Error> {
    let order = match asked.ordering {
        "any" => Order::Any,
        "strict" => Order::Strict,
        other => {
            return Err(Error::Invalid {
                message: "the ordering must be \"any\" or \"strict\"".into(),
                detail: format!("Found \"{}\".", other.chars().take(64).collect::<String>()),
                hint: "any: numbers may come in any order within the window; strict: one after the other, from 1.",
            });
        }
    };
    if let Some(client) = asked.client {
        if client.is_empty() {
            return Err(Error::Invalid {
                message: "the name of a client is empty".into(),
                detail: "Found a name of 0 characters.".into(),
                hint: "Name the process that sends the requests, or leave client out.",
            });
        }
        arguments::check_chars("the name of a client", client, CLIENT_CHARS_MAX, "Choose a shorter name.")?;
    }
    let id = Uuid::now_v7().into_bytes();
    Ok(ClientSession {
        id,
        name: identity::client_session_name(&id, Some(&guc::node())),
        owner: pg::current_role(),
        client: asked.client.map(Into::into),
        request_id: asked.request_id,
        order,
        window: window(asked.window_size)?,
        timeout_us: timeout_us(asked.timeout.as_ref())?,
        created_at: pg::now_us(),
    })
}

/// The window that is asked for, at most the widest one.
fn window(asked: Option<i32>) -> Result<i32, Error> {
    match asked.unwrap_or_else(guc::window_size) {
        window if window >= 1 => Ok(window.min(WINDOW_MAX)),
        window => Err(Error::Invalid {
            message: "window_size is not positive".into(),
            detail: format!("Found {window}; it goes from 1 to {WINDOW_MAX}."),
            hint: "Ask for as many replies as the client has requests in flight in one stream, or leave it out.",
        }),
    }
}

/// The timeout that is asked for, clamped to the limits.
fn timeout_us(asked: Option<&Interval>) -> Result<i64, Error> {
    let Some(asked) = asked else { return Ok(guc::session_timeout_us()) };
    match pg::interval_us(asked) {
        Some(us) if us > 0 => Ok(us.clamp(TIMEOUT_US_MIN, TIMEOUT_US_MAX)),
        None if asked.months() > 0 || asked.days() > 0 || asked.micros() > 0 => Ok(TIMEOUT_US_MAX),
        _ => Err(Error::Invalid {
            message: "the timeout is not positive".into(),
            detail: "A timeout is at least 2 seconds and at most 7 days.".into(),
            hint: "Give the longest silence that the session is to outlast, or leave it out.",
        }),
    }
}

/// The session that is found by a client's name or by a registration's id. If there is none, but another transaction is
/// saving such a session, this waits for the end of that transaction. A transaction that was prepared before a crash
/// may be all that is left of the session.
fn find_certain(owner: pg_sys::Oid, by: KnownBy<'_>, deadline: Deadline) -> Result<Option<ClientSession>, Error> {
    let lock = names::registered_lock(LockClass::SaveOfRegistered, owner, by);
    // Mostly there is none. The lock is looked at first, and so one search is enough.
    let held = lock.is_held_by_another();
    let find = || live::find_registered(owner, by).or_else(|| saved::find_registered(owner, by));
    match find() {
        None if held && lock.wait_for_end_of_holder(deadline.left_us()) => Ok(find()),
        None if held => {
            let what = "a transaction, a prepared one say, with the first outcome of a former session,".into();
            Err(Error::WaitRanOut { what, hint: WAIT_BY_ARGUMENT })
        }
        found => Ok(found),
    }
}

/// The answer for a session that was there before. The registration counts as a sign of life.
fn registered(session: Rc<ClientSession>) -> Result<Registered, Error> {
    let expires_at = pg::now_us().saturating_add(session.timeout_us);
    let next_number = calls::position_of(&session, "")?.next_number;
    Ok(Registered { session, resumed: true, expires_at, next_number })
}

/// When a session's registration was first asked for, if its id tells.
fn asked_for_at(session: &ClientSession) -> Option<i64> {
    time_key::made_at_us(&Uuid::from_bytes(session.request_id?), session.created_at)
}

/// Refuses a registration whose id was made before the registration of the client's present session. It may be a late copy of a
/// registration whose session was lost in a crash before its first outcome, and so left no trace.
fn refuse_late(new: &ClientSession, present: &ClientSession) -> Result<(), Error> {
    // The time in an id is rounded down to a millisecond.
    let registered_at = || present.created_at.div_euclid(1000) * 1000;
    match asked_for_at(new) {
        Some(asked_at) if asked_at < asked_for_at(present).unwrap_or_else(registered_at) => {
            let client = new.client.clone().unwrap_or_default();
            Err(Error::LateRegistration { client, session: present.name.clone() })
        }
        _ => Ok(()),
    }
}

/// Hands the client's former session over, or ends it so that `new` can take its place. `None`: it has ended.
fn resume_or_fence(
    former: ClientSession,
    new: &ClientSession,
    resume: bool,
    deadline: Deadline,
) -> Result<Option<Registered>, Error> {
    if open::is_in_use(&former.id) {
        let action = if resume { "resume" } else { "fence" };
        return Err(Error::SessionInUse { session: former.name, action });
    }
    let taken = match resume {
        true => names::client_session_lock(&former.id).acquire_in_short_waits(deadline.left_us()),
        false => liveness::take_to_end(&former, "fence", deadline)?,
    };
    if !taken {
        let what = format!("a transaction of client session \"{}\", the former one of this client,", former.name);
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_ARGUMENT });
    }
    match liveness::last_seen(&former) {
        Ok(seen) if liveness::clock_has_run_out(&former, seen) => liveness::end(&former, End::Expired),
        Ok(_) if !resume => {
            refuse_late(new, &former)?;
            liveness::end(&former, End::Fenced);
        }
        Ok(_) => {
            live::save(&former, pg::now_us());
            return registered(Rc::new(former)).map(Some);
        }
        // Another transaction ended it while this one waited for its lock.
        Err(Error::SessionEnded { .. } | Error::SessionFenced { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(None)
}
