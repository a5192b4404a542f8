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

use crate::domain::liveness::{End, runs_out_at, sign_is_due};
use crate::error::{Error, WAIT_BY_SETTING};
use crate::lock::{Held, Tag};
use crate::open::{self, Attended};
use crate::pg::{self, Deadline};
use crate::store::cache;
use crate::store::client::{self, Client};
use crate::store::live;
use crate::store::segment;
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
pub fn check(client: &Client) -> Result<Life, Error> {
    if !clock_has_run_out(client, last_seen(client)?) {
        return Ok(Life::Alive);
    }
    let lock = Tag::client(&client.id);
    if lock.is_held_by_us() {
        return Ok(Life::Alive);
    }
    match lock.held_by_others() {
        Held::Shared => Ok(Life::Alive),
        Held::Alone => Ok(Life::Undecided),
        // Whoever had it until just now wrote what it had to say before it let the lock go.
        Held::Free if clock_has_run_out(client, last_seen(client)?) => Err(run_out(client)),
        Held::Free => Ok(Life::Alive),
    }
}

fn run_out(client: &Client) -> Error {
    Error::SessionEnded { session: client.name.clone(), how: Some(End::Expired) }
}

/// Refuses a session that nothing is known of any more. One that has ended is still known as long as its
/// row is kept; what a backend remembers does not count.
pub fn check_known(client: &Client) -> Result<(), Error> {
    match last_seen(client) {
        Err(
            error @ (Error::SessionEnded { how: None, .. }
            | Error::SessionInDoubt { .. }
            | Error::SessionNotHere { .. }),
        ) => Err(error),
        _ => Ok(()),
    }
}

/// Whether its clock has run out at this moment. While the server is down nobody's time passes.
pub fn clock_has_run_out(client: &Client, seen: i64) -> bool {
    let now_us = pg::now_us();
    let over = |seen| runs_out_at(seen, client.timeout_us) <= now_us;
    // Where nothing tells when the server came up, as in the first moments after its start, it may be now.
    over(seen) && over(seen.max(pg::up_since().unwrap_or(now_us)))
}

/// Uses the session in this transaction: shares its lock, and has a sign of life given at the end.
/// `false`: somebody has it alone. The caller has just found it alive by [`check`]; but before the lock was
/// shared it may have been ended, or its clock may have run out.
pub fn attend(client: &Rc<Client>) -> Result<bool, Error> {
    let lock = Tag::client(&client.id);
    let used_by_us = lock.is_held_by_us();
    if !lock.is_shared_by_us() && !lock.try_share() {
        return Ok(false);
    }
    let seen = last_seen(client)?;
    if !used_by_us && clock_has_run_out(client, seen) && !lock.is_held_by_another() {
        lock.release_share();
        return Err(run_out(client));
    }
    open::attend(client, seen);
    Ok(true)
}

/// As [`attend`], after [`check`], waiting for whoever has the session alone.
pub fn attend_within(client: &Rc<Client>, deadline: Deadline) -> Result<(), Error> {
    while check(client)? == Life::Undecided || !attend(client)? {
        if !wait_while_taken(client, deadline) {
            let what = format!("the handing over of client session \"{}\" by another transaction", client.name);
            return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
        }
    }
    Ok(())
}

/// Waits while another transaction has the session alone; whether it is worth looking again.
pub fn wait_while_taken(client: &Client, deadline: Deadline) -> bool {
    Tag::client(&client.id).wait_while_alone(deadline.left_us())
}

/// The last sign of life of a session that was not ended.
pub fn last_seen(client: &Client) -> Result<i64, Error> {
    if let Some(seen) = find_last_seen(client)? {
        return Ok(seen);
    }
    let session = client.name.clone();
    if pg::in_recovery() {
        return Err(Error::SessionNotHere { session });
    }
    // A transaction that was prepared before a crash, say, has what there is to know; and it may be
    // committing just now, so what it left is looked for after its lock.
    let held = Tag::client(&client.id).is_held_by_another();
    match find_last_seen(client)? {
        Some(seen) => Ok(seen),
        None if held => Err(Error::SessionInDoubt { session }),
        None => Err(Error::SessionEnded { session, how: None }),
    }
}

fn find_last_seen(client: &Client) -> Result<Option<i64>, Error> {
    if let Some(live) = live::find(&client.id) {
        return Ok(Some(live.last_seen));
    }
    let session = client.name.clone();
    match client::find(&client.id).map(|saved| saved.ended) {
        None => Ok(None),
        Some(None) => Ok(Some(restored_at())),
        Some(Some((_, End::Fenced))) => Err(Error::SessionFenced { session }),
        Some(Some((_, how))) => Err(Error::SessionEnded { session, how: Some(how) }),
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
pub fn end(client: &Client, how: End) {
    let now_us = pg::now_us();
    if client::end(client, now_us, how, how == End::Fenced || client.request_id.is_some()) {
        // No crash may undo an end that somebody was told of, whatever synchronous_commit says.
        pg::force_sync_commit();
    }
    live::delete(&client.id);
}

/// Gives the signs of life that are due; called with the commit.
pub fn give_signs(attended: Vec<Attended>) {
    // This very transaction may have dropped the extension.
    for Attended { client, last_seen } in attended {
        if sign_is_due(last_seen, client.timeout_us, pg::now_us()) && !pg::read_only() && cache::is_installed() {
            pg::with_snapshot(|| give_sign(&client));
        }
    }
}

fn give_sign(client: &Client) {
    // A rollback to a savepoint may have given the session up, and others may have ended it since.
    // Nor does a commit wait for who has the table, to index it say.
    if !Tag::client(&client.id).is_shared_by_us() || !live::try_lock() || !Tag::sign(&client.id).try_acquire() {
        return;
    }
    let now_us = pg::now_us();
    match live::find(&client.id) {
        Some(live) if sign_is_due(live.last_seen, client.timeout_us, now_us) => live::save(client, now_us),
        Some(_) => {}
        // Saved before a crash: this puts it back to work. Otherwise this transaction itself has ended it.
        None if client::find(&client.id).is_some_and(|saved| saved.ended.is_none()) => live::save(client, now_us),
        None => {}
    }
}
