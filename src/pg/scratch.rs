//! Text values that are formed one after the other in the same memory.

use pgrx::pg_sys;

/// Memory for one text value. PostgreSQL copies a value when it forms a row of it, so the memory serves the next one.
#[derive(Default)]
pub struct TextRoom(Vec<u64>);

impl TextRoom {
    /// The value, which is there until the next one is formed.
    pub fn text(&mut self, value: &str) -> pg_sys::Datum {
        let bytes = pg_sys::VARHDRSZ + value.len();
        let words = bytes.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        let room: *mut pg_sys::varlena = self.0.as_mut_ptr().cast();
        // SAFETY: there is room for the header and the value. A key is far shorter than a value can be.
        unsafe {
            pgrx::varlena::set_varsize_4b(room, bytes as i32);
            room.cast::<u8>().add(pg_sys::VARHDRSZ).copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
        room.into()
    }
}
