//! The sweep: what the background worker does to each database, and `CALL idem_sweep()` by hand. A
//! sequence of steps, each a transaction of its own, one sweep at a time in a database.

use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::ring::{self, Progress};
use crate::store::{checkpoint, swept};

/// A step of the sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Truncates segments whose outcomes have expired.
    Empty,
    /// Turns to the next segment.
    Turn,
    /// Notes that nobody writes a former segment any more.
    Close,
    /// Deletes abandoned checkpoints, once in a while.
    Tidy,
}

impl Step {
    /// All of them, in their order: what is emptied can be turned to, what was turned away from closed.
    pub const ALL: [Step; 4] = [Step::Empty, Step::Turn, Step::Close, Step::Tidy];

    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
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

impl From<Progress> for Swept {
    fn from(progress: Progress) -> Swept {
        Swept { done: progress.done, delayed: progress.delayed, more: false }
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
        Step::Empty => ring::empty().map(Into::into),
        Step::Turn => ring::turn().map(Into::into),
        Step::Close => ring::close().map(Into::into),
        Step::Tidy => Ok(tidy()),
    }
    .map(Some)
}

fn tidy() -> Swept {
    let now_us = pg::now_us();
    let mut swept = Swept::default();
    let last = swept::find();
    if last.is_some_and(|last| now_us.abs_diff(last.tidied_at) < TIDY_EVERY_US.unsigned_abs()) {
        return swept;
    }
    let batch = guc::sweep_batch();
    let checkpoints = checkpoint::delete_abandoned(batch);
    if checkpoints > 0 {
        swept.done.push(format!("{checkpoints} abandoned checkpoints are deleted"));
    }
    swept.more = checkpoints == batch;
    if !swept.more {
        swept::save(now_us, now_us);
    }
    swept
}

/// Notes the end of a sweep by hand.
pub fn note() {
    let now_us = pg::now_us();
    if Tag::sweep().try_acquire() {
        swept::save(now_us, swept::find().map_or(now_us, |there| there.tidied_at));
    }
}
