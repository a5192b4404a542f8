//! The sweep: what the background worker does to each database, and what `CALL idem_sweep()` does by hand.
//!
//! A sweep takes the steps of [`Step::ALL`] in their order. A step is one or more transactions, each complete
//! in itself, so a sweep may end after any of them. Each transaction holds the sweep's lock: one sweep at a
//! time is at work in a database. The step on journals has a lock of its own: these are tables of users, and nothing of
//! ours waits for what becomes of them.

mod abandoned;
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
use crate::journal::expired;
use crate::lock::{LockClass, Tag};
use crate::open;
use crate::pg;
use crate::store::persistence;
use crate::store::sweep as noted;
use progress::Progress;

/// A step of the sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Truncates closed segments whose outcomes have all expired.
    Empty,
    /// Turns the ring to the next segment.
    Turn,
    /// Closes former segments that nobody writes any more.
    Close,
    /// Deletes what has expired of the outcomes that were to outlive their segment.
    Long,
    /// Puts saved client sessions back to work after a crash or a failover.
    Restore,
    /// Ends client sessions whose client has fallen silent.
    End,
    /// Deletes client sessions that ended a retention ago.
    Delete,
    /// Deletes abandoned checkpoints.
    Checkpoints,
    /// Deletes abandoned leases.
    Leases,
    /// Makes restored tables logged or unlogged, as was chosen.
    Persistence,
    /// Takes dropped roles out of sessions.
    Owners,
    /// Looks whether restored rows have their sessions.
    Orphans,
    /// Forgets dropped sessions that have no outcome left, so that their names are free.
    Tombstones,
    /// Deletes what has expired in journals, a journal in a transaction. It comes last, since the tables are those of users.
    Journals,
}

impl Step {
    /// All steps, in their order. The steps of the ring come first, since they take only moments. Among them
    /// `Empty` comes before `Turn`, which needs an empty segment, and `Turn` before `Close`, which closes the
    /// segment that was turned away from.
    pub const ALL: [Step; 14] = [
        Step::Empty,
        Step::Turn,
        Step::Close,
        Step::Long,
        Step::Restore,
        Step::End,
        Step::Delete,
        Step::Checkpoints,
        Step::Leases,
        Step::Persistence,
        Step::Owners,
        Step::Orphans,
        Step::Tombstones,
        Step::Journals,
    ];

    /// The step's name in SQL.
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
            Step::Leases => "leases",
            Step::Journals => "journals",
            Step::Persistence => "persistence",
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

/// The pause between two looks for what is rare, or comes from a restore or a crash: an hour. Other steps look
/// in each sweep.
const RARELY_US: i64 = 3_600 * 1_000_000;

/// How long a step waits for the exports that are being read.
const EXPORT_US: i64 = 10_000_000;

/// The names under which the end of a sweep by hand is noted, beside the names of the steps: of one that was needed, since no
/// worker comes here, and of one beside the worker, which tells nothing of who sweeps where the worker comes no more.
const BY_HAND: &str = "by hand";
const BESIDE_WORKER: &str = "beside the worker";

/// Takes a step, or a batch of it, in the current transaction. `None`: another sweep, or a restore, is at work.
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
    let lock = Tag::of_all(lock_of(step));
    if !lock.try_acquire() && !acquire_from_exports(&lock) {
        return Ok(None);
    }
    // The commit waits for no standby: one that does not answer would make it keep the locks.
    pg::commit_locally();
    match step {
        Step::Empty => ring::empty(),
        Step::Turn => ring::turn(),
        Step::Close => ring::close(),
        Step::Long => long::delete_expired(batch()),
        Step::Restore => take_part(step, RARELY_US, "client sessions at work again", sessions::restore),
        Step::End => take_part(step, 0, "silent client sessions ended", sessions::end_silent),
        Step::Delete => delete_ended(),
        Step::Checkpoints => take_part(step, RARELY_US, "abandoned checkpoints deleted", abandoned::delete_checkpoints),
        Step::Leases => take_part(step, RARELY_US, "abandoned leases deleted", abandoned::delete_leases),
        Step::Journals => delete_in_journal(),
        Step::Persistence => apply_persistence(),
        Step::Owners => take_part(step, RARELY_US, "sessions with a role that is gone", sessions::clear_owners),
        Step::Orphans => look_for_orphans(),
        Step::Tombstones => take_part(step, RARELY_US, "dropped sessions forgotten", sessions::forget_dropped),
    }
    .map(Some)
}

/// Takes the sweep's lock where only exports share it, which one after the other could keep it from the sweep: once the sweep
/// waits, no export begins before it. A restore shares it too, for as long as it takes, and is not waited for.
fn acquire_from_exports(lock: &Tag) -> bool {
    let is_shared = lock.try_share();
    if is_shared {
        lock.release_share();
    }
    is_shared && !Tag::restore().is_held_by_another() && lock.acquire(Some(EXPORT_US))
}

/// The lock that a step takes.
pub fn lock_of(step: Step) -> LockClass {
    if step == Step::Journals { LockClass::Journals } else { LockClass::Sweep }
}

/// The most rows for one transaction. A row mostly takes a lock or two to the end of the transaction, and
/// others need room in the lock table too.
fn batch() -> usize {
    guc::sweep_batch().min(pg::lock_table_size() / 16).max(1)
}

/// Takes the next part of a step that looks through a table.
///
/// The look goes on where it stopped. After it has come to the end of the table, the next look begins no sooner
/// than `every_us` later, unless a crash has made the step forget.
fn take_part(
    step: Step,
    every_us: i64,
    what: &str,
    work: impl FnOnce(Cursor, usize) -> Result<(usize, Option<Cursor>), Error>,
) -> Result<Progress, Error> {
    let last = noted::find(step.name());
    let (done_at, cursor) = last.map_or((0, Cursor::START), |last| (last.done_at, last.cursor));
    // By the distance in either direction: a clock that was set back must not put the next look off.
    if cursor == Cursor::START && pg::now_us().abs_diff(done_at) < every_us.unsigned_abs() {
        return Ok(Progress::default());
    }
    let (count, next) = work(cursor, batch())?;
    match next {
        Some(next) => noted::save(step.name(), done_at, next),
        // A step that looks in each sweep, and did so in one part, leaves no row.
        None if every_us > 0 || cursor != Cursor::START => noted::save(step.name(), pg::now_us(), Cursor::START),
        None => {}
    }
    Ok(Progress::counted(count, what, next.is_some()))
}

fn delete_ended() -> Result<Progress, Error> {
    let batch = guc::sweep_batch();
    let (rows, deleted) = sessions::delete_ended(batch)?;
    Ok(Progress::counted(deleted, "ended client sessions deleted", rows >= batch))
}

fn delete_in_journal() -> Result<Progress, Error> {
    let Some(deleted) = expired::delete(guc::sweep_batch(), || open::unrecorded().is_some())? else {
        return Ok(Progress::default());
    };
    noted::save_failed(&deleted.journal, deleted.rows.as_ref().err().map(String::as_str))?;
    let mut progress =
        Progress::counted(*deleted.rows.as_ref().unwrap_or(&0), "expired rows of a journal deleted", deleted.more);
    if let Err(why) = deleted.rows {
        progress.delayed.push(format!("what has expired in journal {} cannot be deleted yet: {why}", deleted.journal));
    }
    Ok(progress)
}

fn apply_persistence() -> Result<Progress, Error> {
    let changed = persistence::apply_choices()?;
    Ok(Progress::counted(changed, "tables made logged or unlogged", false))
}

fn look_for_orphans() -> Result<Progress, Error> {
    let Some(looked) = orphans::look(batch())? else { return Ok(Progress::default()) };
    let what = format!("rows of {} whose session was not restored", looked.table);
    Ok(Progress::counted(looked.found, &what, looked.more))
}

/// Notes the end of a sweep by hand.
pub fn note_by_hand(beside_worker: bool) {
    if Tag::sweep().try_acquire() {
        noted::save(if beside_worker { BESIDE_WORKER } else { BY_HAND }, pg::now_us(), Cursor::START);
    }
}

/// When the last sweep by hand ended where no worker came.
pub fn by_hand_at() -> Option<i64> {
    noted::find(BY_HAND).map(|last| last.done_at)
}

/// When the last sweep by hand ended beside the worker.
pub fn beside_worker_at() -> Option<i64> {
    noted::find(BESIDE_WORKER).map(|last| last.done_at)
}
