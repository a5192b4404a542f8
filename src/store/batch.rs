//! Many outcomes of an inbox, inserted directly and all at once.
//!
//! One record of the log serves all rows on a page, and there is neither a plan nor an executor. What the executor does
//! for `ON CONFLICT` and this way does not: it inserts each row on probation, and takes the row back if another
//! transaction was faster. Here the unique index waits for such a transaction. If that then commits, the insertion is an
//! error. So all rows are inserted in a subtransaction. It is rolled back on that error, and the caller inserts by SQL.
//! `docs/design.md`, *Inboxes*, says why this is right.

use crate::domain::identity::Digest;
use crate::pg::{self, TextRoom, raw};
use crate::store::direct;
use crate::store::outcome_columns::{COLUMNS, DIGEST, EXPIRES_AT, KEY};
use crate::store::rel::Rel;
use crate::store::row;
use crate::store::write;
use pgrx::{PgSqlErrorCode, pg_sys};

/// From how many rows on this way is worth a subtransaction, with an id of its own. In instructions alone it would be from
/// two rows on.
const ROWS_MIN: usize = 8;

/// The number of rows that are formed and inserted at a time. They fill a few pages.
const ROWS_AT_ONCE: usize = 256;

/// A key to insert.
pub struct Key<'a> {
    /// The key, in canonical form where it is a time key.
    pub key: &'a str,
    /// The digest of the request.
    pub digest: Digest,
    /// When it expires.
    pub expires_at: i64,
}

/// The columns of a row.
pub(super) type Row = [Option<pg_sys::Datum>; COLUMNS];

/// Inserts the keys, which must come in the order of their digests, if the table takes rows directly. All rows have the columns
/// of `common`. Gives whether it did. If not, nothing was inserted, since another way has to be taken: the rows are few, there is a savepoint, somebody
/// has added to the table what this way ignores, or another transaction has inserted one of the keys just now.
pub(super) fn insert(table: &Rel, keys: &[Key<'_>], common: &Row) -> bool {
    let Some(first) = keys.first() else { return true };
    if keys.len() < ROWS_MIN
        || write::direct_way(table, &columns(first, common, &mut TextRoom::default())).is_none()
        || !pg::may_write_in_subtransaction()
    {
        return false;
    }
    let insert = || pg::in_own_memory(|| insert_all(table, keys, common));
    // The commands that follow see the rows, since the end of a subtransaction counts as a command.
    pg::rolled_back_on(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, insert).is_some()
}

/// The columns of a row. They are valid until the key, the common part or the room changes.
fn columns(key: &Key<'_>, common: &Row, room: &mut TextRoom) -> Row {
    let mut columns = *common;
    columns[DIGEST] = Some(pg::uuid(&key.digest.0));
    columns[EXPIRES_AT] = Some(key.expires_at.into());
    columns[KEY] = Some(room.text(key.key));
    columns
}

fn insert_all(table: &Rel, keys: &[Key<'_>], common: &Row) {
    // SAFETY: the relation is open to be written, and takes rows directly. The slots have its shape. An error ends the
    // subtransaction, which closes the indexes and releases the slots. The closure has nothing to drop and does not panic.
    unsafe {
        let indexes = pg_sys::CatalogOpenIndexes(table.rel);
        let slot = |_| pg_sys::MakeSingleTupleTableSlot((*table.rel).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        let mut slots: Vec<*mut pg_sys::TupleTableSlot> = (0..keys.len().min(ROWS_AT_ONCE)).map(slot).collect();
        let mut room = TextRoom::default();
        for keys in keys.chunks(ROWS_AT_ONCE) {
            let slots = &mut slots[..keys.len()];
            for (key, slot) in keys.iter().zip(&*slots) {
                let columns = columns(key, common, &mut room);
                let tuple = raw::guarded(|| row::form((*table.rel).rd_att, &columns));
                pg_sys::ExecStoreHeapTuple(tuple, *slot, true);
            }
            let (command, no_options, one_by_one) = (pg_sys::GetCurrentCommandId(true), 0, std::ptr::null_mut());
            let count = keys.len() as i32;
            pg_sys::heap_multi_insert(table.rel, slots.as_mut_ptr(), count, command, no_options, one_by_one);
            // An index gets its entries in the order of the digests. If a unique index has an entry of another transaction
            // that is at work, this waits for that transaction.
            direct::insert_entries(table.rel, indexes, slots, |_| true, false);
            for slot in &*slots {
                pg_sys::ExecClearTuple(*slot);
            }
        }
        for slot in slots {
            pg_sys::ExecDropSingleTupleTableSlot(slot);
        }
        pg_sys::CatalogCloseIndexes(indexes);
    }
}
