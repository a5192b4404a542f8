//! `idempotence.session`: standing sessions with their tombstones (`standing.rs`), and client sessions that are
//! saved, or whose end has to be known (`client.rs`). A row belongs to a standing session if it has a name.

pub mod client;
mod columns;
pub mod standing;

use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use columns::Columns;

/// Whether there is any session, or a tombstone of one.
pub fn any() -> bool {
    let table = Rel::open(Table::Session, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |_: &Columns<'_>| Some(())).is_some()
}
