//! `idempotence.sweep`: what the sweep remembers, a row for each step that remembers something. Unlogged:
//! that there is no row tells of a crash or a failover.

use crate::domain::cursor::Cursor;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, Tuple, columns};
use crate::store::write;

columns! { "sweep", COLUMNS: DONE_AT, PLACE, STEP }
type Columns<'a> = Tuple<'a, COLUMNS>;

/// A row.
pub struct Swept {
    /// When the step came to its end last.
    pub done_at: i64,
    /// How far it has come since.
    pub cursor: Cursor,
}

/// Gives a step's row; `None` after a crash, before the first time, and on a standby.
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

/// Writes a step's row. The caller holds the sweep's lock.
pub fn save(step: &str, done_at: i64, cursor: Cursor) {
    let columns: [_; COLUMNS] = [Some(done_at.into()), Some(cursor.number().into()), Some(pg::text(step))];
    let table = Rel::open(Table::Sweep, Access::Write);
    match find_in(&table, step) {
        Some((_, at)) => write::update(&table, at, &columns),
        None => write::insert(&table, &columns),
    }
}
