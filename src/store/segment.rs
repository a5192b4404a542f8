//! `idempotence.segment`: the ring of the three outcome tables (segments), with a row for each of them.
//!
//! Outcomes are recorded in the current segment. A segment that is no longer current is emptied as a whole. Before that
//! the sweep looks through it and moves the outcomes that still live into `outcome_long` (see `sweep/ring.rs`). So a
//! record need not tell how long its segment has to be kept.
//!
//! Why writers lose nothing: a writer first locks its segment (ROW EXCLUSIVE), which also takes in pending messages.
//! Then it checks that the segment is still the current one. It keeps the lock to the end of its transaction. So once
//! the pointer has moved and a SHARE lock on the old segment was granted, no insert is in flight there, and none can
//! come.
//!
//! Why readers miss nothing: an outcome moves once, from a segment to `outcome_long`, in one transaction. A reader
//! looks into the segments first and into `outcome_long` last, so it finds the outcome in one of them. Most of the time
//! `outcome_long` is empty, and a flag in the ring's first row spares readers the look. A transaction of its own sets
//! the flag, tells all backends, and commits before the first move begins. So a reader that misses an outcome in a
//! segment because it has moved finds that message waiting.

use crate::domain::limits::KEEP_SLACK_US;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::cache::{self, Other, Pointer};
use crate::store::catalog::{Index, Table};
use crate::store::fresh;
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::sql;
use crate::store::sweep;
use crate::store::tuple::{Tid, Tuple, columns};
use crate::store::write;
use pgrx::pg_sys;
use std::cell::Cell;

/// The outcome tables, by segment number.
pub const SEGMENTS: [(Table, Index); 3] =
    [(Table::Outcome0, Index::Outcome0), (Table::Outcome1, Index::Outcome1), (Table::Outcome2, Index::Outcome2)];

/// The table of the outcomes that outlived their segment.
pub const LONG: (Table, Index) = (Table::OutcomeLong, Index::OutcomeLong);

/// A query for what all tables of outcomes have: `part` gives it for one of them.
pub fn each_outcome(part: impl Fn(&str) -> String) -> String {
    let tables = SEGMENTS.into_iter().chain([LONG]);
    tables.map(|(table, _)| part(&format!("idempotence.{}", table.name()))).collect::<Vec<_>>().join(" UNION ALL ")
}

columns! { "segment", COLUMNS: OPENED_AT, CLOSED_AT, KEEP_US, SESSIONS_AT, LOOKED_TO, LOOKED_IN, NUMBER, CURRENT, RESTORED, LOOKED_AT, LONG_LIVED, OPENING }
type Columns<'a> = Tuple<'a, COLUMNS>;

/// The segments in the order in which look-ups probe them. The current one is the first, since most outcomes are found
/// there.
pub fn probe_order() -> [(Table, Index); 3] {
    in_order_from(pointer().current)
}

/// The current segment.
pub fn current() -> usize {
    pointer().current
}

fn in_order_from(current: usize) -> [(Table, Index); 3] {
    [SEGMENTS[current], SEGMENTS[(current + 1) % 3], SEGMENTS[(current + 2) % 3]]
}

/// Calls `look` for each segment that may have an outcome of some keys, in the order of [`probe_order`], until it gives a
/// value. `made_at` tells when the first and the last of the keys were made, if they are UUIDv7s.
///
/// A segment other than the current one is left out if it is known not to have the outcome: it was closed and had no page,
/// or no key as new as these, and it is not announced as the next one. Before anything is written into such a segment,
/// the ring moves on to it, and a transaction before that announces it (see `sweep/ring.rs`). So the announcement's
/// message was sent before anybody knew the new pointer, and whoever takes messages in after an outcome was recorded there
/// knows better in time. What a restore brings is told by a message with its commit.
pub fn probe<T, E>(
    made_at: impl Fn() -> Option<(i64, i64)>,
    mut look: impl FnMut((Table, Index)) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    'ring: loop {
        let current = current();
        let [first, next, former] = in_order_from(current);
        if let Some(found) = look(first)? {
            return Ok(Some(found));
        }
        for (other, table) in [next, former].into_iter().enumerate() {
            cache::take_in_messages();
            let pointer = pointer();
            if pointer.current != current {
                // The ring has moved on since this backend looked last.
                continue 'ring;
            }
            if pointer.others[other].may_have(&made_at)
                && let Some(found) = look(table)?
            {
                return Ok(Some(found));
            }
        }
        return Ok(None);
    }
}

/// Whether an outcome that is in no segment may be in [`LONG`]. Ask this after the look into the segments. Before
/// the first outcome moves, a message says that outcomes are going to move. Whoever missed an outcome because it has
/// moved has that message by now.
pub fn any_long() -> bool {
    cache::take_in_messages();
    pointer().long
}

/// Opens the current segment to write outcomes; gives its number too.
pub fn open_for_outcomes() -> (usize, Rel) {
    loop {
        let current = pointer().current;
        let table = Rel::open(SEGMENTS[current].0, Access::Write);
        // If the pointer moved between the two looks, the lock on the former segment stays, and does no harm.
        if pointer().current == current {
            return (current, table);
        }
    }
}

/// The number of the row that also notes when sessions were restored, and whether outcomes may be in [`LONG`].
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
    let (mut current, mut noted, mut committed) = (None, None, true);
    let mut at_rest = [None; SEGMENTS.len()];
    let table = Rel::open(Table::Segment, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| -> Option<()> {
        committed &= !row.is_ours();
        if row.int2(NUMBER)? == FIRST {
            noted = row.bool(LONG_LIVED);
        }
        let number = usize::try_from(row.int2(NUMBER)?).ok()?;
        // While a segment is closing, a transaction may still record there.
        *at_rest.get_mut(number)? = row.int8(CLOSED_AT).filter(|_| row.bool(OPENING) == Some(false));
        if row.bool(CURRENT)? {
            current = Some(number);
        }
        None
    });
    match (current, noted) {
        (Some(current), Some(noted)) => {
            // Rows that were restored with triggers disabled are not noted.
            let long = noted || !Rel::open(LONG.0, Access::Read).is_empty();
            let others = [1, 2].map(|distance| {
                let number = (current + distance) % SEGMENTS.len();
                at_rest[number].map_or(Other::Any, |closed_at| other(SEGMENTS[number], closed_at))
            });
            (Pointer { current, long, others }, committed)
        }
        _ => lost().raise(),
    }
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

/// How far a segment was looked through.
#[derive(Clone, Copy)]
pub struct Scanned {
    /// The file that was looked through.
    pub file: pg_sys::Oid,
    /// The number of pages from the beginning that were looked through.
    pub pages: i64,
}

impl Scanned {
    /// Nothing was looked through yet.
    pub const NOTHING: Scanned = Scanned { file: pg_sys::InvalidOid, pages: 0 };

    /// Whether the look through this table has begun. Once it has begun it goes on to the end, whatever another sample
    /// would tell.
    pub fn has_begun(self, table: &Rel) -> bool {
        self.file == table.file()
    }

    /// Whether the look has come to the end.
    pub fn is_done(self, table: &Rel) -> bool {
        self.has_begun(table) && self.pages >= i64::from(table.pages())
    }
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
    /// How long it is kept once it is closed.
    pub keep_us: i64,
    /// How far it was looked through.
    pub scanned: Scanned,
    /// When it was looked at last.
    pub looked_at: Option<i64>,
    /// In the first row: whether `outcome_long` may have outcomes.
    pub long_lived: bool,
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

    /// Sets how long it is kept.
    pub fn set_keep(&mut self, keep_us: i64) {
        self.keep_us = keep_us;
        self.columns[KEEP_US] = Some(keep_us.into());
    }

    /// Notes that it was looked at.
    pub fn set_looked_at(&mut self, now_us: i64) {
        self.looked_at = Some(now_us);
        self.columns[LOOKED_AT] = Some(now_us.into());
    }

    /// Notes how far it was looked through.
    pub fn set_scanned(&mut self, scanned: Scanned) {
        self.scanned = scanned;
        self.columns[LOOKED_TO] = Some(scanned.pages.into());
        self.columns[LOOKED_IN] = Some(scanned.file.into());
    }

    /// Notes that nobody has looked at it yet.
    pub fn forget_looks(&mut self) {
        self.looked_at = None;
        self.columns[LOOKED_AT] = None;
        self.set_scanned(Scanned::NOTHING);
    }

    /// Announces that it is going to be the current one.
    pub fn set_opening(&mut self) {
        self.columns[OPENING] = Some(true.into());
    }

    /// Notes that it is the current one from now on.
    pub fn set_opened(&mut self, now_us: i64) {
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
    }

    /// Notes whether `outcome_long` may have outcomes.
    pub fn set_long_lived(&mut self, may_be: bool) {
        self.columns[LONG_LIVED] = Some(may_be.into());
    }

    /// Whether the row was written.
    pub fn is_saved(&self) -> bool {
        self.is_saved.get()
    }

    /// Writes the row. A transaction writes a row of the ring once at most.
    pub fn save(&self, ring: &Rel) {
        debug_assert!(!self.is_saved(), "a row of the ring is written once in a transaction");
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
            keep_us: match row.int8(KEEP_US)? {
                // Nothing was recorded yet that could tell the time.
                0 => guc::retention_us().saturating_add(KEEP_SLACK_US),
                keep_us => keep_us,
            },
            scanned: Scanned { file: row.oid(LOOKED_IN)?, pages: row.int8(LOOKED_TO)? },
            looked_at: row.int8(LOOKED_AT),
            long_lived: row.bool(LONG_LIVED)?,
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
/// a segment, `long` for `outcome_long`, or `None` for `session`.
///
/// The sweep rests until the end of this transaction, since it cannot see yet what the transaction restores. So the
/// sweep and these updates never meet. Afterwards the segment is looked through from its beginning.
pub fn note_restored(table: Option<&str>) -> Result<(), Error> {
    sweep::rest()?;
    let statement = match table {
        Some("long") => {
            // Other backends hear it at the commit. Until then they do not see the rows either.
            message::ring_changed();
            format!(
                "UPDATE idempotence.segment SET long_lived = true
                 WHERE number OPERATOR(pg_catalog.=) {FIRST} AND NOT long_lived"
            )
        }
        Some(number) => {
            message::ring_changed();
            format!(
                "UPDATE idempotence.segment SET restored = true, looked_to = 0
                 WHERE number OPERATOR(pg_catalog.=) {number} AND (NOT restored OR looked_to OPERATOR(pg_catalog.>) 0)"
            )
        }
        None => format!(
            "UPDATE idempotence.segment SET sessions_at = pg_catalog.clock_timestamp()
             WHERE number OPERATOR(pg_catalog.=) {FIRST}"
        ),
    };
    sql::execute(&statement, &[]).map(drop)
}
