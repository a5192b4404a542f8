//! `idempotence.session`: standing sessions and their tombstones (`standing.rs`), and client sessions that are saved or
//! whose end has to stay known (`client.rs`). A row with a name is that of a standing session.

pub mod client;
pub mod standing;

use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tuple, columns};

columns! { "session", COLUMNS:
    ID, CREATED_AT, OWNER, WINDOW_SIZE, TIMEOUT, REQUIRE_PAYLOAD, INBOX, TIME_KEYS, ORDERING, NODE, CLIENT, REQUEST_ID,
    ENDED, ENDED_AT, NAME, TTL, USABLE_BY, MAX_ATTEMPTS, JOURNAL
}
type Columns<'a> = Tuple<'a, COLUMNS>;

/// Whether the table has any row.
pub fn any() -> bool {
    let table = Rel::open(Table::Session, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |_: &Columns<'_>| Some(())).is_some()
}
