//! `idempotence.stream`: what a client said of a stream. Written only under the stream's mark lock.

use crate::domain::identity::SessionId;
use crate::pg;
use crate::store::cache::{Index, Table};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::reply::StreamOf;
use crate::store::tuple::{Tid, Tuple, text_equals, uuid_equals};

const SESSION: usize = 0;
const ACKED: usize = 1;
const ALLOCATED: usize = 2;
const STREAM: usize = 3;
type Columns<'a> = Tuple<'a, 4>;

/// A row; all zero where there is none.
#[derive(Clone, Copy, Default)]
pub struct Marks {
    /// All numbers up to here are answered or given up.
    pub acked: i64,
    /// All numbers up to here were handed out.
    pub allocated: i64,
    /// Whether the transaction's snapshot sees the row.
    pub visible: bool,
    /// Whether there is a row.
    pub noted: bool,
}

/// What was said of a stream.
pub fn find(of: StreamOf<'_>) -> Marks {
    let nothing = Marks { visible: true, ..Marks::default() };
    find_in(&Rel::open(Table::Stream, Access::Read), of).map_or(nothing, |(marks, _)| marks)
}

fn find_in<'rel>(table: &'rel Rel, of: StreamOf<'_>) -> Option<(Marks, Tid<'rel>)> {
    if table.is_empty() {
        return None;
    }
    let keys = &mut [uuid_equals(SESSION as i16 + 1, of.session), text_equals(STREAM as i16 + 1, of.stream)];
    table.find_changing(Index::Stream, keys, |row: &Columns<'rel>| {
        let (acked, allocated) = (row.int8(ACKED)?, row.int8(ALLOCATED)?);
        Some((Marks { acked, allocated, visible: row.visible(), noted: true }, row.at()))
    })
}

/// How many named streams of a session have a row.
pub fn count(session: &SessionId) -> usize {
    let table = Rel::open(Table::Stream, Access::Read);
    let mut count = 0;
    let keys = &mut [uuid_equals(SESSION as i16 + 1, session)];
    table.find(Some(Index::Stream), keys, Snapshot::LatestMvcc, |row: &Columns<'_>| -> Option<()> {
        count += usize::from(!row.text_is(STREAM, ""));
        None
    });
    count
}

/// Saves what was said; `marks` comes from [`find`], under the same lock.
pub fn save(of: StreamOf<'_>, marks: &Marks) {
    let columns =
        [Some(pg::uuid(of.session)), Some(marks.acked.into()), Some(marks.allocated.into()), Some(pg::text(of.stream))];
    let table = Rel::open(Table::Stream, Access::Write);
    match find_in(&table, of) {
        Some((_, at)) => table.update(at, &columns),
        None => table.insert(&columns),
    }
}
