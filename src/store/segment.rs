//! `idempotence.segment`: the ring of the three outcome tables (segments), with a row for each of them.
//!
//! Outcomes are recorded in the current segment. Each segment has an *end*, which is known from the moment it becomes the
//! current one: no outcome in it expires later. An outcome that does goes to `outcome_long`. So a segment is emptied by
//! TRUNCATE alone once the clock has passed its end, whatever is in it (see `sweep/ring.rs`).
//!
//! Why writers lose nothing: a writer first locks its segment (ROW EXCLUSIVE), which also takes in pending messages.
//! Then it checks that the segment is still the current one, and that the outcome expires before its end. It keeps the
//! lock to the end of its transaction. So once the pointer has moved and a SHARE lock on the old segment was granted, no
//! insert is in flight there, and none can come. The end of a segment that takes outcomes only ever moves on. So it does
//! no harm if a writer knows a former one, and no clock but that of the sweep which empties the segment matters.
//!
//! No outcome ever moves, so it makes no difference in which order readers look into the tables.

use crate::domain::pace;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::blank;
use crate::store::cache::{self, Other, Pointer};
use crate::store::catalog::{Index, Table};
use crate::store::fresh;
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::seldom;
use crate::store::sql;
use crate::store::sweep;
use crate::store::tuple::{Tid, Tuple, columns};
use crate::store::write;
use pgrx::pg_sys;
use std::cell::Cell;

/// A table of outcomes and the index on the digest.
pub type Place = (Table, Index);

/// The outcome tables, by segment number.
pub const SEGMENTS: [Place; 3] =
    [(Table::Outcome0, Index::Outcome0), (Table::Outcome1, Index::Outcome1), (Table::Outcome2, Index::Outcome2)];

/// The table of the outcomes that outlive the segment which was the current one when they were recorded.
pub const LONG: Place = (Table::OutcomeLong, Index::OutcomeLong);

/// All tables of outcomes.
pub fn all() -> impl Iterator<Item = Place> {
    SEGMENTS.into_iter().chain([LONG])
}

/// A query for what all tables of outcomes have: `part` gives it for one of them.
pub fn each_outcome(part: impl Fn(&str) -> String) -> String {
    all().map(|(table, _)| part(&format!("idempotence.{}", table.name()))).collect::<Vec<_>>().join(" UNION ALL ")
}

columns! { "segment", COLUMNS: OPENED_AT, KEEP_US, SESSIONS_AT, LOOKED_IN, NUMBER, CURRENT, OPENING, RESTORED, CLOSED_AT, ENDS_AT, LOOKED_TO, LOOKED_AT }
type Columns<'a> = Tuple<'a, COLUMNS>;

/// Calls `look` for each table that may have an outcome of some keys, until it gives a value. The current segment is the
/// first, since most outcomes are found there. `made_at` tells when the first and the last of the keys were made, if they
/// are UUIDv7s.
///
/// A segment other than the current one is left out if it is known not to have the outcome: it was closed and had no page,
/// or no key as new as these, and it is not announced as the next one. Before anything is written into such a segment,
/// the ring moves on to it, and a transaction before that announces it (see `sweep/ring.rs`). So the announcement's
/// message was sent before anybody knew the new pointer, and whoever takes messages in after an outcome was recorded there
/// knows better in time. What a restore brings is told by a message with its commit.
pub fn probe<T, E>(
    made_at: impl Fn() -> Option<(i64, i64)>,
    mut look: impl FnMut(Place, &Rel) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    'ring: loop {
        let current = pointer().current;
        let first = SEGMENTS[current];
        if let Some(found) = look(first, &Rel::open(first.0, Access::Read))? {
            return Ok(Some(found));
        }
        for (other, place) in others(current).into_iter().enumerate() {
            cache::take_in_messages();
            let pointer = pointer();
            if pointer.current != current {
                // The ring has moved on since this backend looked last.
                continue 'ring;
            }
            if pointer.others[other].may_have(&made_at)
                && let Some(found) = look(place, &Rel::open(place.0, Access::Read))?
            {
                return Ok(Some(found));
            }
        }
        return seldom::open(LONG.0).map_or(Ok(None), |long| look(LONG, &long));
    }
}

/// The segments that are not the current one.
fn others(current: usize) -> [Place; 2] {
    [SEGMENTS[(current + 1) % 3], SEGMENTS[(current + 2) % 3]]
}

/// Opens the table for outcomes of which the last expires at `last`, to write them; gives its place too.
pub fn open_for_outcomes(last: i64) -> (Place, Rel) {
    loop {
        let before = pointer();
        if last > before.ends_at {
            return (LONG, Rel::open(LONG.0, Access::Write));
        }
        let place = SEGMENTS[before.current];
        let table = Rel::open(place.0, Access::Write);
        // If the pointer moved between the two looks, the lock on the former segment stays, and does no harm.
        let now = pointer();
        if now.current == before.current && last <= now.ends_at {
            return (place, table);
        }
    }
}

/// Outcomes were inserted into this table, and may be committed from now on.
pub fn written(place: Place) {
    if place.0 == LONG.0 {
        blank::written(LONG.0);
    }
}

/// The number of the row that also notes when sessions were restored.
pub const FIRST: i16 = 0;

/// When sessions were last restored; if they never were, when the ring was made.
pub fn sessions_restored_at() -> i64 {
    let table = Rel::open(Table::Segment, Access::Read);
    let at = table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| {
        if row.int2(NUMBER)? == FIRST { row.int8(SESSIONS_AT) } else { None }
    });
    at.unwrap_or_else(|| lost().raise())
}

fn pointer() -> Pointer {
    cache::remembered(|cache| cache.pointer.clone(), read, |cache, pointer| cache.pointer = Some(pointer))
}

/// Whether a table is the segment that outcomes are recorded in.
pub fn is_current(table: Table) -> bool {
    SEGMENTS[pointer().current].0 == table
}

/// Whether a table is a segment that nobody reads or writes until the ring comes to it.
pub fn is_blank(table: Table) -> bool {
    let pointer = pointer();
    let mut known = others(pointer.current).into_iter().zip(pointer.others);
    known.any(|((segment, _), other)| segment == table && matches!(other, Other::Blank))
}

thread_local! {
    /// Whether the pointer was read while the transaction had written, so that what was read may be rolled back.
    static READ_AMID_WRITES: Cell<bool> = const { Cell::new(false) };
}

/// Ends a (sub)transaction. If it was not committed, what was read after a deletion of its own must not be remembered: the
/// outcome that was deleted is there again.
pub fn end_transaction(committed: bool) {
    if READ_AMID_WRITES.replace(false) && !committed {
        message::ring_may_be_otherwise();
    }
}

fn read() -> (Pointer, bool) {
    READ_AMID_WRITES.set(READ_AMID_WRITES.get() || pg::has_written());
    let (mut current, mut committed) = (None, true);
    let mut at_rest = [None; SEGMENTS.len()];
    let table = Rel::open(Table::Segment, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| -> Option<()> {
        committed &= !row.is_ours();
        let number = usize::try_from(row.int2(NUMBER)?).ok()?;
        // While a segment is closing, a transaction may still record there.
        *at_rest.get_mut(number)? = row.int8(CLOSED_AT).filter(|_| row.bool(OPENING) == Some(false));
        if row.bool(CURRENT)? {
            current = Some((number, row.int8(ENDS_AT).unwrap_or(first_end(row.int8(OPENED_AT)?))));
        }
        None
    });
    let Some((current, ends_at)) = current else { lost().raise() };
    let others = [1, 2].map(|distance| {
        let number = (current + distance) % SEGMENTS.len();
        at_rest[number].map_or(Other::Any, |closed_at| other(SEGMENTS[number], closed_at))
    });
    (Pointer { current, ends_at, others }, committed)
}

/// The end of the first segment, of which nobody could tell yet how long outcomes live.
fn first_end(opened_at: i64) -> i64 {
    pace::end(opened_at, 0, pace::keep_us(i64::MAX, guc::retention_us()))
}

/// What is known of a segment that was closed at that time.
fn other((table, index): (Table, Index), closed_at: i64) -> Other {
    let table = Rel::open(table, Access::Read);
    if table.is_empty() {
        return Other::Blank;
    }
    fresh::times(&table, index, closed_at).map_or(Other::Any, Other::NoneOf)
}

/// The error that the rows of the ring are not as the extension left them.
pub fn lost() -> Error {
    Error::Corrupted { message: "table \"idempotence.segment\" has no current segment".into() }
}

/// A row of the table `segment`.
pub struct Segment<'rel> {
    /// Which of the three it is.
    pub number: usize,
    /// Whether outcomes are recorded in it.
    pub current: bool,
    /// When it became the current one.
    pub opened_at: i64,
    /// When it was certain that no transaction writes it any more; `None` before that.
    pub closed_at: Option<i64>,
    /// How long most of its outcomes live, see [`pace::wanted_us`].
    pub wanted_us: i64,
    /// When the last of its outcomes expires at the latest.
    pub ends_at: i64,
    /// If its end is to be looked for: up to which page that was done, and in which file.
    pub looked_to: Option<(i64, pg_sys::Oid)>,
    /// When it was looked at last.
    pub looked_at: Option<i64>,
    /// Whether it is announced as the next one to be current.
    pub opening: bool,
    /// Whether this transaction has written the row.
    pub is_ours: bool,
    place: Tid<'rel>,
    columns: [Option<pg_sys::Datum>; COLUMNS],
    /// Whether [`Segment::save`] was called. After that the place is that of a former version of the row.
    is_saved: Cell<bool>,
}

impl Segment<'_> {
    /// Which table it is.
    pub fn table(&self) -> Table {
        SEGMENTS[self.number].0
    }

    /// Its table, opened to read.
    pub fn open(&self) -> Rel {
        Rel::open(self.table(), Access::Read)
    }

    /// Whether its table has no page.
    pub fn is_empty(&self) -> bool {
        self.open().is_empty()
    }

    /// How long outcomes like its own are kept in a segment.
    pub fn keep_us(&self) -> i64 {
        pace::keep_us(self.wanted_us, guc::retention_us())
    }

    /// Sets how long most of its outcomes live.
    pub fn set_wanted(&mut self, wanted_us: i64) {
        self.wanted_us = wanted_us;
        self.columns[KEEP_US] = Some(wanted_us.into());
    }

    /// Sets its end, which must not come sooner than before.
    pub fn set_end(&mut self, ends_at: i64) {
        self.ends_at = ends_at;
        self.columns[ENDS_AT] = Some(ends_at.into());
    }

    /// Notes that its end is to be looked for once it is closed.
    pub fn doubt_end(&mut self) {
        self.columns[LOOKED_TO] = Some(0i64.into());
    }

    /// Notes that it was looked at.
    pub fn set_looked_at(&mut self, now_us: i64) {
        self.looked_at = Some(now_us);
        self.columns[LOOKED_AT] = Some(now_us.into());
    }

    /// Announces that it is going to be the current one.
    pub fn set_opening(&mut self) {
        self.columns[OPENING] = Some(true.into());
    }

    /// Notes that it is the current one from now on, up to this end.
    pub fn set_opened(&mut self, now_us: i64, ends_at: i64) {
        self.columns[ENDS_AT] = Some(ends_at.into());
        self.columns[LOOKED_TO] = None;
        self.columns[LOOKED_AT] = None;
        self.columns[OPENING] = Some(false.into());
        self.columns[CURRENT] = Some(true.into());
        self.columns[RESTORED] = Some(false.into());
        self.columns[OPENED_AT] = Some(now_us.into());
        self.columns[CLOSED_AT] = None;
    }

    /// Notes that it is no longer the current one.
    pub fn set_turned_away_from(&mut self) {
        self.columns[CURRENT] = Some(false.into());
    }

    /// Notes that no transaction writes it any more.
    pub fn set_closed_at(&mut self, now_us: i64) {
        self.columns[CLOSED_AT] = Some(now_us.into());
    }

    /// Sets moments that lie in the future to now.
    pub fn clamp_moments(&mut self, now_us: i64) {
        self.columns[OPENED_AT] = Some(self.opened_at.min(now_us).into());
        self.columns[CLOSED_AT] = self.closed_at.map(|closed_at| closed_at.min(now_us).into());
        self.columns[LOOKED_AT] = None;
    }

    /// Writes the row. A transaction writes a row of the ring once at most.
    pub fn save(&self, ring: &Rel) {
        debug_assert!(!self.is_saved.get(), "a row of the ring is written once in a transaction");
        self.is_saved.set(true);
        write::update(ring, self.place, &self.columns);
    }
}

/// Opens the table `segment` to change it.
pub fn open_ring() -> Rel {
    Rel::open(Table::Segment, Access::Write)
}

/// The rows of the ring in the order of their numbers. The caller holds the sweep's lock.
pub fn rows<'rel>(ring: &'rel Rel) -> Result<[Segment<'rel>; 3], Error> {
    debug_assert!(Tag::sweep().is_held_by_us());
    let mut rows: Vec<Segment<'rel>> = Vec::with_capacity(SEGMENTS.len());
    ring.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| -> Option<()> {
        rows.push(Segment {
            number: row.int2(NUMBER)?.try_into().ok()?,
            current: row.bool(CURRENT)?,
            opened_at: row.int8(OPENED_AT)?,
            closed_at: row.int8(CLOSED_AT),
            wanted_us: match row.int8(KEEP_US)? {
                // Nothing was recorded yet that could tell the time.
                0 => i64::MAX,
                wanted_us => wanted_us,
            },
            ends_at: row.int8(ENDS_AT).unwrap_or(first_end(row.int8(OPENED_AT)?)),
            looked_to: row.int8(LOOKED_TO).zip(row.oid(LOOKED_IN)),
            looked_at: row.int8(LOOKED_AT),
            opening: row.bool(OPENING)?,
            is_ours: row.is_ours(),
            place: row.at(),
            columns: std::array::from_fn(|column| row.datum(column)),
            is_saved: Cell::new(false),
        });
        None
    });
    rows.sort_by_key(|row| row.number);
    let rows: [Segment<'rel>; 3] = rows.try_into().map_err(|_| lost())?;
    let whole = rows.iter().enumerate().all(|(n, row)| row.number == n);
    if whole && rows.iter().filter(|row| row.current).count() == 1 { Ok(rows) } else { Err(lost()) }
}

/// Notes that a statement that is not the extension's own, such as a restore's, inserts rows. `table` is the number of
/// a segment, or `None` for `session`.
///
/// The sweep rests until the end of this transaction, since it cannot see yet what the transaction restores. So the
/// sweep and these updates never meet. Afterwards the sweep looks for the segment's end anew, from its beginning.
pub fn note_restored(table: Option<&str>) -> Result<(), Error> {
    sweep::rest()?;
    let statement = match table {
        Some(number) => {
            // Other backends hear it at the commit. Until then they do not see the rows either.
            message::ring_changed();
            format!(
                "UPDATE idempotence.segment SET restored = true, looked_to = 0, looked_in = 0
                 WHERE number OPERATOR(pg_catalog.=) {number}
                   AND (NOT restored OR looked_to IS NULL OR looked_to OPERATOR(pg_catalog.<>) 0)"
            )
        }
        None => format!(
            "UPDATE idempotence.segment SET sessions_at = pg_catalog.clock_timestamp()
             WHERE number OPERATOR(pg_catalog.=) {FIRST}"
        ),
    };
    sql::execute(&statement, &[]).map(drop)
}
