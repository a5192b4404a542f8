//! Whether a client session is alive, and the signs of life that keep it alive.
//!
//! Each transaction that uses a session shares the session's lock to its end. A transaction that ends the session, or
//! hands it over, must have the lock alone. So a session in use neither ends nor is fenced half way. A session whose
//! clock has run out is judged by its lock. If transactions share the lock, the session is alive. If nobody has it, the
//! session has ended, whether anybody has written that down or not. If a transaction has it alone, the session is being
//! ended or resumed, and the caller waits. So what a client gets does not depend on who tidies up, or when.
//!
//! A sign of life is written just before the commit, with the time at that moment. It is written only when the last one
//! is at least an eighth of the timeout old and nobody else is writing one. So requests of one session never wait for
//! each other because of it.

use crate::arguments;
use crate::domain::end::End;
use crate::domain::identity::SessionId;
use crate::domain::timeout::{runs_out_at, sign_is_due};
use crate::error::{Error, WAIT_BY_SETTING};
use crate::lock::{Held, Tag};
use crate::model::ClientSession;
use crate::names;
use crate::open;
use crate::pg::{self, Deadline};
use crate::store::catalog;
use crate::store::lease;
use crate::store::segment;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use std::rc::Rc;

/// The state of a session whose end is not written down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its clock has not run out, or a transaction uses it.
    Alive,
    /// Its clock has run out, and another transaction has it alone, to end or to resume it.
    Undecided,
}

/// Refuses a session that has ended.
pub fn check(session: &ClientSession) -> Result<Life, Error> {
    if !clock_has_run_out(session, last_seen(session)?) {
        return Ok(Life::Alive);
    }
    let lock = names::client_session_lock(&session.id);
    if lock.is_held_by_us() {
        return Ok(Life::Alive);
    }
    match lock.held_by_others() {
        Held::Shared => Ok(Life::Alive),
        Held::Alone => Ok(Life::Undecided),
        // A transaction that had the lock until just now has written the session's end or its sign of life before it
        // released the lock.
        Held::Free if clock_has_run_out(session, last_seen(session)?) => Err(run_out(session)),
        Held::Free => Ok(Life::Alive),
    }
}

fn run_out(session: &ClientSession) -> Error {
    Error::SessionEnded { session: session.name.clone(), how: Some(End::Expired) }
}

/// Refuses a session of which the tables have nothing any more, also if this backend still remembers it. A session that
/// has ended is known as long as its row is kept.
pub fn check_known(session: &ClientSession) -> Result<(), Error> {
    match last_seen(session) {
        Err(Error::SessionEnded { how: Some(_), .. } | Error::SessionFenced { .. }) => Ok(()),
        seen => seen.map(drop),
    }
}

/// Whether the session's clock has run out by now. While the server is down no session's time passes. A session that has
/// a lease lasts at least as long as the lease.
pub fn clock_has_run_out(session: &ClientSession, seen: i64) -> bool {
    let now_us = pg::now_us();
    let over = |seen| runs_out_at(seen, session.timeout_us) <= now_us;
    // In the first moments after the start nothing tells when the server came up. Then it counts as having come up now.
    over(seen) && over(seen.max(pg::up_since().unwrap_or(now_us))) && lease::last_end(&session.id, now_us).is_none()
}

/// Uses the session in this transaction: shares its lock, refuses a session that has ended, and has the commit give a sign
/// of life. `false`: another transaction has the session alone.
pub fn attend(session: &Rc<ClientSession>) -> Result<bool, Error> {
    let lock = names::client_session_lock(&session.id);
    let used_by_us = lock.is_held_by_us();
    // Whoever shares the lock uses the session, so nobody shares it before knowing that the clock has not run out.
    let surely_alive = || {
        // As this backend remembers the last sign of life; there may be a later one.
        live::remembered(&session.id).is_some_and(|seen| runs_out_at(seen, session.timeout_us) > pg::now_us())
    };
    if !used_by_us && !surely_alive() && check(session)? == Life::Undecided {
        return Ok(false);
    }
    if !lock.is_shared_by_us() && !lock.try_share() {
        return Ok(false);
    }
    let seen = if used_by_us {
        last_seen(session)?
    } else {
        shared_alive(session, &lock).inspect_err(|_| lock.release_share())?
    };
    open::use_session(session, seen);
    Ok(true)
}

/// The last sign of life of a session whose lock this transaction has just shared. Refuses a session that has ended: since
/// the look before, or by another's hand.
fn shared_alive(session: &ClientSession, lock: &Tag) -> Result<i64, Error> {
    let seen = last_seen(session)?;
    if !clock_has_run_out(session, seen) || lock.is_held_by_another() {
        return Ok(seen);
    }
    // As in check().
    let seen = last_seen(session)?;
    if clock_has_run_out(session, seen) { Err(run_out(session)) } else { Ok(seen) }
}

/// Calls [`attend`], and waits while another transaction has the session alone.
pub fn attend_within(session: &Rc<ClientSession>, deadline: Deadline) -> Result<(), Error> {
    while !attend(session)? {
        if !wait_while_taken(session, deadline) {
            let what = format!("the handing over of client session \"{}\" by another transaction", session.name);
            return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
        }
    }
    Ok(())
}

/// Waits while another transaction has the session alone. Tells whether it is worth looking again.
pub fn wait_while_taken(session: &ClientSession, deadline: Deadline) -> bool {
    names::client_session_lock(&session.id).wait_while_alone(deadline.left_us())
}

/// The last sign of life of a session whose end is not written down. Refuses any other session.
pub fn last_seen(session: &ClientSession) -> Result<i64, Error> {
    let seen = or_doubt(&session.id, &session.name, || find_last_seen(session))?;
    seen.ok_or_else(|| Error::SessionEnded { session: session.name.clone(), how: None })
}

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

fn find_last_seen(session: &ClientSession) -> Result<Option<i64>, Error> {
    if let Some(seen) = live::last_seen(&session.id) {
        return Ok(Some(seen));
    }
    let name = || session.name.clone();
    match saved::find(&session.id).map(|saved| saved.ended) {
        None => Ok(None),
        Some(None) => Ok(Some(restored_at())),
        Some(Some((_, End::Fenced))) => Err(Error::SessionFenced { session: name() }),
        Some(Some((_, how))) => Err(Error::SessionEnded { session: name(), how: Some(how) }),
    }
}

/// When a saved session without a row in `session_live` counts as last seen: when the server came up, or when the data
/// was restored, whichever is later. The row is missing because of that, through no fault of the client.
pub fn restored_at() -> i64 {
    if pg::in_recovery() {
        // On a standby no session's time passes.
        return pg::now_us();
    }
    pg::up_since().unwrap_or_else(pg::now_us).max(segment::sessions_restored_at())
}

/// Ends a session. The caller has the session's lock alone. A saved session has its end written in its row in
/// `session`. A session that was never saved gets a row there only if a client may have to be told its end later: the
/// session is fenced, or its registration had an id.
pub fn end(session: &ClientSession, how: End) {
    debug_assert!(
        names::client_session_lock(&session.id).is_held_by_us(),
        "only the holder of its lock ends a session"
    );
    let now_us = pg::now_us();
    let keeps_row = how == End::Fenced || session.request_id.is_some();
    if saved::end(session, now_us, how, keeps_row) || live::is_logged() {
        // A crash must not undo an end that a client was told of, whatever synchronous_commit says.
        pg::force_sync_commit();
    }
    live::delete(&session.id);
    debug_assert!(
        !matches!(find_last_seen(session), Ok(seen) if keeps_row || seen.is_some()),
        "the session has ended and is not at work"
    );
}

/// Makes sure that no crash brings back a session that was found to have ended: writes its end down, if that is only a
/// matter of the clock so far, or waits until the written end is durable. `false`: that is still open at the deadline.
pub fn make_end_certain(session: &ClientSession, function: &'static str, deadline: Deadline) -> Result<bool, Error> {
    let now_us = pg::now_us();
    if let Some(saved) = saved::find(&session.id).filter(|saved| saved.ended.is_some()) {
        return Ok(pg::wait_until_durable(saved.writer, pg::Durability::Flushed, now_us, || deadline));
    }
    arguments::check_writable(function, || "That the session has ended is to be written down.".into())?;
    if !names::client_session_lock(&session.id).acquire_in_short_waits(deadline.left_us()) {
        return Ok(false);
    }
    match last_seen(session) {
        Ok(seen) if clock_has_run_out(session, seen) => {
            end(session, End::Expired);
            pg::force_sync_commit();
            Ok(true)
        }
        // Another transaction has written it down meanwhile.
        Err(Error::SessionEnded { how: Some(_), .. } | Error::SessionFenced { .. }) => {
            make_end_certain(session, function, deadline)
        }
        // It was resumed meanwhile.
        Ok(_) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the lock of a session alone, to end the session, once nobody has a lease in it. `false`: a transaction uses the
/// session until the deadline. A lease that lasts longer is an error.
pub fn take_to_end(session: &ClientSession, action: &'static str, deadline: Deadline) -> Result<bool, Error> {
    let lock = names::client_session_lock(&session.id);
    loop {
        if !lock.acquire_in_short_waits(deadline.left_us()) {
            return Ok(false);
        }
        let now_us = pg::now_us();
        let Some(until) = lease::last_end(&session.id, now_us) else { return Ok(true) };
        // The holder of the lease needs the session to record.
        lock.release();
        let left_us = deadline.left_us().unwrap_or(i64::MAX);
        if left_us == 0 {
            let until = pg::describe_moment(until);
            return Err(Error::SessionLeased { session: session.name.clone(), action, until });
        }
        pg::nap(left_us.min(until.saturating_sub(now_us)).min(LEASE_LOOK_US));
    }
}

/// The pause between two looks whether a session still has a lease.
const LEASE_LOOK_US: i64 = 100_000;

/// Gives the signs of life that are due. Called just before the commit.
pub fn give_signs() {
    // The tables may be gone: this transaction itself may have dropped the extension.
    for (session, last_seen) in open::take_used_sessions() {
        if sign_is_due(last_seen, session.timeout_us, pg::now_us()) && !pg::read_only() && catalog::is_installed() {
            pg::with_newest_snapshot(|| give_sign(&session));
        }
    }
}

fn give_sign(session: &ClientSession) {
    // A rollback to a savepoint may have released the session's lock, and others may have ended the session since. And
    // a commit does not wait for a lock on the table, for example that of CREATE INDEX.
    if !names::client_session_lock(&session.id).is_shared_by_us()
        || !live::try_lock()
        || !names::sign_of_life_lock(&session.id).try_acquire()
    {
        return;
    }
    let now_us = pg::now_us();
    match live::find(&session.id) {
        Some(live) if sign_is_due(live.last_seen, session.timeout_us, now_us) => live::save(session, now_us),
        Some(_) => {}
        // The session was saved before a crash, so this puts it back to work.
        None if saved::find(&session.id).is_some_and(|saved| saved.ended.is_none()) => live::save(session, now_us),
        // This transaction itself has ended it.
        None => {}
    }
}
