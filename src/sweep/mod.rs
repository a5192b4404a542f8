//! The sweep: what the background worker does to each database, and what `CALL idem_sweep()` does by hand.
//!
//! A sweep takes the steps of [`Step::ALL`] in their order. A step is one or more transactions, each complete
//! in itself, so a sweep may end after any of them. Each transaction holds the sweep's lock: one sweep at a
//! time is at work in a database. The step on journals has a lock of its own: these are tables of users, and nothing of
//! ours waits for what becomes of them.

mod abandoned;
mod journals;
mod long;
mod orphans;
mod parts;
mod ring;
mod sessions;
mod tombstones;

use crate::arguments;
use crate::domain::cursor::Cursor;
use crate::error::Error;
use crate::guc;
use crate::lock::{LockClass, Tag};
use crate::pg;
use crate::store::persistence;
use crate::store::sweep as noted;
use parts::Done;

pub use parts::Progress;

/// A step of the sweep.
#[derive(Clone, Copy)]
pub struct Step {
    /// Its name in SQL.
    pub name: &'static str,
    /// What it does in a transaction. It is told its name.
    work: fn(&str) -> Result<Progress, Error>,
}

impl Step {
    /// All steps, in their order. The steps of the ring come first, since they take only moments. Among them
    /// `empty` comes before `turn`, which needs an empty segment, and `turn` before `close`, which closes the
    /// segment that was turned away from. The journals come last, since the tables are those of users.
    pub const ALL: [Step; 14] = [
        // Truncates closed segments whose outcomes have all expired.
        Step::new("empty", |_| ring::empty()),
        // Turns the ring to the next segment.
        Step::new("turn", |_| ring::turn()),
        // Closes former segments that nobody writes any more.
        Step::new("close", |_| ring::close()),
        // Deletes what has expired of the outcomes that were to outlive their segment.
        Step::new("long", |_| long::delete_expired(batch())),
        // Puts saved client sessions back to work after a crash or a failover.
        Step::new("restore", |name| take_part(name, RARELY_US, "client sessions at work again", sessions::restore)),
        // Ends client sessions whose client has fallen silent.
        Step::new("end", |name| take_part(name, 0, "silent client sessions ended", sessions::end_silent)),
        // Deletes client sessions that ended a retention ago.
        Step::new("delete", |_| sessions::delete_ended()),
        Step::new("checkpoints", |name| {
            take_part(name, RARELY_US, "abandoned checkpoints deleted", abandoned::delete_checkpoints)
        }),
        Step::new("leases", |name| take_part(name, RARELY_US, "abandoned leases deleted", abandoned::delete_leases)),
        // Makes restored tables logged or unlogged, as was chosen.
        Step::new("persistence", |_| {
            Ok(Progress::counted(persistence::apply_choices()?, "tables made logged or unlogged", false))
        }),
        // Takes dropped roles out of sessions.
        Step::new("owners", |name| {
            take_part(name, RARELY_US, "sessions with a role that is gone", sessions::clear_owners)
        }),
        // Looks whether restored rows have their sessions.
        Step::new("orphans", |_| orphans::look(batch())),
        // Forgets dropped sessions that have no outcome left, so that their names are free.
        Step::new("tombstones", |name| {
            take_part(name, RARELY_US, "dropped sessions forgotten", sessions::forget_dropped)
        }),
        // Deletes what has expired in journals, a journal in a transaction.
        Step::new("journals", |_| journals::delete(guc::sweep_batch())),
    ];

    const fn new(name: &'static str, work: fn(&str) -> Result<Progress, Error>) -> Step {
        Step { name, work }
    }

    /// Whether it is the one on the tables of users.
    pub fn is_on_journals(&self) -> bool {
        self.name == "journals"
    }

    /// Whether it turns the ring.
    pub fn is_of_ring(&self) -> bool {
        matches!(self.name, "empty" | "turn" | "close")
    }

    /// The lock that it takes.
    pub fn lock(&self) -> LockClass {
        if self.is_on_journals() { LockClass::Journals } else { LockClass::Sweep }
    }
}

/// The pause between two looks for what is rare, or comes from a restore or a crash: an hour. Other steps look
/// in each sweep.
const RARELY_US: i64 = 3_600 * 1_000_000;

/// How long a step waits for the exports that are being read.
const EXPORT_US: i64 = 10_000_000;

/// The name under which the end of a sweep by hand is noted, beside the names of the steps: of one that was needed, since no
/// worker comes here, or of one beside the worker, which tells nothing of who sweeps where the worker comes no more.
const fn by_hand(beside_worker: bool) -> &'static str {
    if beside_worker { "beside the worker" } else { "by hand" }
}

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
    let lock = Tag::of_all(step.lock());
    if !lock.try_acquire() && !acquire_from_exports(&lock) {
        return Ok(None);
    }
    // The commit waits for no standby: one that does not answer would make it keep the locks.
    pg::commit_locally();
    (step.work)(step.name).map(Some)
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

/// The most rows for one transaction. A row mostly takes a lock or two to the end of the transaction, and
/// others need room in the lock table too.
fn batch() -> usize {
    guc::sweep_batch().min(pg::lock_table_size() / 16).max(1)
}

/// Takes the next part of a step that looks through a table.
///
/// The look goes on where it stopped. After it has come to the end of the table, the next look begins no sooner
/// than `every_us` later, unless a crash has made the step forget.
fn take_part(step: &str, every_us: i64, what: &str, work: fn(Cursor, usize) -> Done) -> Result<Progress, Error> {
    let (done_at, cursor) = noted::find(step).unwrap_or((0, Cursor::START));
    // By the distance in either direction: a clock that was set back must not put the next look off.
    if cursor == Cursor::START && pg::now_us().abs_diff(done_at) < every_us.unsigned_abs() {
        return Ok(Progress::default());
    }
    let (count, next) = work(cursor, batch())?;
    match next {
        Some(next) => noted::save(step, done_at, next),
        // A step that looks in each sweep, and did so in one part, leaves no row.
        None if every_us > 0 || cursor != Cursor::START => noted::save(step, pg::now_us(), Cursor::START),
        None => {}
    }
    Ok(Progress::counted(count, what, next.is_some()))
}

/// Notes the end of a sweep by hand.
pub fn note_by_hand(beside_worker: bool) {
    if Tag::sweep().try_acquire() {
        noted::save(by_hand(beside_worker), pg::now_us(), Cursor::START);
    }
}

/// When the last sweep by hand ended, where no worker came or beside the worker.
pub fn by_hand_at(beside_worker: bool) -> Option<i64> {
    noted::find(by_hand(beside_worker)).map(|(done_at, _)| done_at)
}
