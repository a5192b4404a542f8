//! The sweep's steps that turn the ring of segments. `store/segment.rs` says what writers and readers do for the
//! ring, and `domain/pace.rs` how fast it turns.
//!
//! A segment is *current*, then *closing*, *closed* and *empty*, and then current again:
//!
//! * [`turn`] moves the pointer to a segment that is empty, once the current one is older than half its `keep`. A
//!   transaction before that announces the next one, so that nobody leaves it out any more. This takes no lock that a
//!   writer takes: transactions that write the old segment go on writing it.
//! * [`close`] notes the time when certainly nobody writes the old segment any more. That is so once a SHARE
//!   lock on it can be taken.
//! * [`empty`] truncates a closed segment when its end has passed. Where the end is not known, since rows were restored, or
//!   is further away than what was recorded can explain, since the clock was wrong, it first looks for it. The ring goes on
//!   with the other two segments meanwhile.
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

use crate::domain::pace;
use crate::error::Error;
use crate::guc;
use crate::pg::{self, Timestamptz};
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::exclusive;
use crate::store::message;
use crate::store::rel::{self, Access, Rel};
use crate::store::segment::{self, Segment};
use crate::store::sql;
use crate::sweep::parts::Progress;
use crate::sweep::tombstones;
use pgrx::pg_sys;

/// Whether a segment may be turned to.
fn is_ready(row: &Segment<'_>) -> bool {
    !row.current && row.closed_at.is_some() && row.is_empty()
}

/// The segment to turn to, if one is empty: the one that is announced already, or else the one that comes first.
fn next_of(rows: &[Segment<'_>; 3], current: usize) -> Option<usize> {
    let ready = [1, 2].map(|n| (current + n) % 3).into_iter().filter(|n| is_ready(&rows[*n]));
    ready.min_by_key(|number| !rows[*number].opening)
}

/// Says who keeps a segment from its next state, as the view `segments` tells.
fn delay(progress: &mut Progress, segment: usize, state: &str) -> Result<(), Error> {
    let holders = format!("SELECT held_by FROM idempotence.segments WHERE segment OPERATOR(pg_catalog.=) {segment}");
    progress.delay(&format!("segment {segment} cannot be {state}"), &holders)
}

/// Closes segments that were turned away from, if certainly nobody writes them any more.
pub fn close() -> Result<Progress, Error> {
    let ring = Rel::open(Table::Segment, Access::Write);
    let (rows, _) = segment::rows(&ring)?;
    let mut progress = Progress::default();
    for mut row in rows.into_iter().filter(|row| !row.current && row.closed_at.is_none()) {
        let table = cache::oid(row.table());
        if !rel::try_lock(table, pg_sys::ShareLock) {
            delay(&mut progress, row.number, "closed")?;
            continue;
        }
        // That the lock was free is proof enough. Nobody need wait for the end of this transaction.
        rel::unlock(table, pg_sys::ShareLock);
        let now_us = pg::now_us();
        row.closed_at = Some(now_us);
        if pace::is_far(row.ends_at(), now_us, row.keep_us()) {
            row.looked_to = Some(0);
        }
        row.save(&ring);
        // What is closed and empty need not be looked into any more, and otherwise not for fresh keys.
        message::ring_changed();
        if !row.is_empty() {
            progress.done.push(format!("segment {} is closed", row.number));
        }
    }
    Ok(progress)
}

/// Moves the pointer to the next segment, if that is due and possible. Looks now and then for how long the outcomes live
/// that are recorded, which decides when the turn is due. While the turn is not possible, the current segment gets a later
/// end.
pub fn turn() -> Result<Progress, Error> {
    let mut progress = Progress::default();
    let ring = Rel::open(Table::Segment, Access::Write);
    let (mut rows, current) = segment::rows(&ring)?;
    let is_empty = rows[current].is_empty();
    if mend_future_moments(&ring, &mut rows[current], &mut progress)?
        || is_empty && Rel::open(Table::OutcomeLong, Access::Read).is_empty()
    {
        return Ok(progress);
    }
    let now_us = pg::now_us();
    let is_due = |row: &Segment<'_>| !is_empty && pace::is_to_be_turned(row.opened_at, row.keep_us(), now_us);
    let next = next_of(&rows, current);
    let row = &mut rows[current];
    let has_looked = pace::is_time_to_look(row.opened_at, row.looked_at, now_us) || next.is_some() && is_due(row);
    if has_looked {
        if let Some(ttl_us) = sampled_ttl(row)? {
            row.wanted_us = Some(pace::wanted_us(ttl_us));
        }
        row.looked_at = Some(now_us);
    }
    let Some(next) = next.filter(|_| is_due(row)) else {
        let later_end = pace::later_end(row.ends_at(), row.keep_us(), now_us);
        if let Some(ends_at) = later_end {
            row.noted_end = Some(ends_at);
            message::ring_changed();
        }
        if later_end.is_some() || has_looked {
            row.save(&ring);
        }
        tell_delay(&rows, is_due(&rows[current]), now_us, &mut progress);
        return Ok(progress);
    };
    if !rows[next].opening {
        // Nobody leaves it out any more once this transaction has committed. The next one turns to it.
        rows[next].opening = true;
        rows[next].save(&ring);
        message::ring_changed();
        progress.more = true;
        return Ok(progress);
    }
    if rows[next].is_ours {
        // This transaction has announced it, and its message goes out with the commit. The next one turns.
        return Ok(progress);
    }
    let row = &mut rows[current];
    row.current = false;
    row.save(&ring);
    let (wanted_us, before_us) = (row.wanted_us, now_us.saturating_sub(row.opened_at));
    let opened = &mut rows[next];
    opened.wanted_us = wanted_us;
    opened.set_opened(now_us, pace::end(now_us, before_us, opened.keep_us()));
    opened.save(&ring);
    message::ring_changed();
    progress.done.push(format!("outcomes are recorded in segment {next} now"));
    Ok(progress)
}

/// Says what keeps the ring from turning, if it is due. A closed segment whose end has not passed is kept on purpose.
fn tell_delay(rows: &[Segment<'_>; 3], is_due: bool, now_us: i64, progress: &mut Progress) {
    let is_late = |row: &&Segment<'_>| {
        !row.current && (row.closed_at.is_none() || row.looked_to.is_none() && pace::is_over(row.ends_at(), now_us))
    };
    if is_due
        && !rows.iter().any(is_ready)
        && let Some(late) = rows.iter().find(is_late)
    {
        progress.delayed.push(format!("the ring cannot turn yet: segment {} is not empty", late.number));
    }
}

/// How far in the future a moment may lie before the clock counts as having been wrong.
const CLOCK_US: i64 = 60_000_000;

/// Repairs a segment whose row has a moment in the future, and returns whether it had one.
///
/// Such a moment was noted under a clock that was wrong and has been set right since. The ring would stand still
/// until that moment comes, so it counts as now. The segment's end stays, since outcomes may have been recorded under the
/// wrong clock; it is looked for once the segment is closed.
fn mend_future_moments(ring: &Rel, row: &mut Segment<'_>, progress: &mut Progress) -> Result<bool, Error> {
    let now_us = pg::now_us();
    let is_ahead = |us: i64| us.saturating_sub(now_us) > CLOCK_US;
    if ![Some(row.opened_at), row.closed_at, row.looked_at].into_iter().flatten().any(is_ahead) {
        return Ok(false);
    }
    row.opened_at = row.opened_at.min(now_us);
    row.closed_at = row.closed_at.map(|closed_at| closed_at.min(now_us));
    row.looked_at = None;
    row.looked_to = Some(0);
    row.save(ring);
    tombstones::begin_anew()?;
    progress.done.push(format!(
        "the clock was set back: segment {} was opened, closed or looked at in the future, which counts as now",
        row.number
    ));
    progress.more = true;
    Ok(true)
}

/// Empties the closed segments whose end has passed, and looks for an end that is not known.
pub fn empty() -> Result<Progress, Error> {
    let ring = Rel::open(Table::Segment, Access::Write);
    let (mut rows, _) = segment::rows(&ring)?;
    let mut progress = Progress::default();
    for row in rows.iter_mut().filter(|row| !row.current) {
        if mend_future_moments(&ring, row, &mut progress)? {
            return Ok(progress);
        }
        if row.closed_at.is_none() || row.is_empty() {
            continue;
        }
        let number = row.number;
        if row.looked_to.is_some() {
            if !row.is_ours {
                look_for_end(row)?;
                progress.more = true;
            }
        } else if pace::is_over(row.ends_at(), pg::now_us()) {
            if exclusive::lock_alone(row.table()) {
                sql::execute(&format!("TRUNCATE ONLY idempotence.outcome_{number}"), &[])?;
                progress.done.push(format!("segment {number} is empty"));
            } else {
                delay(&mut progress, number, "emptied")?;
            }
        }
    }
    Ok(progress)
}

/// How many pages of a closed segment one look goes through: 32 MB, which even a slow disk reads within a visit.
const PAGES_OF_LOOK: i64 = 4096;

/// About how many pages of a table are sampled: 8 MB. With fewer, a page more or less makes a difference in small tables.
const SAMPLED: f64 = 1024.0;

/// The ttl up to which outcomes are to go to segments, by a sample of those that were recorded while the segment was the
/// current one; `None` if there are none.
fn sampled_ttl(segment: &Segment<'_>) -> Result<Option<i64>, Error> {
    let of = |table: Table| {
        let pages = f64::from(Rel::open(table, Access::Read).pages());
        let percent = (SAMPLED * 100.0 / pages.max(1.0)).min(100.0);
        // Each row of the sample stands for so many.
        let (name, stands_for) = (table.name(), 100.0 / percent);
        format!(
            "SELECT (EXTRACT(epoch FROM o.expires_at OPERATOR(pg_catalog.-) o.recorded_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, {stands_for}::pg_catalog.float8
             FROM ONLY idempotence.{name} o TABLESAMPLE pg_catalog.system ({percent}) WHERE o.recorded_at OPERATOR(pg_catalog.>=) $1"
        )
    };
    let query = format!(
        "SELECT s.ttl, pg_catalog.sum(s.rows) FROM ({} UNION ALL {}) s (ttl, rows) GROUP BY s.ttl ORDER BY s.ttl",
        of(segment.table()),
        of(Table::OutcomeLong)
    );
    let sample = sql::pairs::<i64, f64>(&query, &[Timestamptz(segment.opened_at).into()])?;
    Ok(pace::ttl_us(&sample, guc::retention_us()))
}

/// Looks through the next part of a closed segment for the outcome that expires last, and notes in the segment's row what
/// was found so far. After the last part that is the segment's end.
///
/// Two things make the look begin anew. Whatever moves rows (VACUUM FULL, CLUSTER) makes another file, and the row tells
/// which file was looked through. A statement that adds rows by SQL, as a restore does, sets the row back
/// (`note_restored` in `store/segment.rs`).
fn look_for_end(segment: &Segment<'_>) -> Result<(), Error> {
    // The lock keeps the file the same until the part is done.
    let table = segment.open();
    let (all, file) = (i64::from(table.pages()), table.file());
    let from = segment.looked_to.filter(|_| segment.looked_in == file).map_or(0, |pages| pages.min(all));
    let to = all.min(from + PAGES_OF_LOOK);
    let number = segment.number;
    let statement = format!(
        "UPDATE idempotence.segment SET looked_to = $1, looked_in = $2,
                ends_at = GREATEST(CASE WHEN {from} OPERATOR(pg_catalog.=) 0 THEN '-infinity'::pg_catalog.timestamptz ELSE ends_at END, (
                  SELECT pg_catalog.max(o.expires_at) FROM ONLY idempotence.outcome_{number} o
                  WHERE o.ctid OPERATOR(pg_catalog.>=) '({from},0)'::pg_catalog.tid AND o.ctid OPERATOR(pg_catalog.<) '({to},0)'::pg_catalog.tid))
         WHERE number OPERATOR(pg_catalog.=) {number}"
    );
    let looked_to = (to < all).then_some(to);
    sql::execute(&statement, &[looked_to.into(), file.into()]).map(drop)
}
