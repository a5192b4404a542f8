//! Whether this transaction has written what is ours: into our tables, or into a journal that Citus keeps. A rollback to a
//! savepoint does not take that back, so it may also be true of a transaction that leaves nothing there.

use std::cell::Cell;

#[derive(Clone, Copy, Default)]
struct Written {
    here: bool,
    elsewhere: bool,
    lasting: bool,
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

/// Notes that what it writes there must outlast a crash of the server that has it, whatever is set there.
pub fn note_lasting() {
    WRITTEN.set(Written { elsewhere: true, lasting: true, ..WRITTEN.get() });
}

/// Whether the transaction has written here.
pub fn here() -> bool {
    WRITTEN.get().here
}

/// Whether it has written into a journal that Citus keeps.
pub fn elsewhere() -> bool {
    WRITTEN.get().elsewhere
}

/// Whether what it has written there must outlast a crash.
pub fn lasting() -> bool {
    WRITTEN.get().lasting
}

/// Forgets it, at the end of the transaction.
pub fn clear() {
    WRITTEN.set(Written::default());
}
