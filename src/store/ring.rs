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
use crate::guc;
use crate::pg;
use crate::store::cache::{self, Table};
use crate::store::long;
use crate::store::look::{self, Look};
use crate::store::message;
use crate::store::rel::{self, Access, Rel, Snapshot};
use crate::store::segment::{
    self, CLOSED_AT, COLUMNS, CURRENT, Columns, KEEP_US, LONG_LIVED, LOOKED_AT, LOOKED_IN, LOOKED_TO, NUMBER,
    OPENED_AT, RESTORED, SEGMENTS,
};
use crate::store::sql;
use crate::store::tombstones;
use crate::store::tuple::Tid;
use pgrx::pg_sys;

/// What one transaction of a step came to.
#[derive(Default)]
pub struct Progress {
    /// What was done, in words.
    pub done: Vec<String>,
    /// What could not be done, and who is in the way.
    pub delayed: Vec<String>,
    /// Whether the step has more to do.
    pub more: bool,
}

/// A row of `segment`.
struct Segment<'rel> {
    number: usize,
    current: bool,
    opened_at: i64,
    closed_at: Option<i64>,
    keep_us: i64,
    looked: Look,
    looked_at: Option<i64>,
    long_lived: bool,
    /// Whether this very transaction wrote it.
    is_ours: bool,
    at: Tid<'rel>,
    columns: [Option<pg_sys::Datum>; COLUMNS],
}

impl Segment<'_> {
    fn table(&self) -> Table {
        SEGMENTS[self.number].0
    }

    fn open(&self) -> Rel {
        Rel::open(self.table(), Access::Read)
    }

    fn is_empty(&self) -> bool {
        self.open().is_empty()
    }

    /// Whether it may be turned to.
    fn is_ready(&self) -> bool {
        self.closed_at.is_some() && self.is_empty()
    }

    /// Since when it is in its state.
    fn since(&self) -> i64 {
        self.closed_at.unwrap_or(self.opened_at)
    }

    /// Whether it was kept for its time.
    fn is_over(&self, now_us: i64) -> bool {
        self.closed_at.is_some_and(|closed_at| closed_at.saturating_add(self.keep_us) <= now_us)
    }

    /// Whether it was written for its time.
    fn is_to_be_turned(&self, now_us: i64) -> bool {
        now_us >= self.opened_at.saturating_add(self.keep_us / 2)
    }

    fn is_time_to_look(&self, now_us: i64) -> bool {
        pace::is_time_to_look(self.since(), self.looked_at, now_us)
    }

    fn keep(&mut self, keep_us: i64) {
        self.keep_us = keep_us;
        self.columns[KEEP_US] = Some(keep_us.into());
    }

    fn note_look(&mut self, now_us: i64) {
        self.looked_at = Some(now_us);
        self.columns[LOOKED_AT] = Some(now_us.into());
    }

    fn note_part(&mut self, looked: Look) {
        self.looked = looked;
        self.columns[LOOKED_TO] = Some(looked.pages.into());
        self.columns[LOOKED_IN] = Some(looked.file.into());
    }

    /// As if nobody had looked yet.
    fn forget_looks(&mut self) {
        self.looked_at = None;
        self.columns[LOOKED_AT] = None;
        self.note_part(Look { file: pg_sys::InvalidOid, pages: 0 });
    }

    /// Puts `columns` in its place.
    fn save(&self, ring: &Rel) {
        ring.update(self.at, &self.columns);
    }
}

/// Opens the ring to change it.
fn open() -> Rel {
    Rel::open(Table::Segment, Access::Write)
}

/// The ring's rows. The caller holds the sweep's lock.
fn read<'rel>(ring: &'rel Rel) -> Result<[Segment<'rel>; 3], Error> {
    let mut rows: Vec<Segment<'rel>> = Vec::with_capacity(SEGMENTS.len());
    ring.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| -> Option<()> {
        rows.push(Segment {
            number: row.int2(NUMBER)?.try_into().ok()?,
            current: row.bool(CURRENT)?,
            opened_at: row.int8(OPENED_AT)?,
            closed_at: row.int8(CLOSED_AT),
            keep_us: match row.int8(KEEP_US)? {
                // Nothing was recorded yet to tell it by.
                0 => guc::retention_us().saturating_add(KEEP_SLACK_US),
                keep_us => keep_us,
            },
            looked: Look { file: row.oid(LOOKED_IN)?, pages: row.int8(LOOKED_TO)? },
            looked_at: row.int8(LOOKED_AT),
            long_lived: row.bool(LONG_LIVED)?,
            is_ours: row.is_ours(),
            at: row.at(),
            columns: std::array::from_fn(|column| row.datum(column)),
        });
        None
    });
    rows.sort_by_key(|row| row.number);
    let rows: [Segment<'rel>; 3] = rows.try_into().map_err(|_| segment::lost())?;
    let whole = rows.iter().enumerate().all(|(n, row)| row.number == n);
    if whole && rows.iter().filter(|row| row.current).count() == 1 { Ok(rows) } else { Err(segment::lost()) }
}

fn current_of(rows: &[Segment<'_>; 3]) -> Result<usize, Error> {
    rows.iter().position(|row| row.current).ok_or_else(segment::lost)
}

/// Notes of segments that were turned away from when surely nobody writes them any more.
pub fn close() -> Result<Progress, Error> {
    let ring = open();
    let rows = read(&ring)?;
    let mut progress = Progress::default();
    for mut row in rows.into_iter().filter(|row| !row.current && row.closed_at.is_none()) {
        let table = cache::oid(row.table());
        if !rel::try_lock(table, pg_sys::ShareLock) {
            progress.delayed.push(format!(
                "segment {} cannot be closed yet: {}",
                row.number,
                in_the_way_of(row.number)?
            ));
            continue;
        }
        // The proof is had; nobody need wait for the end of this transaction.
        rel::unlock(table, pg_sys::ShareLock);
        row.columns[CLOSED_AT] = Some(pg::now_us().into());
        row.keep(row.keep_us);
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
    let ring = open();
    let mut rows = read(&ring)?;
    let current = current_of(&rows)?;
    let next = (current + 1) % rows.len();
    let now_us = pg::now_us();
    if heed_clock(&ring, &mut rows[current], &mut progress)? || rows[current].is_empty() {
        return Ok(progress);
    }
    let (is_ready, row) = (rows[next].is_ready(), &mut rows[current]);
    let has_looked = row.is_time_to_look(now_us) || is_ready && row.is_to_be_turned(now_us);
    if has_looked {
        if let Some(keep_us) = look::sample(row.number, &row.open(), now_us)?.keep_us() {
            row.keep(keep_us);
        }
        row.note_look(now_us);
    }
    let keep_us = row.keep_us;
    if !is_ready || !row.is_to_be_turned(now_us) {
        if has_looked {
            row.save(&ring);
        }
        let (is_due, next) = (rows[current].is_to_be_turned(now_us), &rows[next]);
        // One that is kept because much of it lives is in nobody's way.
        if is_due && !is_ready && next.closed_at.is_none_or(|_| next.is_over(now_us)) {
            progress.delayed.push(format!("the ring cannot turn yet: segment {} is not empty", next.number));
        }
        return Ok(progress);
    }
    row.columns[CURRENT] = Some(false.into());
    let opened = &mut rows[next];
    opened.keep(keep_us);
    opened.forget_looks();
    opened.columns[CURRENT] = Some(true.into());
    opened.columns[RESTORED] = Some(false.into());
    opened.columns[OPENED_AT] = Some(now_us.into());
    opened.columns[CLOSED_AT] = None;
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
    row.columns[OPENED_AT] = Some(row.opened_at.min(now_us).into());
    row.columns[CLOSED_AT] = row.closed_at.map(|closed_at| closed_at.min(now_us).into());
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
    let ring = open();
    let mut rows = read(&ring)?;
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
        let waits = other == others[0] && rows[current].is_to_be_turned(now_us);
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
    if row.looked.has_begun(&table) {
        return Ok(true);
    }
    if !row.is_over(now_us) && (waiting == 0 || !row.is_time_to_look(now_us)) {
        return Ok(false);
    }
    let sample = look::sample(row.number, &table, now_us.saturating_sub(ASKED_US))?;
    if sample.is_few(table.pages(), waiting, at_once) {
        return Ok(true);
    }
    row.keep(sample.few_live_at.saturating_sub(row.since()).saturating_add(KEEP_SLACK_US));
    row.note_look(now_us);
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
    if !long::try_lock(rows[number].table()) {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", in_the_way_of(number)?));
        return Ok(());
    }
    let now_us = pg::now_us();
    let table = rows[number].open();
    let is_done = rows[number].looked.is_done(&table);
    if !is_done {
        let part = rows[number].looked.part(&table);
        let living = part.living(number, now_us.saturating_sub(ASKED_US), at_once)?;
        if !living.is_empty() {
            return move_on(ring, rows, number, &living, part.before, progress);
        }
        rows[number].note_part(part.after);
        rows[number].note_look(now_us);
        rows[number].save(ring);
        if !part.is_last {
            progress.more = true;
            return Ok(());
        }
    }
    drop(table);
    if !lock_alone(rows[number].table()) {
        if !is_done {
            // Its row is written. The next transaction finds it done, says who is in the way, and goes on.
            progress.more = true;
            return Ok(());
        }
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", in_the_way_of(number)?));
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
    before: Look,
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
    if !long::try_lock(Table::OutcomeLong) {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", long::in_the_way()?));
        return Ok(());
    }
    let (moved, all) = long::take(number, living)?;
    if moved > 0 {
        rows[number].note_part(before);
        rows[number].save(ring);
        progress.more = true;
    }
    if !all && moved == 0 {
        progress.delayed.push(format!("segment {number} cannot be emptied yet: {}", in_the_way_of(number)?));
    }
    Ok(())
}

/// Notes whether outcomes may be in the table for those that outlived their segment; whether that is news.
pub(super) fn note_long(may_be: bool) -> Result<bool, Error> {
    let ring = open();
    let mut rows = read(&ring)?;
    let first = &mut rows[usize::from(segment::FIRST.unsigned_abs())];
    let is_news = first.long_lived != may_be;
    if is_news {
        note(&ring, first, may_be);
    }
    Ok(is_news)
}

fn note(ring: &Rel, first: &mut Segment<'_>, may_be: bool) {
    first.columns[LONG_LIVED] = Some(may_be.into());
    first.save(ring);
    message::ring_changed();
}

/// How often the locks of a segment are asked for in one step, and how long the pauses are. Look-ups
/// hold the tables for microseconds each, but there may be many of them.
const TRIES: u32 = 50;
const PAUSE_US: i64 = 2_000;

/// Takes what TRUNCATE takes, without waiting: all of it or nothing.
pub(super) fn lock_alone(table: Table) -> bool {
    for attempt in 0..TRIES {
        if attempt > 0 {
            pg::nap(PAUSE_US);
        }
        let mut taken = Vec::new();
        if lock_parts(cache::oid(table), &mut taken) {
            return true;
        }
        for relation in taken {
            rel::unlock(relation, ALONE);
        }
    }
    false
}

/// Locks a table, its TOAST table and their indexes. The TOAST table first: autovacuum may be at work there
/// for long, and each lock of this kind that is had is logged, for standbys to take it too. Then the table:
/// nobody comes to its indexes but by way of it.
fn lock_parts(table: pg_sys::Oid, taken: &mut Vec<pg_sys::Oid>) -> bool {
    let take = |relation, taken: &mut Vec<pg_sys::Oid>| {
        let got = rel::try_lock(relation, ALONE);
        if got {
            taken.push(relation);
        }
        got
    };
    if !rel::try_lock(table, pg_sys::AccessShareLock) {
        return false;
    }
    let toast = rel::toast_of(table);
    rel::unlock(table, pg_sys::AccessShareLock);
    toast.is_none_or(|toast| lock_parts(toast, taken))
        && take(table, taken)
        && rel::indexes_of(table).into_iter().all(|index| take(index, taken))
}

const ALONE: u32 = pg_sys::AccessExclusiveLock;

/// Who keeps a segment from its next state, as the view tells.
pub(super) fn in_the_way(query: &str) -> Result<String, Error> {
    let held_by = sql::first::<String>(query)?;
    Ok(held_by.map_or("whoever held it has just let go".into(), |held_by| format!("held by {held_by}")))
}

fn in_the_way_of(segment: usize) -> Result<String, Error> {
    in_the_way(&format!("SELECT held_by FROM idempotence.segments WHERE segment OPERATOR(pg_catalog.=) {segment}"))
}
