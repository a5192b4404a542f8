//! `idempotence.sweep`: the one row that the sweep remembers something in. Unlogged: that there is no row
//! tells of a crash or a failover.

use crate::pg;
use crate::store::cache::Table;
use crate::store::rel::{Access, Rel, Snapshot, Tuple};
use pgrx::pg_sys;

const SWEPT_AT: usize = 0;
const TIDIED_AT: usize = 1;
type Columns<'a> = Tuple<'a, 2>;

/// The row.
pub struct Swept {
    /// When the last sweep that was noted here ended.
    pub swept_at: i64,
    /// When what need not be looked for often was looked for last.
    pub tidied_at: i64,
    at: pg_sys::ItemPointerData,
}

/// Gives the row; `None` after a crash, before the first sweep, and on a standby.
pub fn find() -> Option<Swept> {
    if pg::in_recovery() {
        return None;
    }
    Rel::open(Table::Sweep, Access::Read).find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'_>| {
        Some(Swept { swept_at: row.int8(SWEPT_AT)?, tidied_at: row.int8(TIDIED_AT)?, at: row.at() })
    })
}

/// Writes the row. The caller holds the sweep's lock.
pub fn save(swept_at: i64, tidied_at: i64) {
    let columns = [Some(swept_at.into()), Some(tidied_at.into())];
    let there = find();
    let table = Rel::open(Table::Sweep, Access::Write);
    match there {
        Some(there) => table.update(there.at, &columns),
        None => table.insert(&columns),
    }
}
