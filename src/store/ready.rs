//! Whether the tables are such that a request can be begun.

use crate::error::Error;
use crate::store::cache;
use crate::store::catalog::{self, Index, Table};
use crate::store::rel::{Access, Rel};
use crate::store::tuple::check_columns;
use crate::store::{
    checkpoint, lease, outcome_columns, reply, restore, secret, segment, session, session_live, stream,
};

/// The tables that requests need, with the number of their columns.
pub const NEEDED: [(Table, usize); 12] = [
    (Table::Session, session::COLUMNS),
    (Table::SessionLive, session_live::COLUMNS),
    (Table::Outcome0, outcome_columns::COLUMNS),
    (Table::Outcome1, outcome_columns::COLUMNS),
    (Table::Outcome2, outcome_columns::COLUMNS),
    (Table::OutcomeLong, outcome_columns::COLUMNS),
    (Table::Segment, segment::COLUMNS),
    (Table::Checkpoint, checkpoint::COLUMNS),
    (Table::Lease, lease::COLUMNS),
    (Table::Reply, reply::COLUMNS),
    (Table::Stream, stream::COLUMNS),
    (Table::Restore, restore::COLUMNS),
];

/// Raises, or gives, the error that requests would meet: the tables are of another version than the library, one of them is
/// missing or has been changed, an index is missing, or a restore of them is not complete or has brought another key. It
/// waits for whoever has locked one. That a segment was changed which the ring has not come to yet harms no request.
pub fn look() -> Result<(), Error> {
    catalog::check_version();
    for (table, columns) in NEEDED {
        let rel = Rel::open(table, if segment::is_current(table) { Access::Write } else { Access::Read });
        if segment::is_blank(table) {
            continue;
        }
        // SAFETY: the relation is open.
        unsafe { check_columns((*rel.rel).rd_att, columns) };
    }
    // It looks all indexes up, if any may have changed.
    cache::index_oid(Index::Session);
    secret::check()
}
