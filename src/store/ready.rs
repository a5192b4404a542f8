//! Whether the tables are such that a request can be begun.

use crate::error::Error;
use crate::store::catalog::{self, Table};
use crate::store::rel::{Access, Rel};
use crate::store::tuple::check_columns;
use crate::store::{
    checkpoint, lease, outcome_columns, reply, restore, secret, segment, session, session_live, stream,
};

/// The tables that requests need, with the number of their columns.
const NEEDED: [(Table, usize); 12] = [
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

/// Raises, or gives, the error that every request would meet: the tables are of another version than the library, one
/// of them is missing or has been changed, or a restore of them is not complete. It waits for whoever has locked one.
/// No row of a request is read.
pub fn look() -> Result<(), Error> {
    catalog::check_version();
    for (table, columns) in NEEDED {
        let rel = Rel::open(table, Access::Read);
        // SAFETY: the relation is open.
        unsafe { check_columns((*rel.rel).rd_att, columns) };
    }
    secret::check()
}
