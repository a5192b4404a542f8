//! Opening the tables that seldom have a row, which costs nothing while they are known to have none (see `blank.rs`).

use crate::store::blank;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};

/// Opens a table to read it; `None`: it has no page, or cannot be read here.
pub fn open(name: Table) -> Option<Rel> {
    let noted = blank::note(name)?;
    let table = Rel::open(name, Access::Read);
    if !table.is_readable() {
        return None;
    }
    if table.is_empty() {
        // If this transaction itself has emptied the table, that may be rolled back.
        if !table.is_rewritten_by_us() {
            noted.is_blank();
        }
        return None;
    }
    Some(table)
}
