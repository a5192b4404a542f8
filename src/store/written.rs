//! Whether this transaction has written into our tables. A rollback to a savepoint does not take that back, so it may
//! also be true of a transaction that leaves nothing there.

use std::cell::Cell;

thread_local! {
    static WRITTEN: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the transaction writes.
pub fn note() {
    WRITTEN.set(true);
}

/// Whether the transaction has written.
pub fn any() -> bool {
    WRITTEN.get()
}

/// Forgets it, at the end of the transaction.
pub fn clear() {
    WRITTEN.set(false);
}
