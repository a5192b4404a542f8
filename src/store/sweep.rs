//! `idempotence.sweep`: what the sweep remembers, with a row for each step that remembers something. The table is
//! unlogged, so a crash or a failover empties it, and the next sweep notices that.

use crate::domain::cursor::Cursor;
use crate::lock::Tag;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, Tuple, columns};
use crate::store::write;

columns! { "sweep", COLUMNS: DONE_AT, PLACE, STEP }
type Columns<'a> = Tuple<'a, COLUMNS>;

/// What is remembered of a step.
pub struct Swept {
    /// When the step last came to the end of its table.
    pub done_at: i64,
    /// How far the step has come since.
    pub cursor: Cursor,
}

/// What is remembered of a step; `None` after a crash, before the step's first time, and on a standby.
pub fn find(step: &str) -> Option<Swept> {
    if pg::in_recovery() {
        return None;
    }
    find_in(&Rel::open(Table::Sweep, Access::Read), step).map(|(swept, _)| swept)
}

fn find_in<'rel>(table: &'rel Rel, step: &str) -> Option<(Swept, Tid<'rel>)> {
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| {
        let (done_at, cursor) = (row.int8(DONE_AT)?, Cursor::of_number(row.int8(PLACE)?));
        row.text_is(STEP, step).then(|| (Swept { done_at, cursor }, row.at()))
    })
}

/// Remembers a step. The caller holds the sweep's lock.
pub fn save(step: &str, done_at: i64, cursor: Cursor) {
    debug_assert!(Tag::sweep().is_held_by_us());
    let columns: [_; COLUMNS] = [Some(done_at.into()), Some(cursor.number().into()), Some(pg::text(step))];
    let table = Rel::open(Table::Sweep, Access::Write);
    match find_in(&table, step) {
        Some((_, at)) => write::update(&table, at, &columns),
        None => write::insert(&table, &columns),
    }
}
