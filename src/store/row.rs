//! A row to be written.

use crate::pg::{self, raw};
use crate::store::rel::{Access, Rel};
use crate::store::tuple::check_columns;
use pgrx::pg_sys;
use std::mem::offset_of;

/// The columns of a row as PostgreSQL takes them.
pub(super) struct RowToWrite {
    values: [pg_sys::Datum; pg::COLUMNS_MAX],
    nulls: [bool; pg::COLUMNS_MAX],
}

impl RowToWrite {
    pub fn of(table: &Rel, columns: &[Option<pg_sys::Datum>]) -> RowToWrite {
        debug_assert!(table.access == Access::Write);
        // SAFETY: the relation is open.
        unsafe {
            let shape = (*table.rel).rd_att;
            check_columns(shape, columns.len());
            let has_default_for_missing = !(*shape).constr.is_null() && !(*(*shape).constr).missing.is_null();
            debug_assert!(!has_default_for_missing, "an upgrade script adds a column without a default");
        }
        let (values, nulls) = pg::split(columns);
        RowToWrite { values, nulls }
    }

    /// A column's value, and whether it is NULL.
    pub fn column(&self, number: usize) -> (pg_sys::Datum, bool) {
        (self.values[number], self.nulls[number])
    }

    /// Forms the row without the NULLs at its end. PostgreSQL reads what a row ends before as NULL, as it does after an
    /// ALTER TABLE that has added a column. A row that has no other NULLs, or no more than eight columns, then has the
    /// shortest header there is, 24 bytes instead of 32.
    ///
    /// # Safety
    ///
    /// Within a guard. `shape` is that of the table.
    pub unsafe fn form(&mut self, shape: pg_sys::TupleDesc) -> pg_sys::HeapTuple {
        // SAFETY: as the caller warrants. A formed row is a header, which ends with the bitmap and what aligns it, and the
        // data, whose alignment counts from there. Both become shorter here, if they change.
        unsafe {
            let tuple = raw::heap_form_tuple(shape, self.values.as_mut_ptr(), self.nulls.as_mut_ptr());
            let header = (*tuple).t_data;
            let nulls = &self.nulls[..(*shape).natts as usize];
            let columns = nulls.iter().rposition(|is_null| !is_null).map_or(0, |last| last + 1);
            let has_null = nulls[..columns].contains(&true);
            let bitmap = if has_null { columns.div_ceil(8) } else { 0 };
            let length = pg_sys::MAXALIGN(offset_of!(pg_sys::HeapTupleHeaderData, t_bits) + bitmap);
            let former = (*header).t_hoff as usize;
            (*header).t_infomask2 = (*header).t_infomask2 & !(pg_sys::HEAP_NATTS_MASK as u16) | columns as u16;
            if !has_null {
                (*header).t_infomask &= !(pg_sys::HEAP_HASNULL as u16);
            }
            if length < former {
                let row = header.cast::<u8>();
                std::ptr::copy(row.add(former), row.add(length), (*tuple).t_len as usize - former);
                (*header).t_hoff = length as u8;
                (*tuple).t_len -= (former - length) as u32;
            }
            tuple
        }
    }
}
