//! Telling other backends what has changed in our tables. The messages go out when this transaction commits. This
//! backend takes its own changes in at once. `invalidation.rs` describes the messages, and notes those that come.

use crate::domain::identity::SessionId;
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::invalidation::{self, RING};
use pgrx::pg_sys;

/// Makes every backend forget all that it remembers, told by one of our tables that the caller has open. It does not look the
/// tables up, so it also works while the version of the tables is not that of the library.
pub fn all_changed(table: pg_sys::Oid) {
    invalidation::forget();
    // SAFETY: registers a message for the commit. The table exists.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(table) }
}

/// Makes every backend forget a standing session, and the others of its set.
pub fn session_changed(session: &SessionId) {
    send(invalidation::number_of(session));
}

/// Makes every backend forget the ring's pointer.
pub fn ring_changed() {
    send(RING);
}

/// Sends the message that a number stands for.
fn send(number: u32) {
    invalidation::note_number(number);
    let table = pg_sys::Datum::from(cache::oid(Table::Session));
    let (none, class) = (pg_sys::Datum::null(), pg_sys::SysCacheIdentifier::RELOID as i32);
    // SAFETY: changes only a copy of our table's row in pg_class. From that copy the message takes the number, and that
    // the relation is not shared.
    unsafe {
        let row = pg_sys::SearchSysCacheCopy(class, table, none, none, none);
        assert!(!row.is_null(), "an open table has a row in pg_class");
        let header = (*row).t_data;
        let form = header.cast::<u8>().add((*header).t_hoff.into()).cast::<pg_sys::FormData_pg_class>();
        (*form).oid = number.into();
        pg_sys::CacheInvalidateRelcacheByTuple(row);
        pg_sys::heap_freetuple(row);
    }
}
