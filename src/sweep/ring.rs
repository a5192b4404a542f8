//! Turning the ring of segments: the steps that the sweep takes, each in a transaction of its own, one
//! sweep at a time. `segment.rs` says what writers and readers do for it, `domain/pace.rs` how fast it goes.
//!
//! A segment is *current*, then *closing*, *closed* and *empty*, and then current again:
//!
//! * [`turn`] moves the pointer when the current segment is older than half of what such outcomes are kept
//!   for, and the next one is empty. It takes no lock that a writer takes; writers in flight stay where they
//!   are.
//! * [`close`] notes when surely nobody writes the old one any more: once a SHARE lock on it can be had.
//! * [`empty`], `keep` after that, looks at some of its pages. Where many of its outcomes live it is kept
//!   until few do. Else it is looked through, part by part, what lives is moved to `outcome_long`
//!   (`long.rs`), and what is left, all of it expired, is truncated.
//!
//! Every lock on a segment is asked for without waiting: who queued for it would make others queue
//! behind. So whatever holds one delays the ring and is not disturbed by it.
//!
//! A row of `segment` is written once in a transaction, and the transaction then ends: `more` says that the
//! next one goes on. Whoever writes these rows has the sweep's lock, a restore's triggers share it.
//!
//! Truncation is not MVCC-safe: a transaction with an older snapshot then finds nothing of what it could
//! still see. That makes no difference here, since what has expired by the clock counts as absent under
//! every snapshot.

use crate::domain::identity::Digest;
use crate::domain::limits::{ASKED_US, KEEP_SLACK_US};
use crate::domain::pace;
use crate::error::Error;
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
use crate::sweep::tombstones;
use pgrx::pg_sys;

/// Whether a segment may be turned to.
fn is_ready(row: &Segment<'_>) -> bool {
    row.closed_at.is_some() && row.is_empty()
}

/// Since when a segment is in its state.
fn since(row: &Segment<'_>) -> i64 {
    row.closed_at.unwrap_or(row.opened_at)
}

/// Whether a segment was kept for its time.
fn is_over(row: &Segment<'_>, now_us: i64) -> bool {
    row.closed_at.is_some_and(|closed_at| closed_at.saturating_add(row.keep_us) <= now_us)
}

/// Whether a segment was written for its time.
fn is_to_be_turned(row: &Segment<'_>, now_us: i64) -> bool {
    now_us >= row.opened_at.saturating_add(row.keep_us / 2)
}

fn is_time_to_look(row: &Segment<'_>, now_us: i64) -> bool {
    pace::is_time_to_look(since(row), row.looked_at, now_us)
}

fn current_of(rows: &[Segment<'_>; 3]) -> Result<usize, Error> {
    rows.iter().position(|row| row.current).ok_or_else(segment::lost)
}

/// Notes of segments that were turned away from when surely nobody writes them any more.
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
        // The proof is had; nobody need wait for the end of this transaction.
        rel::unlock(table, pg_sys::ShareLock);
        row.set_closed_at(pg::now_us());
        row.set_keep(row.keep_us);
        row.forget_looks();
        row.save(&ring);
        if !row.is_empty() {
            progress.done.push(format!("segment {} is closed", row.number));
        }
    }
    Ok(progress)
}

/// Moves the pointer to the next segment, if that is due and possible. When it is due follows what lies in
/// the current one.
pub fn turn() -> Result<Progress, Error> {
    let mut progress = Progress::default();
    let ring = segment::open_ring();
    let mut rows = segment::rows(&ring)?;
    let current = current_of(&rows)?;
    let next = (current + 1) % rows.len();
    let now_us = pg::now_us();
    if heed_clock(&ring, &mut rows[current], &mut progress)? || rows[current].is_empty() {
        return Ok(progress);
    }
    let (is_ready, row) = (is_ready(&rows[next]), &mut rows[current]);
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
        // One that is kept because much of it lives is in nobody's way.
        if is_due && !is_ready && next.closed_at.is_none_or(|_| is_over(next, now_us)) {
            progress.delayed.push(format!("the ring cannot turn yet: segment {} is not empty", next.number));
        }
        return Ok(progress);
    }
    row.set_turned_away_from();
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

/// A clock may be off by so much.
const CLOCK_US: i64 = 60_000_000;

/// A moment that lies in the future was noted under a clock that was wrong, and has been set right: the
/// ring would stand still until then. It counts as now. What was recorded under that clock is found when the
/// segment is looked through. Whether that was so.
fn heed_clock(ring: &Rel, row: &mut Segment<'_>, progress: &mut Progress) -> Result<bool, Error> {
    let now_us = pg::now_us();
    let is_ahead = |us: i64| us.saturating_sub(now_us) > CLOCK_US;
    if ![Some(row.opened_at), row.closed_at, row.looked_at].into_iter().flatten().any(is_ahead) {
        return Ok(false);
    }
    row.clamp_moments(now_us);
    // What had expired by that clock may live.
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
        if heed_clock(&ring, &mut rows[other], &mut progress)? {
            return Ok(progress);
        }
    }
    for other in others {
        if rows[other].closed_at.is_none() || rows[other].is_empty() {
            continue;
        }
        // What the next one keeps from turning grows meanwhile.
        let waits = other == others[0] && is_to_be_turned(&rows[current], now_us);
        let waiting = if waits { rows[current].open().pages() } else { 0 };
        if is_worth_emptying(&ring, &mut rows[other], waiting, at_once, &mut progress)? {
            look_through(&ring, &mut rows, other, at_once, &mut progress)?;
        }
        if progress.more {
            break;
        }
    }
    Ok(progress)
}

/// Whether a segment is to be looked through now: it was begun with, or its time has come, or the ring waits
/// for it, and few of its outcomes live. Where many do it is kept until few will.
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
    let sample = look::sample(row.number, &table, now_us.saturating_sub(ASKED_US))?;
    if sample.is_few(table.pages(), waiting, at_once) {
        return Ok(true);
    }
    row.set_keep(sample.few_live_at.saturating_sub(since(row)).saturating_add(KEEP_SLACK_US));
    row.set_looked_at(now_us);
    row.save(ring);
    progress.more = true;
    Ok(false)
}

/// Looks through the next part of a segment and moves what lives in it, `at_once` outcomes at most. When
/// that was the last part, and nothing is left behind, truncates the segment.
fn look_through(
    ring: &Rel,
    rows: &mut [Segment<'_>; 3],
    number: usize,
    at_once: usize,
    progress: &mut Progress,
) -> Result<(), Error> {
    // To the end of the transaction: neither VACUUM FULL nor TRUNCATE gives the pages to others meanwhile.
    if !outcome_long::try_lock(rows[number].table()) {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", held_by::of_segment(number)?));
        return Ok(());
    }
    let now_us = pg::now_us();
    let table = rows[number].open();
    let is_done = rows[number].scanned.is_done(&table);
    if !is_done {
        let part = look::next_part(rows[number].scanned, &table);
        let living = part.living(number, now_us.saturating_sub(ASKED_US), at_once)?;
        if !living.is_empty() {
            return move_on(ring, rows, number, &living, part.before, progress);
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
            // Its row is written. The next transaction finds it done, says who is in the way, and goes on.
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

/// Moves outcomes out of a segment, once all backends know that they may have been.
fn move_on(
    ring: &Rel,
    rows: &mut [Segment<'_>; 3],
    number: usize,
    living: &[Digest],
    before: Scanned,
    progress: &mut Progress,
) -> Result<(), Error> {
    let first = &mut rows[usize::from(segment::FIRST.unsigned_abs())];
    if !first.long_lived {
        note(ring, first, true);
        progress.more = true;
        return Ok(());
    }
    if first.is_ours {
        // The message goes out with the commit: the next transaction moves.
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

/// Notes whether outcomes may be in the table for those that outlived their segment; whether that is news.
pub fn note_long(may_be: bool) -> Result<bool, Error> {
    let ring = segment::open_ring();
    let mut rows = segment::rows(&ring)?;
    let first = &mut rows[usize::from(segment::FIRST.unsigned_abs())];
    let is_news = first.long_lived != may_be;
    if is_news {
        note(&ring, first, may_be);
    }
    Ok(is_news)
}

fn note(ring: &Rel, first: &mut Segment<'_>, may_be: bool) {
    first.set_long_lived(may_be);
    first.save(ring);
    message::ring_changed();
}
