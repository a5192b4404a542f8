//! `idempotence.segment`: the ring of the three outcome tables.
//!
//! Records go to the current segment; look-ups probe all three. A segment that is no longer current
//! is emptied as a whole, `keep` after it was closed (see `ring.rs`). What makes that safe:
//!
//! * A writer locks its segment first (ROW EXCLUSIVE, which also takes in pending messages), then
//!   checks that it is still the current one, and keeps the lock to the end of its transaction. So once
//!   the pointer has moved and a SHARE lock on the old segment could be had, no insert is in flight
//!   there and none can come.
//! * No record outlives its segment's `keep`: a record that would live longer than the segment is kept
//!   lifts `keep` first, in the transaction that records.

use crate::domain::limits::KEEP_SLACK_US;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::lock;
use crate::store::cache::{self, Pointer, Table};
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::Tuple;

/// The outcome tables, by segment number.
pub const SEGMENTS: [(Table, cache::Index); 3] = [
    (Table::Outcome0, cache::Index::Outcome0),
    (Table::Outcome1, cache::Index::Outcome1),
    (Table::Outcome2, cache::Index::Outcome2),
];

pub(super) const OPENED_AT: usize = 0;
pub(super) const CLOSED_AT: usize = 1;
pub(super) const KEEP_US: usize = 2;
const SESSIONS_AT: usize = 3;
pub(super) const LOOKED_TO: usize = 4;
pub(super) const LOOKED_IN: usize = 5;
pub(super) const NUMBER: usize = 6;
pub(super) const CURRENT: usize = 7;
pub(super) const RESTORED: usize = 8;
pub(super) const COLUMNS: usize = 9;
pub(super) type Columns<'a> = Tuple<'a, COLUMNS>;

/// The segment numbers in the order that look-ups probe them: the current one, where most is found, first.
pub fn probe_order() -> [usize; 3] {
    let current = pointer().current;
    [current, (current + 1) % 3, (current + 2) % 3]
}

/// Opens the current segment to write outcomes that live up to `ttl_us`; its number comes with it.
pub fn open_for_outcomes(ttl_us: i64) -> Result<(usize, Rel), Error> {
    loop {
        let current = pointer().current;
        let table = Rel::open(SEGMENTS[current].0, Access::Write);
        let pointer = pointer();
        // It may have been rotated away between the two looks; its lock stays, and does no harm.
        if pointer.current == current {
            if pointer.keep_us >= ttl_us + KEEP_SLACK_US {
                return Ok((current, table));
            }
            keep_at_least(ttl_us)?;
        }
    }
}

/// Makes sure that what the current segment holds is kept long enough for a ttl.
pub fn keep_at_least(ttl_us: i64) -> Result<(), Error> {
    let keep_us = ttl_us + KEEP_SLACK_US;
    if pointer().keep_us >= keep_us {
        return Ok(());
    }
    // One at a time: two updates of one row would make the second fail.
    if !lock::Tag::segments().acquire(crate::guc::wait_us()) {
        let what = "another transaction's change of how long outcomes are kept".into();
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    let table = Rel::open(Table::Segment, Access::Write);
    let row = table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| {
        (row.bool(CURRENT)?)
            .then(|| (row.at(), row.int8(KEEP_US), std::array::from_fn::<_, COLUMNS, _>(|i| row.datum(i))))
    });
    let Some((at, Some(kept_us), mut columns)) = row else { return Err(lost()) };
    if kept_us < keep_us {
        columns[KEEP_US] = Some(keep_us.into());
        table.update(at, &columns);
        message::ring_changed();
    } else {
        // Another lifted it, and its message is still on the way: what is remembered is too old.
        message::forget();
    }
    Ok(())
}

/// The row in which the restoring of sessions is noted.
pub(super) const OF_SESSIONS: i16 = 0;

/// When sessions were restored last, or the ring was made.
pub fn sessions_restored_at() -> i64 {
    let table = Rel::open(Table::Segment, Access::Read);
    let at = table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| {
        if row.int2(NUMBER)? == OF_SESSIONS { row.int8(SESSIONS_AT) } else { None }
    });
    at.unwrap_or_else(|| lost().raise())
}

fn pointer() -> Pointer {
    cache::remembered(|cache| cache.pointer, read, |cache, pointer| cache.pointer = Some(pointer))
}

fn read() -> (Pointer, bool) {
    let table = Rel::open(Table::Segment, Access::Read);
    let found = table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| {
        if !row.bool(CURRENT)? {
            return None;
        }
        let pointer = Pointer { current: row.int2(NUMBER)?.try_into().ok()?, keep_us: row.int8(KEEP_US)? };
        Some((pointer, !row.is_ours()))
    });
    match found {
        Some((pointer, committed)) if pointer.current < SEGMENTS.len() => (pointer, committed),
        _ => lost().raise(),
    }
}

pub(super) fn lost() -> Error {
    Error::Corrupted { message: "table \"idempotence.segment\" has no current segment".into() }
}
