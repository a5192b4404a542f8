//! The sweep: what the background worker does to each database, and `CALL idem_sweep()` by hand. A
//! sequence of steps, each a transaction of its own, one sweep at a time in a database.

use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::part::Place;
use crate::store::ring::{self, Progress};
use crate::store::{checkpoint, long, orphans, swept};

mod sessions;

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
    if pg::read_only() {
        let detail = "The sweep deletes what is not kept any longer.".into();
        return Err(Error::ReadOnly { function: "idem_sweep", detail });
    }
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
        Step::Long => long::sweep(batch()),
        Step::Restore => part(step, RARELY_US, "client sessions at work again", sessions::restore),
        Step::End => part(step, 0, "silent client sessions ended", sessions::end_silent),
        Step::Delete => delete(),
        Step::Checkpoints => part(step, RARELY_US, "abandoned checkpoints deleted", checkpoint::delete_abandoned),
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

/// So many of what the words say.
fn counted(count: usize, what: &str, more: bool) -> Progress {
    let done = if count > 0 { vec![format!("{what}: {count}")] } else { Vec::new() };
    Progress { done, delayed: Vec::new(), more }
}

/// Looks through the next part of a table, from where the step stopped. From its beginning if the last time
/// it came to the end is `every_us` ago, or was before a crash.
fn part(
    step: Step,
    every_us: i64,
    what: &str,
    work: impl FnOnce(Place, usize) -> Result<(usize, Option<Place>), Error>,
) -> Result<Progress, Error> {
    let last = swept::find(step.name());
    let (done_at, place) = last.map_or((0, Place::START), |last| (last.done_at, last.place));
    // A clock that was set back must not keep it from being done.
    if place == Place::START && pg::now_us().abs_diff(done_at) < every_us.unsigned_abs() {
        return Ok(Progress::default());
    }
    let (count, next) = work(place, batch())?;
    match next {
        Some(next) => swept::save(step.name(), done_at, next),
        // What is done each time needs no note of it.
        None if every_us > 0 || place != Place::START => swept::save(step.name(), pg::now_us(), Place::START),
        None => {}
    }
    Ok(counted(count, what, next.is_some()))
}

fn delete() -> Result<Progress, Error> {
    let batch = guc::sweep_batch();
    let (rows, deleted) = sessions::delete_ended(batch)?;
    Ok(counted(deleted, "ended client sessions deleted", rows >= batch))
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
        swept::save(BY_HAND, pg::now_us(), Place::START);
    }
}

/// When a sweep by hand ended last.
pub fn by_hand_at() -> Option<i64> {
    swept::find(BY_HAND).map(|last| last.done_at)
}
