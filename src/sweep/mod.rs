//! The sweep: what the background worker does to each database, and `CALL idem_sweep()` by hand. A
//! sequence of steps, each a transaction of its own, one sweep at a time in a database.

mod checkpoints;
mod due;
mod held_by;
mod long;
mod look;
mod orphans;
mod parts;
pub mod progress;
mod ring;
mod sessions;
mod tombstones;

use crate::arguments;
use crate::domain::cursor::Cursor;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::sweep as noted;
use progress::Progress;

/// A step of the sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Truncates segments whose outcomes have expired, but for a few, which are moved.
    Empty,
    /// Turns to the next segment.
    Turn,
    /// Notes that nobody writes a former segment any more.
    Close,
    /// Deletes expired outcomes of those that were moved.
    Long,
    /// Puts saved client sessions back to work after a crash or a failover.
    Restore,
    /// Ends client sessions whose client has fallen silent.
    End,
    /// Deletes client sessions a retention after their end.
    Delete,
    /// Deletes abandoned checkpoints.
    Checkpoints,
    /// Clears the roles of sessions that are gone.
    Owners,
    /// Looks whether what was restored has its sessions.
    Orphans,
    /// Gives the names of dropped sessions back of which nothing is kept.
    Tombstones,
}

impl Step {
    /// All of them, in their order: first the ring, which is a matter of moments; what is emptied can be
    /// turned to, what was turned away from closed.
    pub const ALL: [Step; 11] = [
        Step::Empty,
        Step::Turn,
        Step::Close,
        Step::Long,
        Step::Restore,
        Step::End,
        Step::Delete,
        Step::Checkpoints,
        Step::Owners,
        Step::Orphans,
        Step::Tombstones,
    ];

    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Step::Empty => "empty",
            Step::Turn => "turn",
            Step::Close => "close",
            Step::Long => "long",
            Step::Restore => "restore",
            Step::End => "end",
            Step::Delete => "delete",
            Step::Checkpoints => "checkpoints",
            Step::Owners => "owners",
            Step::Orphans => "orphans",
            Step::Tombstones => "tombstones",
        }
    }

    /// The step of that name.
    pub fn named(name: &str) -> Option<Step> {
        Step::ALL.into_iter().find(|step| step.name() == name)
    }
}

/// What need not be looked for in each sweep is looked for so often: what is rare, or left by a restore.
const RARELY_US: i64 = 3_600 * 1_000_000;

/// By this name the end of a sweep by hand is noted.
const BY_HAND: &str = "by hand";

/// Takes a step, or a batch of it, in the current transaction; `None` when another sweep is at work.
pub fn take(step: Step) -> Result<Option<Progress>, Error> {
    arguments::check_writable("idem_sweep", || "The sweep deletes what is not kept any longer.".into())?;
    if pg::keeps_snapshot() {
        return Err(Error::Invalid {
            message: "the sweep needs the isolation level READ COMMITTED".into(),
            detail: "A snapshot that is older than the locks of a step does not show all that it must not delete."
                .into(),
            hint: "CALL idem_sweep(), which sees to it, or set the level of this transaction.",
        });
    }
    if !Tag::sweep().try_acquire() {
        return Ok(None);
    }
    // No standby that does not answer shall make us keep our locks.
    pg::commit_locally();
    match step {
        Step::Empty => ring::empty(batch()),
        Step::Turn => ring::turn(),
        Step::Close => ring::close(),
        Step::Long => long::delete_expired(batch()),
        Step::Restore => part(step, RARELY_US, "client sessions at work again", sessions::restore),
        Step::End => part(step, 0, "silent client sessions ended", sessions::end_silent),
        Step::Delete => delete(),
        Step::Checkpoints => part(step, RARELY_US, "abandoned checkpoints deleted", checkpoints::delete_abandoned),
        Step::Owners => part(step, RARELY_US, "sessions with a role that is gone", sessions::clear_owners),
        Step::Orphans => look_for_orphans(),
        Step::Tombstones => part(step, RARELY_US, "dropped sessions forgotten", sessions::forget_dropped),
    }
    .map(Some)
}

/// So many rows in one transaction. Most take a lock or two each until its end, and others need locks too.
fn batch() -> usize {
    guc::sweep_batch().min(pg::lock_table_size() / 16).max(1)
}

/// Looks through the next part of a table, from where the step stopped. From its beginning if the last time
/// it came to the end is `every_us` ago, or was before a crash.
fn part(
    step: Step,
    every_us: i64,
    what: &str,
    work: impl FnOnce(Cursor, usize) -> Result<(usize, Option<Cursor>), Error>,
) -> Result<Progress, Error> {
    let last = noted::find(step.name());
    let (done_at, cursor) = last.map_or((0, Cursor::START), |last| (last.done_at, last.cursor));
    // A clock that was set back must not keep it from being done.
    if cursor == Cursor::START && pg::now_us().abs_diff(done_at) < every_us.unsigned_abs() {
        return Ok(Progress::default());
    }
    let (count, next) = work(cursor, batch())?;
    match next {
        Some(next) => noted::save(step.name(), done_at, next),
        // What is done each time needs no note of it.
        None if every_us > 0 || cursor != Cursor::START => noted::save(step.name(), pg::now_us(), Cursor::START),
        None => {}
    }
    Ok(Progress::counted(count, what, next.is_some()))
}

fn delete() -> Result<Progress, Error> {
    let batch = guc::sweep_batch();
    let (rows, deleted) = sessions::delete_ended(batch)?;
    Ok(Progress::counted(deleted, "ended client sessions deleted", rows >= batch))
}

fn look_for_orphans() -> Result<Progress, Error> {
    let Some(looked) = orphans::look(batch())? else { return Ok(Progress::default()) };
    let done = if looked.found > 0 {
        vec![format!("rows of {} whose session was not restored: {}", looked.table, looked.found)]
    } else {
        Vec::new()
    };
    Ok(Progress { done, delayed: Vec::new(), more: looked.more })
}

/// Notes the end of a sweep by hand.
pub fn note() {
    if Tag::sweep().try_acquire() {
        noted::save(BY_HAND, pg::now_us(), Cursor::START);
    }
}

/// When a sweep by hand ended last.
pub fn by_hand_at() -> Option<i64> {
    noted::find(BY_HAND).map(|last| last.done_at)
}
