//! Turning the ring of segments: the steps that the sweep takes, each in a transaction of its own, one
//! sweep at a time. `segment.rs` says what writers do for it.
//!
//! A segment is *current*, then *closing*, *closed* and *empty*, and then current again:
//!
//! * [`turn`] moves the pointer when the current segment is older than half its `keep` and the next one
//!   is empty. It takes no lock that a writer takes; writers in flight stay where they are.
//! * [`close`] notes when surely nobody writes the old one any more: once a SHARE lock on it can be had.
//! * [`empty`] truncates it `keep` after that. By then all that is in it has expired.
//!
//! Every lock on a segment is asked for without waiting: who queued for it would make others queue
//! behind. So whatever holds one delays the ring and is not disturbed by it.
//!
//! A segment that may hold what a restore put there is looked through first (`restored.rs`). Truncation is not MVCC-safe: a transaction
//! with an older snapshot then finds nothing of what it could still see. That makes no difference here,
//! since what has expired by the clock counts as absent under every snapshot.

use crate::domain::limits::KEEP_SLACK_US;
use crate::error::Error;
use crate::guc;
use crate::lock;
use crate::pg;
use crate::store::cache;
use crate::store::message;
use crate::store::rel::{self, Access, Rel, Snapshot};
use crate::store::restored::Look;
use crate::store::segment::{
    self, CLOSED_AT, COLUMNS, CURRENT, Columns, KEEP_US, LOOKED_IN, LOOKED_TO, NUMBER, OPENED_AT, RESTORED, SEGMENTS,
};
use crate::store::sql;
use crate::store::tuple::Tid;
use pgrx::{IntoDatum, pg_sys};

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
    restored: bool,
    opened_at: i64,
    closed_at: Option<i64>,
    keep_us: i64,
    looked: Look,
    at: Tid<'rel>,
    columns: [Option<pg_sys::Datum>; COLUMNS],
}

impl Segment<'_> {
    fn open(&self) -> Rel {
        Rel::open(SEGMENTS[self.number].0, Access::Read)
    }

    fn is_empty(&self) -> bool {
        self.open().is_empty()
    }

    /// Whether all in it has expired.
    fn is_over(&self) -> bool {
        self.closed_at.is_some_and(|closed_at| closed_at.saturating_add(self.keep_us) <= pg::now_us())
    }

    /// Puts `columns` in its place.
    fn save(&self, ring: &Rel) {
        ring.update(self.at, &self.columns);
    }
}

/// Opens the ring to change it.
fn open() -> Rel {
    Rel::open(cache::Table::Segment, Access::Write)
}

/// The ring's rows. The caller holds the sweep's lock; the pointer and the current segment's `keep` change
/// under that of the segments only.
fn read<'rel>(ring: &'rel Rel) -> Result<[Segment<'rel>; 3], Error> {
    let mut rows: Vec<Segment<'rel>> = Vec::with_capacity(SEGMENTS.len());
    ring.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| -> Option<()> {
        rows.push(Segment {
            number: row.int2(NUMBER)?.try_into().ok()?,
            current: row.bool(CURRENT)?,
            restored: row.bool(RESTORED)?,
            opened_at: row.int8(OPENED_AT)?,
            closed_at: row.int8(CLOSED_AT),
            keep_us: row.int8(KEEP_US)?,
            looked: Look { file: row.oid(LOOKED_IN)?, pages: row.int8(LOOKED_TO)? },
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

/// Notes of segments that were turned away from when surely nobody writes them any more.
pub fn close() -> Result<Progress, Error> {
    let ring = open();
    let rows = read(&ring)?;
    let mut progress = Progress::default();
    for mut row in rows.into_iter().filter(|row| !row.current && row.closed_at.is_none()) {
        let table = cache::oid(SEGMENTS[row.number].0);
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
        if row.restored {
            // As if all of it had been recorded just now.
            row.columns[KEEP_US] = Some(row.keep_us.max(wanted_keep_us()?).into());
        }
        row.save(&ring);
        if !row.is_empty() {
            progress.done.push(format!("segment {} is closed", row.number));
        }
    }
    Ok(progress)
}

/// Moves the pointer to the next segment, if that is due and possible; else sees to it that the current
/// one is kept as long as the setting asks.
pub fn turn() -> Result<Progress, Error> {
    let mut progress = Progress::default();
    let is_ours = lock::Tag::segments().try_acquire();
    let ring = open();
    let mut rows = read(&ring)?;
    let Some(current) = rows.iter().position(|row| row.current) else { return Err(segment::lost()) };
    let next = (current + 1) % rows.len();
    let now_us = pg::now_us();
    let is_due = now_us >= rows[current].opened_at.saturating_add(rows[current].keep_us / 2);
    if !is_ours {
        // Whoever holds it is about to lift the current segment's keep.
        if is_due && !rows[current].is_empty() {
            let query = "SELECT held_by FROM idempotence.segments WHERE state OPERATOR(pg_catalog.=) 'current'";
            let who = in_the_way(query)?;
            progress
                .delayed
                .push(format!("the ring cannot turn while how long outcomes are kept is being lifted: {who}"));
        }
        return Ok(progress);
    }
    heed_clock(&ring, &mut rows[current], &mut progress);
    if progress.more {
        return Ok(progress);
    }
    if !is_due || rows[current].is_empty() {
        return lift(&ring, &mut rows[current]).map(|()| progress);
    }
    if rows[next].closed_at.is_none() || !rows[next].is_empty() {
        progress.delayed.push(format!("the ring cannot turn yet: segment {next} is not empty"));
        return lift(&ring, &mut rows[current]).map(|()| progress);
    }
    rows[current].columns[CURRENT] = Some(false.into());
    let opened = &mut rows[next].columns;
    opened[CURRENT] = Some(true.into());
    opened[RESTORED] = Some(false.into());
    opened[OPENED_AT] = Some(now_us.into());
    opened[CLOSED_AT] = None;
    opened[KEEP_US] = Some(wanted_keep_us()?.into());
    rows[current].save(&ring);
    rows[next].save(&ring);
    message::ring_changed();
    progress.done.push(format!("outcomes are recorded in segment {next} now"));
    Ok(progress)
}

/// Once the retention was raised the first record would have to lift the keep, and others to wait for it.
fn lift(ring: &Rel, current: &mut Segment<'_>) -> Result<(), Error> {
    if current.keep_us >= guc::retention_us() + KEEP_SLACK_US {
        return Ok(());
    }
    let wanted_us = greatest_ttl_us()?.map(|ttl_us| ttl_us.saturating_add(KEEP_SLACK_US));
    if let Some(wanted_us) = wanted_us.filter(|wanted_us| *wanted_us > current.keep_us) {
        current.columns[KEEP_US] = Some(wanted_us.into());
        current.save(ring);
        message::ring_changed();
    }
    Ok(())
}

/// A clock may be off by so much.
const CLOCK_US: i64 = 60_000_000;

/// A moment that lies in the future was noted under a clock that was wrong, and has been set right: the
/// ring would stand still until then. It counts as now; what was recorded under that clock is looked for
/// before the segment is emptied.
fn heed_clock(ring: &Rel, row: &mut Segment<'_>, progress: &mut Progress) {
    let now_us = pg::now_us();
    let is_ahead = |us: i64| us.saturating_sub(now_us) > CLOCK_US;
    if !is_ahead(row.opened_at) && !row.closed_at.is_some_and(is_ahead) {
        return;
    }
    row.opened_at = row.opened_at.min(now_us);
    row.closed_at = row.closed_at.map(|closed_at| closed_at.min(now_us));
    row.restored = true;
    // What was found in it counted from the former moment.
    row.columns[LOOKED_TO] = Some(0i64.into());
    row.columns[OPENED_AT] = Some(row.opened_at.into());
    row.columns[CLOSED_AT] = row.closed_at.map(Into::into);
    row.columns[RESTORED] = Some(true.into());
    row.save(ring);
    progress.done.push(format!("segment {} was opened or closed in the future: it counts as of now", row.number));
    // A row is written once in a transaction; the next one goes on.
    progress.more = true;
}

/// Truncates the closed segments whose time has come.
pub fn empty() -> Result<Progress, Error> {
    let ring = open();
    let mut rows = read(&ring)?;
    let mut progress = Progress::default();
    for row in rows.iter_mut().filter(|row| !row.current) {
        heed_clock(&ring, row, &mut progress);
    }
    if progress.more {
        return Ok(progress);
    }
    for mut row in rows.into_iter().filter(|row| !row.current) {
        if row.is_empty() || (row.restored && !look_through(&ring, &mut row, &mut progress)?) || !row.is_over() {
            continue;
        }
        if !lock_alone(&row) {
            progress.delayed.push(format!(
                "segment {} cannot be emptied yet: {}",
                row.number,
                in_the_way_of(row.number)?
            ));
            continue;
        }
        sql::execute(&format!("TRUNCATE ONLY idempotence.outcome_{}", row.number), &[])?;
        progress.done.push(format!("segment {} is empty", row.number));
    }
    Ok(progress)
}

/// Looks through some more of a segment whose time has come, and sees to it that it is kept until the last
/// of what was found has expired. Whether it was looked through to its end.
fn look_through(ring: &Rel, row: &mut Segment<'_>, progress: &mut Progress) -> Result<bool, Error> {
    let Some(closed_at) = row.closed_at else { return Ok(false) };
    let table = row.open();
    if !row.is_over() && !row.looked.is_going_on(&table) {
        return Ok(false);
    }
    if !rel::try_lock(cache::oid(SEGMENTS[row.number].0), pg_sys::ShareLock) {
        progress.delayed.push(format!("segment {} cannot be emptied yet: {}", row.number, in_the_way_of(row.number)?));
        return Ok(false);
    }
    let (look, is_end, expires_at) = row.looked.go_on(row.number, &table)?;
    row.looked = look;
    let wanted_us =
        expires_at.map_or(0, |expires_at| expires_at.saturating_sub(closed_at).saturating_add(KEEP_SLACK_US));
    row.keep_us = row.keep_us.max(wanted_us);
    row.columns[KEEP_US] = Some(row.keep_us.into());
    row.columns[LOOKED_TO] = Some(look.pages.into());
    row.columns[LOOKED_IN] = look.file.into_datum();
    row.save(ring);
    progress.more |= !is_end;
    Ok(is_end)
}

/// How long a segment has to be kept that is written from now on.
fn wanted_keep_us() -> Result<i64, Error> {
    Ok(greatest_ttl_us()?.unwrap_or_else(guc::retention_us).saturating_add(KEEP_SLACK_US))
}

/// The greatest ttl of the standing sessions, if there are any; some have that of the setting.
fn greatest_ttl_us() -> Result<Option<i64>, Error> {
    let query = format!(
        "SELECT pg_catalog.max(COALESCE((EXTRACT(epoch FROM s.ttl) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, {}))
         FROM idempotence.session s WHERE s.name IS NOT NULL AND s.ended_at IS NULL",
        guc::retention_us()
    );
    sql::first::<i64>(&query)
}

/// How often the locks of a segment are asked for in one step, and how long the pauses are. Look-ups
/// hold the tables for microseconds each, but there may be many of them.
const TRIES: u32 = 50;
const PAUSE_US: i64 = 2_000;

/// Takes what TRUNCATE takes, without waiting: all of it or nothing.
fn lock_alone(row: &Segment<'_>) -> bool {
    for attempt in 0..TRIES {
        if attempt > 0 {
            pg::nap(PAUSE_US);
        }
        let mut taken = Vec::new();
        if lock_parts(cache::oid(SEGMENTS[row.number].0), &mut taken) {
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
fn in_the_way(query: &str) -> Result<String, Error> {
    let held_by = sql::first::<String>(query)?;
    Ok(held_by.map_or("whoever held it has just let go".into(), |held_by| format!("held by {held_by}")))
}

fn in_the_way_of(segment: usize) -> Result<String, Error> {
    in_the_way(&format!("SELECT held_by FROM idempotence.segments WHERE segment OPERATOR(pg_catalog.=) {segment}"))
}
