//! The sweep: what the background worker does to each database, and `CALL idem_sweep()` by hand. A
//! sequence of steps, each a transaction of its own, one sweep at a time in a database.

use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::ring::{self, Progress};
use crate::store::{checkpoint, swept};

mod sessions;

/// A step of the sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Puts saved client sessions back to work after a crash or a failover.
    Restore,
    /// Ends client sessions whose client has fallen silent.
    End,
    /// Deletes client sessions a retention after their end.
    Delete,
    /// Truncates segments whose outcomes have expired.
    Empty,
    /// Turns to the next segment.
    Turn,
    /// Notes that nobody writes a former segment any more.
    Close,
    /// Once in a while, deletes abandoned checkpoints and clears owners that are gone.
    Tidy,
}

impl Step {
    /// All of them, in their order: what is emptied can be turned to, what was turned away from closed.
    pub const ALL: [Step; 7] =
        [Step::Restore, Step::End, Step::Delete, Step::Empty, Step::Turn, Step::Close, Step::Tidy];

    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Step::Restore => "restore",
            Step::End => "end",
            Step::Delete => "delete",
            Step::Empty => "empty",
            Step::Turn => "turn",
            Step::Close => "close",
            Step::Tidy => "tidy",
        }
    }

    /// The step of that name.
    pub fn named(name: &str) -> Option<Step> {
        Step::ALL.into_iter().find(|step| step.name() == name)
    }
}

/// What one transaction of a step did.
#[derive(Default)]
pub struct Swept {
    /// What was done, in words.
    pub done: Vec<String>,
    /// What could not be done, and who is in the way.
    pub delayed: Vec<String>,
    /// Whether the step has more to do.
    pub more: bool,
}

impl Swept {
    fn of(count: usize, what: &str, more: bool) -> Swept {
        let done = if count > 0 { vec![format!("{count} {what}")] } else { Vec::new() };
        Swept { done, delayed: Vec::new(), more }
    }
}

impl From<Progress> for Swept {
    fn from(progress: Progress) -> Swept {
        Swept { done: progress.done, delayed: progress.delayed, more: progress.more }
    }
}

/// What need not be looked for in each sweep is looked for so often.
const TIDY_EVERY_US: i64 = 3_600 * 1_000_000;

/// Takes a step, or a batch of it, in the current transaction; `None` when another sweep is at work.
pub fn take(step: Step) -> Result<Option<Swept>, Error> {
    if pg::read_only() {
        let detail = "The sweep deletes what is not kept any longer.".into();
        return Err(Error::ReadOnly { function: "idem_sweep", detail });
    }
    if !Tag::sweep().try_acquire() {
        return Ok(None);
    }
    // No standby that does not answer shall make us keep our locks.
    pg::commit_locally();
    match step {
        Step::Restore => restore(),
        Step::End => end(),
        Step::Delete => delete(),
        Step::Empty => ring::empty().map(Into::into),
        Step::Turn => ring::turn().map(Into::into),
        Step::Close => ring::close().map(Into::into),
        Step::Tidy => tidy(),
    }
    .map(Some)
}

/// So many rows in one transaction. Most take a lock or two each until its end, and others need locks too.
fn batch() -> usize {
    guc::sweep_batch().min(pg::lock_table_size() / 16).max(1)
}

/// After a crash, and once in a while: a restore of the data leaves sessions like a crash does.
fn restore() -> Result<Swept, Error> {
    let last = swept::find();
    if last.as_ref().is_some_and(|last| !is_long_ago(last.tidied_at)) {
        return Ok(Swept::default());
    }
    let (restored, all) = sessions::restore(batch())?;
    if all && last.is_none() {
        swept::save(pg::now_us(), 0);
    }
    // Those that are in the middle of something come with the next sweep.
    Ok(Swept::of(restored, "client sessions are at work again", restored > 0))
}

fn end() -> Result<Swept, Error> {
    let batch = batch();
    let (ended, found) = sessions::end_silent(batch)?;
    Ok(Swept::of(ended, "silent client sessions are ended", ended > 0 && found == batch))
}

fn delete() -> Result<Swept, Error> {
    let batch = guc::sweep_batch();
    let (rows, deleted) = sessions::delete_ended(batch)?;
    Ok(Swept::of(deleted, "ended client sessions are deleted", rows >= batch))
}

fn is_long_ago(tidied_at: i64) -> bool {
    pg::now_us().abs_diff(tidied_at) >= TIDY_EVERY_US.unsigned_abs()
}

fn tidy() -> Result<Swept, Error> {
    let last = swept::find();
    if last.as_ref().is_some_and(|last| !is_long_ago(last.tidied_at)) {
        return Ok(Swept::default());
    }
    let batch = batch();
    let checkpoints = checkpoint::delete_abandoned(batch);
    let owners = sessions::clear_owners(batch)?;
    let more = checkpoints == batch || owners == batch;
    let mut swept = Swept::of(checkpoints, "abandoned checkpoints are deleted", more);
    swept.done.extend(Swept::of(owners, "sessions have lost their owner, who is gone", false).done);
    if !more && let Some(last) = last {
        swept::save(last.swept_at, pg::now_us());
    }
    Ok(swept)
}

/// Notes the end of a sweep by hand.
pub fn note() {
    if Tag::sweep().try_acquire()
        && let Some(last) = swept::find()
    {
        swept::save(pg::now_us(), last.tidied_at);
    }
}
