//! `idempotence.segment`: the ring of the three outcome tables, and the table for what outlives them.
//!
//! Records go to the current segment. A segment that is no longer current is emptied as a whole; before
//! that the sweep looks through it and moves what still lives into `outcome_long` (see `ring.rs`). No record
//! depends on how long that takes, so none has to say how long it is going to live.
//!
//! What makes that safe for writers: a writer locks its segment first (ROW EXCLUSIVE, which also takes in
//! pending messages), then checks that it is still the current one, and keeps the lock to the end of its
//! transaction. So once the pointer has moved and a SHARE lock on the old segment could be had, no insert is
//! in flight there and none can come.
//!
//! What makes that safe for readers: an outcome moves once, from a segment to `outcome_long`, in one
//! transaction, so whoever looks into the segments first and there last cannot miss it. That there may be
//! something there is written in the ring's first row, and told to all backends, by a transaction that has
//! committed before the first move begins. Whoever misses an outcome in a segment because it has moved
//! therefore finds that message waiting.

use crate::error::Error;
use crate::store::cache::{self, Pointer, Table};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::Tuple;

/// The outcome tables, by segment number.
pub const SEGMENTS: [(Table, cache::Index); 3] = [
    (Table::Outcome0, cache::Index::Outcome0),
    (Table::Outcome1, cache::Index::Outcome1),
    (Table::Outcome2, cache::Index::Outcome2),
];

/// The table of those that outlived their segment.
pub const LONG: (Table, cache::Index) = (Table::OutcomeLong, cache::Index::OutcomeLong);

pub(super) const OPENED_AT: usize = 0;
pub(super) const CLOSED_AT: usize = 1;
pub(super) const KEEP_US: usize = 2;
const SESSIONS_AT: usize = 3;
pub(super) const LOOKED_TO: usize = 4;
pub(super) const LOOKED_IN: usize = 5;
pub(super) const NUMBER: usize = 6;
pub(super) const CURRENT: usize = 7;
pub(super) const RESTORED: usize = 8;
pub(super) const LOOKED_AT: usize = 9;
pub(super) const LONG_LIVED: usize = 10;
pub(super) const COLUMNS: usize = 11;
pub(super) type Columns<'a> = Tuple<'a, COLUMNS>;

/// The segments in the order that look-ups probe them: the current one, where most is found, first.
pub fn probe_order() -> [(Table, cache::Index); 3] {
    let current = pointer().current;
    [SEGMENTS[current], SEGMENTS[(current + 1) % 3], SEGMENTS[(current + 2) % 3]]
}

/// Whether an outcome that is in no segment may be in [`LONG`]. To be asked after the segments were looked
/// into: by then the message has come that the first move was going to be made.
pub fn any_long() -> bool {
    cache::take_in_messages();
    pointer().long
}

/// Opens the current segment to write outcomes; its number comes with it.
pub fn open_for_outcomes() -> (usize, Rel) {
    loop {
        let current = pointer().current;
        let table = Rel::open(SEGMENTS[current].0, Access::Write);
        // It may have been rotated away between the two looks; its lock stays, and does no harm.
        if pointer().current == current {
            return (current, table);
        }
    }
}

/// The row in which the restoring of sessions is noted, and that outcomes may be in [`LONG`].
pub(super) const FIRST: i16 = 0;

/// When sessions were restored last, or the ring was made.
pub fn sessions_restored_at() -> i64 {
    let table = Rel::open(Table::Segment, Access::Read);
    let at = table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| {
        if row.int2(NUMBER)? == FIRST { row.int8(SESSIONS_AT) } else { None }
    });
    at.unwrap_or_else(|| lost().raise())
}

fn pointer() -> Pointer {
    cache::remembered(|cache| cache.pointer, read, |cache, pointer| cache.pointer = Some(pointer))
}

fn read() -> (Pointer, bool) {
    let (mut current, mut noted, mut committed) = (None, None, true);
    let table = Rel::open(Table::Segment, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| -> Option<()> {
        committed &= !row.is_ours();
        if row.int2(NUMBER)? == FIRST {
            noted = row.bool(LONG_LIVED);
        }
        if row.bool(CURRENT)? {
            current = usize::try_from(row.int2(NUMBER)?).ok();
        }
        None
    });
    match (current, noted) {
        (Some(current), Some(noted)) if current < SEGMENTS.len() => {
            // What was restored past the triggers is not noted.
            let long = noted || !Rel::open(LONG.0, Access::Read).is_empty();
            (Pointer { current, long }, committed)
        }
        _ => lost().raise(),
    }
}

pub(super) fn lost() -> Error {
    Error::Corrupted { message: "table \"idempotence.segment\" has no current segment".into() }
}
