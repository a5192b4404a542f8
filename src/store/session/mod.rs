//! `idempotence.session`: standing sessions and their tombstones (`standing.rs`), and client sessions that are saved or
//! whose end has to stay known (`client.rs`). A row with a name is that of a standing session.

pub mod client;
mod columns;
pub mod standing;

use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use columns::Columns;

/// The number of the columns.
pub(super) const COLUMNS: usize = columns::COLUMNS;

/// Whether the table has any row.
pub fn any() -> bool {
    let table = Rel::open(Table::Session, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |_: &Columns<'_>| Some(())).is_some()
}
