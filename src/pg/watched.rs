//! Whether tables have changed that are not ours: their shape, or what their names mean. PostgreSQL tells by its
//! invalidation messages, which a backend takes in at the start of each transaction and with every new lock on a table.
//! Of a schema that got another name it tells nothing of the tables in it, so each change of a schema counts.

use super::own::Own;
use pgrx::{pg_guard, pg_sys};
use std::cell::Cell;
use std::collections::HashSet;

static WATCHED: Own<HashSet<pg_sys::Oid>> = Own::new();

thread_local! {
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// Has changes of a table counted from now on.
pub fn watch_relation(relation: pg_sys::Oid) {
    if !REGISTERED.replace(true) {
        // SAFETY: the callbacks are static functions, registered once a backend.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::null());
            let schemas = pg_sys::SysCacheIdentifier::NAMESPACEOID as i32;
            pg_sys::CacheRegisterSyscacheCallback(schemas, Some(schema_changed), pg_sys::Datum::null());
        }
    }
    WATCHED.with(|watched| watched.insert(relation));
}

/// How many changes of watched tables and of schemas have been told of. It also counts when messages were lost.
pub fn relation_changes() -> u64 {
    CHANGES.get()
}

#[pg_guard]
unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || WATCHED.with(|watched| watched.contains(&relation)) {
        CHANGES.set(CHANGES.get() + 1);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn schema_changed(_arg: pg_sys::Datum, _cache: i32, _schema: u32) {
    CHANGES.set(CHANGES.get() + 1);
}
