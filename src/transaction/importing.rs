//! Whether this transaction has an import under way: begun, not ended, and not rolled back to a savepoint.
//!
//! The audit tells of an import when it ends. So a transaction must not commit rows of an import that has not ended, as
//! whoever calls the parts of `idem_import` by hand could.

use crate::error::Error;
use crate::pg;
use std::cell::Cell;

thread_local! {
    /// The nesting level of the subtransaction that the import belongs to which is under way.
    static LEVEL: Cell<Option<i32>> = const { Cell::new(None) };
    /// The number of the import that was begun last, which tells it from all other imports of this backend.
    static NUMBER: Cell<i64> = const { Cell::new(0) };
}

/// Begins an import and gives its number; `None` if one is under way.
pub fn begin() -> Option<i64> {
    if LEVEL.get().is_some() {
        return None;
    }
    LEVEL.set(Some(pg::nesting_level()));
    NUMBER.set(NUMBER.get() + 1);
    number()
}

/// The number of the import that is under way.
pub fn number() -> Option<i64> {
    LEVEL.get().map(|_| NUMBER.get())
}

/// Forgets the import: it has ended, or its transaction.
pub fn end() {
    LEVEL.set(None);
}

/// Forgets an import that belongs to the innermost subtransaction, which is rolled back.
pub(super) fn roll_back() {
    LEVEL.set(LEVEL.get().filter(|level| *level < pg::nesting_level()));
}

/// Makes an import of the innermost subtransaction one of its parent.
pub(super) fn hand_up() {
    LEVEL.set(LEVEL.get().map(|level| level.min(pg::nesting_level() - 1)));
}

/// Refuses the end of a transaction that has an import under way.
pub(super) fn refuse_unended() {
    if LEVEL.get().is_none() {
        return;
    }
    Error::Invalid {
        message: "an import was begun and not ended".into(),
        detail: "idempotence.import_begin() was called without import_end(), so that the audit would not tell of it."
            .into(),
        hint: "Call idem_import().",
    }
    .raise()
}
