//! `idempotence.segment`: the ring of the three outcome tables (segments), with a row for each of them.
//!
//! Outcomes are recorded in the current segment. Each segment has an *end*, which is known from the moment it becomes the
//! current one: no outcome in it expires later. An outcome that does goes to `outcome_long`. So a segment is emptied by
//! TRUNCATE alone once the clock has passed its end, whatever is in it (see `sweep/ring.rs`).
//!
//! Why writers lose nothing: a writer locks its segment (ROW EXCLUSIVE) to the end of its transaction, and then checks that it
//! is the current one, and that the outcome expires before its end. A new lock takes in pending messages. A lock that the
//! transaction has already takes in none, so the ring may have turned; but nobody closes a segment that is locked so. So once
//! the pointer has moved and a SHARE lock on the old segment was granted, no insert is in flight there, and none can come. The
//! end of a segment that takes outcomes only ever moves on. So it does no harm if a writer knows a former one, and no clock
//! but that of the sweep which empties the segment matters.
//!
//! No outcome ever moves, so it makes no difference in which order readers look into the tables.

use crate::domain::pace;
use crate::error::{Error, or_raise};
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::cache::{self, Other, Pointer};
use crate::store::catalog::Table;
use crate::store::claimed::Claimed;
use crate::store::fresh;
use crate::store::invalidation::{self, RING};
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::sql;
use crate::store::sweep;
use crate::store::tuple::{Tid, columns};
use crate::store::write;
use pgrx::pg_sys;
use std::cell::Cell;

/// The outcome tables, by segment number.
pub const SEGMENTS: [Table; 3] = [Table::Outcome0, Table::Outcome1, Table::Outcome2];

/// All tables of outcomes. The last one has those that outlive the segment which was the current one when they were recorded.
pub fn all() -> impl Iterator<Item = Table> {
    SEGMENTS.into_iter().chain([Table::OutcomeLong])
}

/// A query for what all tables of outcomes have: `part` gives it for one of them.
pub fn each_outcome(part: impl Fn(&str) -> String) -> String {
    all().map(|table| part(&format!("idempotence.{}", table.name()))).collect::<Vec<_>>().join(" UNION ALL ")
}

columns! { "segment", Columns, COLUMNS: OPENED_AT, KEEP_US, SESSIONS_AT, LOOKED_IN, NUMBER, CURRENT, OPENING, RESTORED, CLOSED_AT, ENDS_AT, LOOKED_TO, LOOKED_AT }

/// Calls `look` for each table that may have an outcome of some keys, until it gives a value. The current segment is the
/// first, since most outcomes are found there. `made_at` tells when the first and the last of the keys were made, if they
/// are UUIDv7s.
///
/// A segment other than the current one is left out if it is known not to have the outcome: it was closed and had no page,
/// or no key as new as these, and it is not announced as the next one. Before anything is written into such a segment,
/// the ring moves on to it, and a transaction before that announces it (see `sweep/ring.rs`). So the announcement's
/// message was sent before anybody knew the new pointer, and whoever takes messages in after an outcome was recorded there
/// knows better in time. What a restore brings is told by a message with its commit.
///
/// `access` is how the current segment is opened. If nothing is found there, the locks that were claimed are given.
pub fn probe<T, E>(
    access: Access,
    made_at: impl Fn() -> Option<(i64, i64)>,
    mut look: impl FnMut(&Rel) -> Result<Option<T>, E>,
) -> Result<(Option<T>, Option<Claimed>), E> {
    'ring: loop {
        let current = pointer().current;
        let first = Rel::open(SEGMENTS[current], access);
        if let Some(found) = look(&first)? {
            return Ok((Some(found), None));
        }
        let claimed = first.into_claimed();
        // Once is enough: what is recorded after that look need not be found, and nobody records what the caller has
        // locked. An import and a redaction see to it themselves that they are not missed.
        cache::take_in_messages();
        for (other, table) in others(current).into_iter().enumerate() {
            let pointer = pointer();
            if pointer.current != current {
                // The ring has moved on since this backend looked last.
                continue 'ring;
            }
            if pointer.others[other].may_have(&made_at)
                && let Some(found) = look(&Rel::open(table, Access::Read))?
            {
                return Ok((Some(found), None));
            }
        }
        let found = Rel::open_unless_blank(Table::OutcomeLong).map_or(Ok(None), |long| look(&long))?;
        let claimed = claimed.filter(|_| found.is_none());
        return Ok((found, claimed));
    }
}

/// The segments that are not the current one.
fn others(current: usize) -> [Table; 2] {
    [SEGMENTS[(current + 1) % 3], SEGMENTS[(current + 2) % 3]]
}

/// Opens the table for outcomes of which the last expires at `last`, to write them.
pub fn open_for_outcomes(last: i64) -> Rel {
    loop {
        let before = pointer();
        if last > before.ends_at {
            return Rel::open(Table::OutcomeLong, Access::Write);
        }
        let table = Rel::open(SEGMENTS[before.current], Access::Write);
        // If the pointer moved between the two looks, the lock on the former segment stays, and does no harm.
        let now = pointer();
        if now.current == before.current && last <= now.ends_at {
            return table;
        }
    }
}

/// The number of the row that also notes when sessions were restored.
pub const FIRST: i16 = 0;

/// When sessions were last restored; if they never were, when the ring was made.
pub fn sessions_restored_at() -> i64 {
    let table = Rel::open(Table::Segment, Access::Read);
    or_raise(rows(&table)).0[FIRST as usize].sessions_at
}

fn pointer() -> Pointer {
    cache::remembered(|cache| cache.pointer.clone(), read, |cache, pointer| cache.pointer = Some(pointer))
}

/// Whether a table is the segment that outcomes are recorded in.
pub fn is_current(table: Table) -> bool {
    SEGMENTS[pointer().current] == table
}

/// Whether a table is a segment that nobody reads or writes until the ring comes to it.
pub fn is_blank(table: Table) -> bool {
    let pointer = pointer();
    let mut known = others(pointer.current).into_iter().zip(pointer.others);
    known.any(|(segment, other)| segment == table && matches!(other, Other::Blank))
}

thread_local! {
    /// Whether the pointer was read while the transaction had written, so that what was read may be rolled back.
    static READ_AMID_WRITES: Cell<bool> = const { Cell::new(false) };
}

/// Ends a (sub)transaction. If it was not committed, what was read after a deletion of its own must not be remembered: the
/// outcome that was deleted is there again.
pub fn end_transaction(committed: bool) {
    if READ_AMID_WRITES.replace(false) && !committed {
        invalidation::note_number(RING);
    }
}

fn read() -> (Pointer, bool) {
    READ_AMID_WRITES.set(READ_AMID_WRITES.get() || pg::has_written());
    let table = Rel::open(Table::Segment, Access::Read);
    let (rows, current) = or_raise(rows(&table));
    let others = [1, 2].map(|distance| {
        let row = &rows[(current + distance) % SEGMENTS.len()];
        // While a segment is closing, a transaction may still record there.
        row.closed_at.filter(|_| !row.opening).map_or(Other::Any, |closed_at| other(SEGMENTS[row.number], closed_at))
    });
    let committed = !rows.iter().any(|row| row.is_ours);
    (Pointer { current, ends_at: rows[current].ends_at(), others }, committed)
}

/// What is known of a segment that was closed at that time.
fn other(table: Table, closed_at: i64) -> Other {
    let table = Rel::open(table, Access::Read);
    if table.is_empty() {
        return Other::Blank;
    }
    fresh::times(&table, closed_at).map_or(Other::Any, Other::NoneOf)
}

fn lost() -> Error {
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
    /// How long most of its outcomes live, see [`pace::wanted_us`]; `None`: nothing was recorded yet that could tell.
    pub wanted_us: Option<i64>,
    /// When the last of its outcomes expires at the latest, once that was noted.
    pub noted_end: Option<i64>,
    /// If its end is to be looked for: up to which page that was done, in the file `looked_in`.
    pub looked_to: Option<i64>,
    /// In which file its end was looked for last.
    pub looked_in: pg_sys::Oid,
    /// When it was looked at last.
    pub looked_at: Option<i64>,
    /// Whether it is announced as the next one to be current.
    pub opening: bool,
    /// Whether this transaction has written the row.
    pub is_ours: bool,
    restored: bool,
    sessions_at: i64,
    place: Tid<'rel>,
}

impl Segment<'_> {
    /// Which table it is.
    pub fn table(&self) -> Table {
        SEGMENTS[self.number]
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
        pace::keep_us(self.wanted_us.unwrap_or(i64::MAX), guc::retention_us())
    }

    /// When the last of its outcomes expires at the latest. Of the first segment nobody could tell yet how long outcomes
    /// live.
    pub fn ends_at(&self) -> i64 {
        let first_end = || pace::end(self.opened_at, 0, pace::keep_us(i64::MAX, guc::retention_us()));
        self.noted_end.unwrap_or_else(first_end)
    }

    /// Makes it the current one from now on, up to this end.
    pub fn set_opened(&mut self, now_us: i64, ends_at: i64) {
        self.current = true;
        self.opening = false;
        self.restored = false;
        self.opened_at = now_us;
        self.closed_at = None;
        self.noted_end = Some(ends_at);
        self.looked_to = None;
        self.looked_at = None;
    }

    /// Writes the row. A transaction writes a row of the ring once at most. The caller holds the sweep's lock.
    pub fn save(&self, ring: &Rel) {
        debug_assert!(Tag::sweep().is_held_by_us());
        let mut columns: [Option<pg_sys::Datum>; COLUMNS] = [None; COLUMNS];
        columns[OPENED_AT] = Some(self.opened_at.into());
        columns[KEEP_US] = Some(self.wanted_us.unwrap_or(0).into());
        columns[SESSIONS_AT] = Some(self.sessions_at.into());
        columns[LOOKED_IN] = Some(self.looked_in.into());
        columns[NUMBER] = Some((self.number as i16).into());
        columns[CURRENT] = Some(self.current.into());
        columns[OPENING] = Some(self.opening.into());
        columns[RESTORED] = Some(self.restored.into());
        columns[CLOSED_AT] = self.closed_at.map(Into::into);
        columns[ENDS_AT] = self.noted_end.map(Into::into);
        columns[LOOKED_TO] = self.looked_to.map(Into::into);
        columns[LOOKED_AT] = self.looked_at.map(Into::into);
        write::update(ring, self.place, &columns);
    }
}

/// The rows of the ring in the order of their numbers, and the number of the current one.
pub fn rows<'rel>(ring: &'rel Rel) -> Result<([Segment<'rel>; 3], usize), Error> {
    let mut rows = ring.all(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| {
        Some(Segment {
            number: row.get::<i16>(NUMBER)?.try_into().ok()?,
            current: row.get(CURRENT)?,
            opened_at: row.get(OPENED_AT)?,
            closed_at: row.get(CLOSED_AT),
            wanted_us: row.get(KEEP_US).filter(|wanted_us: &i64| *wanted_us != 0),
            noted_end: row.get(ENDS_AT),
            looked_to: row.get(LOOKED_TO),
            looked_in: row.get(LOOKED_IN)?,
            looked_at: row.get(LOOKED_AT),
            opening: row.get(OPENING)?,
            is_ours: row.is_ours(),
            restored: row.get(RESTORED)?,
            sessions_at: row.get(SESSIONS_AT)?,
            place: row.at(),
        })
    });
    rows.sort_by_key(|row| row.number);
    let rows: [Segment<'rel>; 3] = rows.try_into().map_err(|_| lost())?;
    let whole = rows.iter().enumerate().all(|(n, row)| row.number == n);
    let mut current = rows.iter().filter(|row| row.current).map(|row| row.number);
    match (current.next(), current.next()) {
        (Some(number), None) if whole => Ok((rows, number)),
        _ => Err(lost()),
    }
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
