//! A row to be written.

use crate::pg;
use crate::store::rel::{Access, Rel};
use crate::store::tuple::check_columns;
use pgrx::pg_sys;

/// The columns of a row as PostgreSQL takes them.
pub(super) struct RowToWrite {
    values: [pg_sys::Datum; pg::COLUMNS_MAX],
    nulls: [bool; pg::COLUMNS_MAX],
}

impl RowToWrite {
    pub fn of(table: &Rel, columns: &[Option<pg_sys::Datum>]) -> RowToWrite {
        debug_assert!(table.access == Access::Write);
        // SAFETY: the relation is open.
        unsafe { check_columns((*table.rel).rd_att, columns.len()) };
        let (values, nulls) = pg::split(columns);
        RowToWrite { values, nulls }
    }

    /// The values, and which of them are NULL.
    pub fn parts(&mut self) -> (*mut pg_sys::Datum, *mut bool) {
        (self.values.as_mut_ptr(), self.nulls.as_mut_ptr())
    }

    /// A column's value, and whether it is NULL.
    pub fn column(&self, number: usize) -> (pg_sys::Datum, bool) {
        (self.values[number], self.nulls[number])
    }
}
