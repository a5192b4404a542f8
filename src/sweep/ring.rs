//! The sweep's steps that turn the ring of segments. `store/segment.rs` says what writers and readers do for the
//! ring, and `domain/pace.rs` how fast it turns.
//!
//! A segment is *current*, then *closing*, *closed* and *empty*, and then current again:
//!
//! * [`turn`] moves the pointer to the next segment. The current segment has to be older than half its `keep`,
//!   and the next one empty. A transaction before that announces the next one, so that nobody leaves it out any more.
//!   This takes no lock that a writer takes: transactions that write the old segment go on writing it.
//! * [`close`] notes the time when certainly nobody writes the old segment any more. That is so once a SHARE
//!   lock on it can be taken.
//! * [`empty`] comes `keep` after that time, and looks at some pages of the segment. If many of its outcomes
//!   still live, the segment is kept until few do. Else the segment is looked through, part by part. What lives
//!   is moved to `outcome_long` (`long.rs`). When only expired outcomes are left, the segment is truncated.
//!
//! Every lock on a segment is tried for, never waited for: a sweep in the queue would make others queue behind
//! it. So whatever holds a segment delays the ring and is not disturbed by it.
//!
//! A transaction writes a row of `segment` once at most, and then ends. Its result has `more` set if the next
//! transaction is to go on. Whoever writes these rows holds the sweep's lock: the sweep holds it alone, and the
//! triggers that a restore fires share it.
//!
//! Truncation is not MVCC-safe: a transaction with an older snapshot then finds nothing of what it could
//! still see. That makes no difference here, since what has expired by the clock counts as absent under
//! every snapshot.

use crate::domain::identity::Digest;
use crate::domain::limits::{EXPIRY_GRACE_US, KEEP_SLACK_US};
use crate::domain::pace;
use crate::error::Error;
use crate::monitor;
use crate::pg;
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::exclusive;
use crate::store::message;
use crate::store::outcome_long;
use crate::store::rel::{self, Rel};
use crate::store::segment::{self, Scanned, Segment};
use crate::store::sql;
use crate::sweep::held_by;
use crate::sweep::look;
use crate::sweep::progress::Progress;
use crate::sweep::swept;
use crate::sweep::tombstones;
use pgrx::pg_sys;

/// Whether a segment may be turned to.
fn is_ready(row: &Segment<'_>) -> bool {
    row.closed_at.is_some() && row.is_empty()
}

/// Since when a segment has been in its state: closed, or else current.
fn since(row: &Segment<'_>) -> i64 {
    row.closed_at.unwrap_or(row.opened_at)
}

/// Whether the segment was closed at least its `keep` ago.
fn is_over(row: &Segment<'_>, now_us: i64) -> bool {
    row.closed_at.is_some_and(|closed_at| closed_at.saturating_add(row.keep_us) <= now_us)
}

/// Whether the current segment is old enough to be turned away from.
fn is_to_be_turned(row: &Segment<'_>, now_us: i64) -> bool {
    now_us >= row.opened_at.saturating_add(row.keep_us / 2)
}

fn is_time_to_look(row: &Segment<'_>, now_us: i64) -> bool {
    pace::is_time_to_look(since(row), row.looked_at, now_us)
}

fn current_of(rows: &[Segment<'_>; 3]) -> Result<usize, Error> {
    rows.iter().position(|row| row.current).ok_or_else(segment::lost)
}

/// Closes segments that were turned away from, if certainly nobody writes them any more.
pub fn close() -> Result<Progress, Error> {
    let ring = segment::open_ring();
    let rows = segment::rows(&ring)?;
    let mut progress = Progress::default();
    for mut row in rows.into_iter().filter(|row| !row.current && row.closed_at.is_none()) {
        let table = cache::oid(row.table());
        if !rel::try_lock(table, pg_sys::ShareLock) {
            progress.delayed.push(format!(
                "segment {} cannot be closed yet: {}",
                row.number,
                held_by::of_segment(row.number)?
            ));
            continue;
        }
        // That the lock was free is proof enough. Nobody need wait for the end of this transaction.
        rel::unlock(table, pg_sys::ShareLock);
        row.set_closed_at(pg::now_us());
        row.set_keep(row.keep_us);
        row.forget_looks();
        row.save(&ring);
        // What is closed and empty need not be looked into any more, and otherwise not for fresh keys.
        message::ring_changed();
        if !row.is_empty() {
            progress.done.push(format!("segment {} is closed", row.number));
        }
    }
    Ok(progress)
}

/// Moves the pointer to the next segment, if that is due and possible. Looks now and then at the outcomes of the
/// current segment, whose ttls decide when the turn is due.
pub fn turn() -> Result<Progress, Error> {
    let mut progress = Progress::default();
    let ring = segment::open_ring();
    let mut rows = segment::rows(&ring)?;
    let current = current_of(&rows)?;
    let next = (current + 1) % rows.len();
    let now_us = pg::now_us();
    if mend_future_moments(&ring, &mut rows[current], &mut progress)? || rows[current].is_empty() {
        return Ok(progress);
    }
    let is_ready = is_ready(&rows[next]);
    if is_ready && !rows[next].opening && is_to_be_turned(&rows[current], now_us) {
        announce(&ring, &mut rows[next], &mut progress);
        return Ok(progress);
    }
    let row = &mut rows[current];
    let has_looked = is_time_to_look(row, now_us) || is_ready && is_to_be_turned(row, now_us);
    if has_looked {
        if let Some(keep_us) = look::sample(row.number, &row.open(), now_us)?.keep_us() {
            row.set_keep(keep_us);
        }
        row.set_looked_at(now_us);
    }
    let keep_us = row.keep_us;
    if !is_ready || !is_to_be_turned(row, now_us) {
        if has_looked {
            row.save(&ring);
        }
        let (is_due, next) = (is_to_be_turned(&rows[current], now_us), &rows[next]);
        // A closed segment whose `keep` has not passed is kept on purpose, since many of its outcomes live. Nobody
        // is in the way.
        if is_due && !is_ready && next.closed_at.is_none_or(|_| is_over(next, now_us)) {
            progress.delayed.push(format!("the ring cannot turn yet: segment {} is not empty", next.number));
        }
        return Ok(progress);
    }
    if !rows[next].opening {
        // What was recorded lives for less time than it was known before.
        announce(&ring, &mut rows[next], &mut progress);
        return Ok(progress);
    }
    if rows[next].is_ours {
        // This transaction has announced it, and its message goes out with the commit. The next one turns.
        return Ok(progress);
    }
    rows[current].set_turned_away_from();
    let opened = &mut rows[next];
    opened.set_keep(keep_us);
    opened.forget_looks();
    opened.set_opened(now_us);
    rows[current].save(&ring);
    rows[next].save(&ring);
    message::ring_changed();
    progress.done.push(format!("outcomes are recorded in segment {next} now"));
    Ok(progress)
}

/// Announces a segment as the next one to be current. The next transaction turns to it.
fn announce(ring: &Rel, next: &mut Segment<'_>, progress: &mut Progress) {
    next.set_opening();
    next.save(ring);
    message::ring_changed();
    progress.more = true;
}

/// How far in the future a moment may lie before the clock counts as having been wrong.
const CLOCK_US: i64 = 60_000_000;

/// Repairs a segment whose row has a moment in the future, and returns whether it had one.
///
/// Such a moment was noted under a clock that was wrong and has been set right since. The ring would stand still
/// until that moment comes, so it counts as now. What was recorded under the wrong clock is found when the
/// segment is looked through.
fn mend_future_moments(ring: &Rel, row: &mut Segment<'_>, progress: &mut Progress) -> Result<bool, Error> {
    let now_us = pg::now_us();
    let is_ahead = |us: i64| us.saturating_sub(now_us) > CLOCK_US;
    if ![Some(row.opened_at), row.closed_at, row.looked_at].into_iter().flatten().any(is_ahead) {
        return Ok(false);
    }
    row.clamp_moments(now_us);
    // Outcomes that had expired by the wrong clock may live by the right one.
    row.forget_looks();
    row.save(ring);
    tombstones::begin_anew()?;
    progress.done.push(format!(
        "the clock was set back: segment {} was opened, closed or looked at in the future, which counts as now",
        row.number
    ));
    progress.more = true;
    Ok(true)
}

/// Empties the closed segments whose time has come.
pub fn empty(at_once: usize) -> Result<Progress, Error> {
    let ring = segment::open_ring();
    let mut rows = segment::rows(&ring)?;
    let mut progress = Progress::default();
    let current = current_of(&rows)?;
    let now_us = pg::now_us();
    let others = [(current + 1) % 3, (current + 2) % 3];
    for other in others {
        if mend_future_moments(&ring, &mut rows[other], &mut progress)? {
            return Ok(progress);
        }
    }
    for other in others {
        if rows[other].closed_at.is_none() || rows[other].is_empty() {
            continue;
        }
        // While the ring waits to turn to this segment, the current one grows.
        let waits = other == others[0] && is_to_be_turned(&rows[current], now_us);
        let waiting = if waits { rows[current].open().pages() } else { 0 };
        if is_worth_emptying(&ring, &mut rows[other], waiting, at_once, &mut progress)? {
            look_through(&ring, &mut rows, other, at_once, &mut progress)?;
        }
        if rows[other].is_saved() {
            // A row of the ring is written once in a transaction. So the next one looks at the other segment.
            let next = &rows[others[1]];
            progress.more |= other == others[0] && next.closed_at.is_some() && !next.is_empty();
            break;
        }
        if progress.more {
            break;
        }
    }
    Ok(progress)
}

/// Whether a closed segment is to be looked through now.
///
/// A look through it that has begun goes on. Otherwise its time must have come, or the ring must be waiting for
/// it, and a sample must show that few of its outcomes live. If many live, its `keep` is set to the time when
/// few will. `waiting` is the number of pages that the current segment has while the ring waits; 0 if it does
/// not wait.
fn is_worth_emptying(
    ring: &Rel,
    row: &mut Segment<'_>,
    waiting: u32,
    at_once: usize,
    progress: &mut Progress,
) -> Result<bool, Error> {
    let now_us = pg::now_us();
    let table = row.open();
    if row.scanned.has_begun(&table) {
        return Ok(true);
    }
    if !is_over(row, now_us) && (waiting == 0 || !is_time_to_look(row, now_us)) {
        return Ok(false);
    }
    let sample = look::sample(row.number, &table, now_us.saturating_sub(EXPIRY_GRACE_US))?;
    if sample.is_few(table.pages(), waiting, at_once) {
        return Ok(true);
    }
    row.set_keep(sample.few_live_at.saturating_sub(since(row)).saturating_add(KEEP_SLACK_US));
    row.set_looked_at(now_us);
    row.save(ring);
    progress.more = true;
    Ok(false)
}

/// Looks through the next part of a segment and moves what lives there, at most `at_once` outcomes. Truncates the
/// segment if that was the last part and nothing that lives is left behind.
fn look_through(
    ring: &Rel,
    rows: &mut [Segment<'_>; 3],
    number: usize,
    at_once: usize,
    progress: &mut Progress,
) -> Result<(), Error> {
    // Held to the end of the transaction, so that the segment keeps its file: no VACUUM FULL and no TRUNCATE.
    if !outcome_long::try_lock(rows[number].table()) {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", held_by::of_segment(number)?));
        return Ok(());
    }
    let now_us = pg::now_us();
    let table = rows[number].open();
    let is_done = rows[number].scanned.is_done(&table);
    if !is_done {
        let part = look::next_part(rows[number].scanned, &table);
        let before = now_us.saturating_sub(EXPIRY_GRACE_US);
        let living = part.living(number, before, at_once)?;
        if !living.is_empty() {
            return move_living(ring, rows, number, &living, part.before, progress);
        }
        if monitor::is_there() {
            swept::of_standing(part.expired(number, before)?);
        }
        rows[number].set_scanned(part.after);
        rows[number].set_looked_at(now_us);
        rows[number].save(ring);
        if !part.is_last {
            progress.more = true;
            return Ok(());
        }
    }
    drop(table);
    if !exclusive::lock_alone(rows[number].table()) {
        if !is_done {
            // The row may not be written again. The next transaction finds the look done, and tries again or
            // says who is in the way.
            progress.more = true;
            return Ok(());
        }
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", held_by::of_segment(number)?));
        return Ok(());
    }
    sql::execute(&format!("TRUNCATE ONLY idempotence.outcome_{number}"), &[])?;
    progress.done.push(format!("segment {number} is empty"));
    Ok(())
}

/// Moves outcomes out of a segment. Before the first move, a transaction of its own tells all backends that there
/// may be outcomes in `outcome_long`.
fn move_living(
    ring: &Rel,
    rows: &mut [Segment<'_>; 3],
    number: usize,
    living: &[Digest],
    before: Scanned,
    progress: &mut Progress,
) -> Result<(), Error> {
    let first = &mut rows[usize::from(segment::FIRST.unsigned_abs())];
    if !first.long_lived {
        note_long_in(ring, first, true);
        progress.more = true;
        return Ok(());
    }
    if first.is_ours {
        // This transaction has set the flag, and its message goes out with the commit. The next one moves.
        return Ok(());
    }
    if !outcome_long::try_lock(Table::OutcomeLong) {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", held_by::of_outcome_long()?));
        return Ok(());
    }
    let (moved, all) = outcome_long::move_here(number, living)?;
    if moved > 0 {
        rows[number].set_scanned(before);
        rows[number].save(ring);
        progress.more = true;
    }
    if !all && moved == 0 {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", held_by::of_segment(number)?));
    }
    Ok(())
}

/// Notes whether there may be outcomes in `outcome_long`. Returns whether the ring's row said otherwise before.
pub fn note_long(may_be: bool) -> Result<bool, Error> {
    let ring = segment::open_ring();
    let mut rows = segment::rows(&ring)?;
    let first = &mut rows[usize::from(segment::FIRST.unsigned_abs())];
    let is_news = first.long_lived != may_be;
    if is_news {
        note_long_in(&ring, first, may_be);
    }
    Ok(is_news)
}

fn note_long_in(ring: &Rel, first: &mut Segment<'_>, may_be: bool) {
    first.set_long_lived(may_be);
    first.save(ring);
    message::ring_changed();
}
