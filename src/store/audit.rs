//! `idempotence.audit`: who repaired what, when and why. Rows are only ever added.

use crate::pg;
use crate::store::cache::Table;
use crate::store::rel::{Access, Rel};

/// A repair.
pub struct Repair<'a> {
    /// The function.
    pub action: &'a str,
    /// The session's name.
    pub session: &'a str,
    /// The request.
    pub request: &'a str,
    /// As given.
    pub reason: &'a str,
    /// What was there.
    pub found: &'a str,
}

/// Notes a repair, in the transaction that makes it.
pub fn insert(repair: &Repair<'_>) {
    Rel::open(Table::Audit, Access::Write).insert(&[
        Some(pg::now_us().into()),
        Some(pg::current_role().into()),
        Some(pg::text(repair.action)),
        Some(pg::text(repair.session)),
        Some(pg::text(repair.request)),
        Some(pg::text(repair.reason)),
        Some(pg::text(repair.found)),
    ]);
}
