//! The part of the sweep that is about client sessions.

use crate::domain::cursor::Cursor;
use crate::domain::end::End;
use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::guc;
use crate::model::ClientSession;
use crate::names;
use crate::pg;
use crate::sessions::liveness;
use crate::store::session::client as saved;
use crate::store::session_live as live;
use crate::sweep::due::{self, Ownerless};
use crate::sweep::tombstones;

/// Puts saved sessions back to work, a full fresh timeout before each; ends those whose timeout has passed
/// since. How many, and where to go on.
///
/// Resuming, fencing and ending need a session's lock alone and so exclude this, which shares it; whoever
/// gives a sign of life at the same time is excluded by the lock for that. Of a session whose clock has run
/// out the lock is not shared: that would look like use.
pub fn restore(from: Cursor, batch: usize) -> Result<(usize, Option<Cursor>), Error> {
    let last_seen = liveness::restored_at();
    let part = due::not_at_work(from, batch)?;
    let restored = part.ids.iter().filter(|id| restore_one(id, last_seen)).count();
    Ok((restored, part.next))
}

fn restore_one(id: &SessionId, last_seen: i64) -> bool {
    let run_out = |session: &ClientSession| liveness::clock_has_run_out(session, last_seen);
    let Some(found) = saved::find(id) else { return false };
    if run_out(&found.session) {
        end_if_not_at_work(id, run_out);
        return false;
    }
    if !names::client_session(id).try_share() || !names::sign_of_life(id).try_acquire() {
        return false;
    }
    match saved::find(id) {
        Some(saved) if saved.ended.is_none() && live::find(id).is_none() => {
            live::save(&saved.session, last_seen);
            true
        }
        // Ended, or put to work by its own client, since it was found.
        _ => false,
    }
}

fn end_if_not_at_work(id: &SessionId, run_out: impl Fn(&ClientSession) -> bool) {
    if !names::client_session(id).try_acquire() {
        return;
    }
    match saved::find(id) {
        Some(saved) if saved.ended.is_none() && live::find(id).is_none() && run_out(&saved.session) => {
            liveness::end(&saved.session, End::Expired);
        }
        _ => {}
    }
}

/// Ends sessions whose client has fallen silent and that no transaction uses; how many, and where to go on.
pub fn end_silent(from: Cursor, batch: usize) -> Result<(usize, Option<Cursor>), Error> {
    let now_us = pg::now_us();
    let part = due::silent(from, batch, now_us, pg::up_since().unwrap_or(now_us))?;
    let ended = part.ids.iter().filter(|id| end_if_silent(id)).count();
    Ok((ended, part.next))
}

fn end_if_silent(id: &SessionId) -> bool {
    if !names::client_session(id).try_acquire() {
        return false;
    }
    match live::find(id) {
        // Nobody uses it: its lock is had alone.
        Some(live) if liveness::clock_has_run_out(&live.session, live.last_seen) => {
            liveness::end(&live.session, End::Expired);
            true
        }
        _ => false,
    }
}

/// Deletes sessions that ended a retention ago, with all they leave behind; how many rows, and how many
/// sessions.
pub fn delete_ended(batch: usize) -> Result<(usize, usize), Error> {
    let before_us = pg::now_us().saturating_sub(guc::retention_us());
    match due::ended_before(before_us, batch)?.as_slice() {
        [] => Ok((0, 0)),
        ended => due::delete(ended, batch),
    }
}

/// Leaves sessions whose owner is gone to superusers, and ends loans to roles that are gone: the bare
/// number may be another role some day. How many, and where to go on.
pub fn clear_owners(from: Cursor, batch: usize) -> Result<(usize, Option<Cursor>), Error> {
    let ours = |session: &Ownerless| match &session.name {
        Some(name) => names::standing_session(name).try_acquire(),
        None => names::client_session(&session.id).try_acquire(),
    };
    let (found, next) = due::ownerless(from, batch)?;
    let locked: Vec<SessionId> = found.iter().filter(|one| ours(one)).map(|one| one.id).collect();
    let cleared = if locked.is_empty() { 0 } else { due::clear_owners(&locked)? };
    Ok((cleared, next))
}

/// Takes dropped sessions on to the time when their names are anybody's, see `store/tombstones.rs`; how many
/// came to it, and where to go on.
pub fn forget_dropped(from: Cursor, batch: usize) -> Result<(usize, Option<Cursor>), Error> {
    let part = tombstones::find(from, batch)?;
    let mut locked = Vec::with_capacity(part.ids.len());
    for id in part.ids {
        // Whoever makes the session again has this lock.
        if due::name_of(&id)?.is_some_and(|name| names::standing_session(&name).try_acquire()) {
            locked.push(id);
        }
    }
    let forgotten = if locked.is_empty() { 0 } else { tombstones::advance(&locked)? };
    Ok((forgotten, part.next))
}
