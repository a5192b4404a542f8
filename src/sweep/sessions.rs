//! The sweep's steps for sessions: put back to work, end, delete, clear of dropped roles, and forget.

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
use crate::sweep::due;
use crate::sweep::parts::{Done, Part};
use crate::sweep::progress::Progress;
use crate::sweep::tombstones;

/// Puts saved sessions back to work, each with a full fresh timeout from the moment when the server came up or
/// the sessions were restored. Ends the sessions whose timeout has passed since that moment. Returns the number
/// put back, and where to go on.
///
/// The session's lock is shared here. That keeps out whoever resumes, fences or ends the session, since they
/// need its lock alone. The lock for signs of life keeps out whoever gives one at the same time. A session whose
/// clock has run out is not shared: that would look like use. Its lock is taken alone, to end it.
pub fn restore(from: Cursor, batch: usize) -> Done {
    let last_seen = liveness::restored_at();
    let part = due::not_at_work(from, batch)?;
    let restored = part.ids.iter().filter(|id| restore_one(id, last_seen)).count();
    Ok((restored, part.next))
}

fn restore_one(id: &SessionId, last_seen: i64) -> bool {
    let run_out = |session: &ClientSession| liveness::clock_has_run_out(session, last_seen);
    // Since it was found, it may have ended, or its own client has put it to work.
    let not_at_work = || saved::find(id).filter(|saved| saved.ended.is_none() && live::find(id).is_none());
    let lock = names::client_session_lock(id);
    let Some(found) = not_at_work() else { return false };
    if run_out(&found.session) {
        if lock.try_acquire()
            && let Some(saved) = not_at_work()
            && run_out(&saved.session)
        {
            liveness::end(&saved.session, End::Expired);
        }
        return false;
    }
    if !lock.try_share() || !names::sign_of_life_lock(id).try_acquire() {
        return false;
    }
    let Some(saved) = not_at_work() else { return false };
    live::save(&saved.session, last_seen);
    true
}

/// Ends sessions whose client has fallen silent and that no transaction uses. Returns the number ended, and
/// where to go on.
pub fn end_silent(from: Cursor, batch: usize) -> Done {
    let now_us = pg::now_us();
    let part = due::silent(from, batch, now_us, pg::up_since().unwrap_or(now_us))?;
    let ended = part.ids.iter().filter(|id| end_if_silent(id)).count();
    Ok((ended, part.next))
}

fn end_if_silent(id: &SessionId) -> bool {
    // No transaction uses it if its lock can be taken alone.
    let live = names::client_session_lock(id).try_acquire().then(|| live::find(id)).flatten();
    let silent = live.filter(|live| liveness::clock_has_run_out(&live.session, live.last_seen));
    silent.map(|live| liveness::end(&live.session, End::Expired)).is_some()
}

/// Deletes sessions that ended a retention ago, with all that they leave behind, which are rows up to a batch.
pub fn delete_ended() -> Result<Progress, Error> {
    let batch = guc::sweep_batch();
    let before_us = pg::now_us().saturating_sub(guc::retention_us());
    // What others have locked hides nothing behind it. For each such row they hold a lock on its lane, so there are few.
    let mut looked_at = 0;
    loop {
        let ended = due::ended_before(before_us, batch, looked_at)?;
        let (rows, deleted) = if ended.is_empty() { (0, 0) } else { due::delete(&ended, batch)? };
        looked_at += ended.len();
        if rows > 0 || ended.len() < batch {
            return Ok(Progress::counted(deleted, "ended client sessions deleted", rows >= batch));
        }
    }
}

/// Takes dropped roles out of sessions: a session without an owner is left to superusers, and a loan to a dropped
/// role ends. The bare number of a dropped role may be given to another role some day. Returns the number of
/// sessions, and where to go on.
pub fn clear_owners(from: Cursor, batch: usize) -> Done {
    with_locks(due::ownerless(from, batch)?, due::clear_owners)
}

/// Takes tombstones on to their next stage, see `tombstones.rs`. Returns the number of sessions that were
/// forgotten, and where to go on.
pub fn forget_dropped(from: Cursor, batch: usize) -> Done {
    with_locks(tombstones::find(from, batch)?, tombstones::advance)
}

/// Calls `work` for those sessions of a part whose locks are free, and takes these. The lock of a standing session keeps
/// out whoever makes it again.
fn with_locks(part: Part, work: fn(&[SessionId]) -> Result<usize, Error>) -> Done {
    let mut locked = Vec::with_capacity(part.ids.len());
    for id in part.ids {
        let name = due::name_of(&id)?;
        let lock = name.map_or_else(|| names::client_session_lock(&id), |name| names::standing_session_lock(&name));
        if lock.try_acquire() {
            locked.push(id);
        }
    }
    let count = if locked.is_empty() { 0 } else { work(&locked)? };
    Ok((count, part.next))
}
