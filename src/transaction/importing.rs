//! Whether this transaction has an import under way: begun, not ended, and not rolled back to a savepoint.
//!
//! The audit tells of an import when it ends. So a transaction must not commit rows of an import that has not ended, as
//! whoever calls the parts of `idem_import` by hand could.

use crate::error::Error;
use crate::pg;
use std::cell::Cell;

/// An import that is under way.
#[derive(Clone, Copy)]
struct Importing {
    /// Tells it from all other imports of this backend.
    number: i64,
    /// The nesting level of the subtransaction that it belongs to.
    level: i32,
}

thread_local! {
    static IMPORTING: Cell<Option<Importing>> = const { Cell::new(None) };
    static NUMBER: Cell<i64> = const { Cell::new(0) };
}

/// Begins an import and gives its number; `None` if one is under way.
pub fn begin() -> Option<i64> {
    if IMPORTING.get().is_some() {
        return None;
    }
    let number = NUMBER.get() + 1;
    NUMBER.set(number);
    IMPORTING.set(Some(Importing { number, level: pg::nesting_level() }));
    Some(number)
}

/// The number of the import that is under way.
pub fn number() -> Option<i64> {
    IMPORTING.get().map(|importing| importing.number)
}

/// Forgets the import: it has ended, or its transaction.
pub fn end() {
    IMPORTING.set(None);
}

/// Forgets an import that belongs to the innermost subtransaction, which is rolled back.
pub(super) fn roll_back() {
    IMPORTING.set(IMPORTING.get().filter(|importing| importing.level < pg::nesting_level()));
}

/// Makes an import of the innermost subtransaction one of its parent.
pub(super) fn hand_up() {
    let parent = pg::nesting_level() - 1;
    IMPORTING.set(IMPORTING.get().map(|importing| Importing { level: importing.level.min(parent), ..importing }));
}

/// Refuses the end of a transaction that has an import under way.
pub(super) fn refuse_unended() {
    if IMPORTING.get().is_none() {
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
