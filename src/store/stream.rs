//! `idempotence.stream`: the marks of a stream, that is, what its client has acknowledged and which numbers it was
//! given. A row is written only under the lock on the marks. The sweep deletes the rows when it deletes their session.

use crate::domain::identity::SessionId;
use crate::model::Stream;
use crate::pg;
use crate::store::catalog::{Index, Table};
use crate::store::rel::{Access, Rel};
use crate::store::tuple::{Tid, columns, text_equals, uuid_equals};
use crate::store::write;

columns! { "stream", Columns, COLUMNS: SESSION, ACKED, ALLOCATED, STREAM }

/// The marks of a stream. Without a row, both numbers are 0.
#[derive(Clone, Copy, Default)]
pub struct Marks {
    /// All numbers up to here are answered or given up.
    pub acked: i64,
    /// All numbers up to here were handed out.
    pub allocated: i64,
    /// Whether the transaction's snapshot sees the row; true if there is none.
    pub visible: bool,
    /// Whether there is a row.
    pub noted: bool,
}

/// The marks of a stream.
pub fn find(stream: Stream<'_>) -> Marks {
    let nothing = Marks { visible: true, ..Marks::default() };
    find_in(&Rel::open(Table::Stream, Access::Read), stream).map_or(nothing, |(marks, _)| marks)
}

fn find_in<'rel>(table: &'rel Rel, stream: Stream<'_>) -> Option<(Marks, Tid<'rel>)> {
    if table.is_empty() {
        return None;
    }
    let keys = &mut [uuid_equals(SESSION, stream.session), text_equals(STREAM, stream.name)];
    table.find_changing(Index::Stream, keys, |row: &Columns<'rel>| {
        let (acked, allocated) = (row.get(ACKED)?, row.get(ALLOCATED)?);
        Some((Marks { acked, allocated, visible: row.visible(), noted: true }, row.at()))
    })
}

/// The number of named streams of a session that have a row.
pub fn count(session: &SessionId) -> usize {
    let table = Rel::open(Table::Stream, Access::Read);
    let keys = &mut [uuid_equals(SESSION, session)];
    table.count(Some(Index::Stream), keys, i64::MAX, |row: &Columns<'_>| !row.text_is(STREAM, "")) as usize
}

/// Saves the marks. The caller has the lock on them, and has made `marks` from what [`find`] gave under that lock.
pub fn save(stream: Stream<'_>, marks: &Marks) {
    let columns: [_; COLUMNS] = [
        Some(pg::uuid(stream.session)),
        Some(marks.acked.into()),
        Some(marks.allocated.into()),
        Some(pg::text(stream.name)),
    ];
    let table = Rel::open(Table::Stream, Access::Write);
    let former = find_in(&table, stream);
    write::save(&table, former.map(|(_, at)| at), &columns);
}
