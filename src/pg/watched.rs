//! Whether the shape of tables has changed that are not ours. PostgreSQL tells by its invalidation messages, which a
//! backend takes in at the start of each transaction and with every lock on a table.

use pgrx::{pg_guard, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

thread_local! {
    static WATCHED: RefCell<HashSet<pg_sys::Oid>> = RefCell::default();
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// Has changes of a table counted from now on.
pub fn watch_relation(relation: pg_sys::Oid) {
    if !REGISTERED.replace(true) {
        // SAFETY: the callback is a static function, registered once a backend.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::null()) }
    }
    WATCHED.with_borrow_mut(|watched| watched.insert(relation));
}

/// How many changes of watched tables have been told of. It also counts when messages were lost.
pub fn relation_changes() -> u64 {
    CHANGES.get()
}

#[pg_guard]
unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    let is_watched =
        || WATCHED.try_with(|watched| watched.try_borrow().is_ok_and(|watched| watched.contains(&relation)));
    if relation == pg_sys::InvalidOid || is_watched() != Ok(false) {
        CHANGES.set(CHANGES.get() + 1);
    }
}
