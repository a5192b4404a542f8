//! Whether this transaction has written what is ours: into our tables, or into a journal that Citus keeps. A rollback to a
//! savepoint does not take that back, so it may also be true of a transaction that leaves nothing there.

use std::cell::Cell;

/// What a transaction has written.
#[derive(Clone, Copy, Default)]
pub struct Written {
    /// Something here.
    pub here: bool,
    /// Something in a journal that Citus keeps.
    pub elsewhere: bool,
    /// Something there that must outlast a crash of the server that has it, whatever is set there.
    pub lasting: bool,
}

thread_local! {
    static WRITTEN: Cell<Written> = const { Cell::new(Written { here: false, elsewhere: false, lasting: false }) };
}

/// Notes that the transaction writes here.
pub fn note() {
    WRITTEN.set(Written { here: true, ..WRITTEN.get() });
}

/// Notes that the transaction writes into a journal that Citus keeps.
pub fn note_elsewhere() {
    WRITTEN.set(Written { elsewhere: true, ..WRITTEN.get() });
}

/// Notes that what it writes there must outlast a crash.
pub fn note_lasting() {
    WRITTEN.set(Written { elsewhere: true, lasting: true, ..WRITTEN.get() });
}

/// What this transaction has written so far.
pub fn so_far() -> Written {
    WRITTEN.get()
}

/// Forgets it, at the end of the transaction.
pub fn clear() {
    WRITTEN.set(Written::default());
}
