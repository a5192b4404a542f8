//! A row to be written.

use crate::pg::{self, raw};
use pgrx::pg_sys;
use std::mem::offset_of;

/// Forms a row without the NULLs at its end. PostgreSQL reads what a row ends before as NULL, as it does after an ALTER TABLE
/// that has added a column. A row that has no other NULLs, or no more than eight columns, then has the shortest header there
/// is, 24 bytes instead of 32.
///
/// # Safety
///
/// Within a guard. `shape` is that of the table, which has these columns.
pub(super) unsafe fn form(shape: pg_sys::TupleDesc, columns: &[Option<pg_sys::Datum>]) -> pg_sys::HeapTuple {
    let (mut values, mut nulls) = pg::split(columns);
    // SAFETY: as the caller warrants. A formed row is a header, which ends with the bitmap and what aligns it, and the
    // data, whose alignment counts from there. Both become shorter here, if they change.
    unsafe {
        let tuple = raw::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        let header = (*tuple).t_data;
        let columns = columns.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
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
