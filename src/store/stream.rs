//! `idempotence.stream`: what a client said of a stream. Written only under the stream's mark lock.

use crate::pg;
use crate::store::cache::{Index, Table};
use crate::store::rel::{self, Access, Rel, Tuple};
use crate::store::reply::StreamOf;
use pgrx::pg_sys;

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
    /// The row, if there is one.
    pub at: Option<pg_sys::ItemPointerData>,
}

/// What was said of a stream.
pub fn find(of: StreamOf<'_>) -> Marks {
    let table = Rel::open(Table::Stream, Access::Read);
    if table.is_empty() {
        return Marks { visible: true, ..Marks::default() };
    }
    let keys = &mut [rel::uuid_equals(SESSION as i16 + 1, of.session), rel::text_equals(STREAM as i16 + 1, of.stream)];
    let read = |row: &Columns<'_>| {
        let (acked, allocated) = (row.int8(ACKED)?, row.int8(ALLOCATED)?);
        Some(Marks { acked, allocated, visible: row.visible(), at: Some(row.at()) })
    };
    table.find_changing(Index::Stream, keys, read).unwrap_or(Marks { visible: true, ..Marks::default() })
}

/// Saves what was said; `marks` comes from [`find`], under the same lock.
pub fn save(of: StreamOf<'_>, marks: &Marks) {
    let columns =
        [Some(pg::uuid(of.session)), Some(marks.acked.into()), Some(marks.allocated.into()), Some(pg::text(of.stream))];
    let table = Rel::open(Table::Stream, Access::Write);
    match marks.at {
        Some(at) => table.update(at, &columns),
        None => table.insert(&columns),
    }
}
