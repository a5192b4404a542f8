//! Whether a client session is alive, and the signs that keep it so.
//!
//! Each transaction that uses a session shares its lock to the end; whoever ends it, or hands it over,
//! has to have that lock alone. So one in use neither ends nor is fenced half way, and a session is past
//! its end only when its clock has run out and nobody shares its lock. Whoever has it alone does not use
//! it: once the clock has run out, such a session is waited for, since it is being ended or resumed. So
//! what a client gets does not depend on who tidies up, or when.
//!
//! A sign of life is written just before the commit, at the clock then, and only when the last is older
//! than an eighth of the timeout and nobody else is at it: requests of one session never wait for each
//! other because of it.

use crate::domain::end::End;
use crate::domain::timeout::{runs_out_at, sign_is_due};
use crate::error::{Error, WAIT_BY_SETTING};
use crate::lock::Held;
use crate::model::ClientSession;
use crate::names;
use crate::open::{self, UsedSession};
use crate::pg::{self, Deadline};
use crate::sessions::find::{self, Sought};
use crate::store::catalog;
use crate::store::segment;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use std::rc::Rc;

/// What can be said of a session that was not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its clock has not run out, or somebody uses it.
    Alive,
    /// Its clock has run out, and somebody has it alone, to end or to resume it.
    Undecided,
}

/// Refuses a session that has ended.
pub fn check(session: &ClientSession) -> Result<Life, Error> {
    if !clock_has_run_out(session, last_seen(session)?) {
        return Ok(Life::Alive);
    }
    let lock = names::client_session(&session.id);
    if lock.is_held_by_us() {
        return Ok(Life::Alive);
    }
    match lock.held_by_others() {
        Held::Shared => Ok(Life::Alive),
        Held::Alone => Ok(Life::Undecided),
        // Whoever had it until just now wrote what it had to say before it let the lock go.
        Held::Free if clock_has_run_out(session, last_seen(session)?) => Err(run_out(session)),
        Held::Free => Ok(Life::Alive),
    }
}

fn run_out(session: &ClientSession) -> Error {
    Error::SessionEnded { session: session.name.clone(), how: Some(End::Expired) }
}

/// Refuses a session that nothing is known of any more. One that has ended is still known as long as its
/// row is kept; what a backend remembers does not count.
pub fn check_known(session: &ClientSession) -> Result<(), Error> {
    match last_seen(session) {
        Err(
            error @ (Error::SessionEnded { how: None, .. }
            | Error::SessionInDoubt { .. }
            | Error::SessionNotHere { .. }),
        ) => Err(error),
        _ => Ok(()),
    }
}

/// Whether its clock has run out at this moment. While the server is down nobody's time passes.
pub fn clock_has_run_out(session: &ClientSession, seen: i64) -> bool {
    let now_us = pg::now_us();
    let over = |seen| runs_out_at(seen, session.timeout_us) <= now_us;
    // Where nothing tells when the server came up, as in the first moments after its start, it may be now.
    over(seen) && over(seen.max(pg::up_since().unwrap_or(now_us)))
}

/// Uses the session in this transaction: shares its lock, and has a sign of life given at the end.
/// `false`: somebody has it alone. The caller has just found it alive by [`check`]; but before the lock was
/// shared it may have been ended, or its clock may have run out.
pub fn attend(session: &Rc<ClientSession>) -> Result<bool, Error> {
    let lock = names::client_session(&session.id);
    let used_by_us = lock.is_held_by_us();
    if !lock.is_shared_by_us() && !lock.try_share() {
        return Ok(false);
    }
    let seen = last_seen(session)?;
    if !used_by_us && clock_has_run_out(session, seen) && !lock.is_held_by_another() {
        lock.release_share();
        return Err(run_out(session));
    }
    open::use_session(session, seen);
    Ok(true)
}

/// As [`attend`], after [`check`], waiting for whoever has the session alone.
pub fn attend_within(session: &Rc<ClientSession>, deadline: Deadline) -> Result<(), Error> {
    while check(session)? == Life::Undecided || !attend(session)? {
        if !wait_while_taken(session, deadline) {
            let what = format!("the handing over of client session \"{}\" by another transaction", session.name);
            return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
        }
    }
    Ok(())
}

/// Waits while another transaction has the session alone; whether it is worth looking again.
pub fn wait_while_taken(session: &ClientSession, deadline: Deadline) -> bool {
    names::client_session(&session.id).wait_while_alone(deadline.left_us())
}

/// The last sign of life of a session that was not ended.
pub fn last_seen(session: &ClientSession) -> Result<i64, Error> {
    let name = || session.name.clone();
    match find::or_doubt(|| names::client_session(&session.id), || find_last_seen(session))? {
        Sought::Found(seen) => Ok(seen),
        Sought::NotHere => Err(Error::SessionNotHere { session: name() }),
        Sought::InDoubt => Err(Error::SessionInDoubt { session: name() }),
        Sought::Nothing => Err(Error::SessionEnded { session: name(), how: None }),
    }
}

fn find_last_seen(session: &ClientSession) -> Result<Option<i64>, Error> {
    if let Some(live) = live::find(&session.id) {
        return Ok(Some(live.last_seen));
    }
    let name = || session.name.clone();
    match saved::find(&session.id).map(|saved| saved.ended) {
        None => Ok(None),
        Some(None) => Ok(Some(restored_at())),
        Some(Some((_, End::Fenced))) => Err(Error::SessionFenced { session: name() }),
        Some(Some((_, how))) => Err(Error::SessionEnded { session: name(), how: Some(how) }),
    }
}

/// When a saved session that is not at work counts as last seen: when the server came up, or when the
/// data was restored. Either emptied `session_live` through no fault of the client's.
pub fn restored_at() -> i64 {
    if pg::in_recovery() {
        // Nobody's time passes here.
        return pg::now_us();
    }
    pg::up_since().unwrap_or_else(pg::now_us).max(segment::sessions_restored_at())
}

/// Ends a session. The caller has its lock alone. What leaves a trace in `session` is what was saved, and
/// what somebody has to be told later: that it was fenced, or what became of a registration's id.
pub fn end(session: &ClientSession, how: End) {
    let now_us = pg::now_us();
    if saved::end(session, now_us, how, how == End::Fenced || session.request_id.is_some()) {
        // No crash may undo an end that somebody was told of, whatever synchronous_commit says.
        pg::force_sync_commit();
    }
    live::delete(&session.id);
}

/// Gives the signs of life that are due; called with the commit.
pub fn give_signs(used: Vec<UsedSession>) {
    // This very transaction may have dropped the extension.
    for UsedSession { session, last_seen } in used {
        if sign_is_due(last_seen, session.timeout_us, pg::now_us()) && !pg::read_only() && catalog::is_installed() {
            pg::with_snapshot(|| give_sign(&session));
        }
    }
}

fn give_sign(session: &ClientSession) {
    // A rollback to a savepoint may have given the session up, and others may have ended it since.
    // Nor does a commit wait for who has the table, to index it say.
    if !names::client_session(&session.id).is_shared_by_us()
        || !live::try_lock()
        || !names::sign_of_life(&session.id).try_acquire()
    {
        return;
    }
    let now_us = pg::now_us();
    match live::find(&session.id) {
        Some(live) if sign_is_due(live.last_seen, session.timeout_us, now_us) => live::save(session, now_us),
        Some(_) => {}
        // Saved before a crash: this puts it back to work. Otherwise this transaction itself has ended it.
        None if saved::find(&session.id).is_some_and(|saved| saved.ended.is_none()) => live::save(session, now_us),
        None => {}
    }
}
