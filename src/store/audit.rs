//! `idempotence.audit`: who repaired what, when and why. Rows are only ever added.

use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::tuple::columns;
use crate::store::write;

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

columns! { "audit", COLUMNS: AT, BY, ACTION, SESSION, REQUEST, REASON, FOUND }

/// Notes a repair, in the transaction that makes it.
pub fn insert(repair: &Repair<'_>) {
    let mut columns = [None; COLUMNS];
    columns[AT] = Some(pg::now_us().into());
    columns[BY] = Some(pg::current_role().into());
    columns[ACTION] = Some(pg::text(repair.action));
    columns[SESSION] = Some(pg::text(repair.session));
    columns[REQUEST] = Some(pg::text(repair.request));
    columns[REASON] = Some(pg::text(repair.reason));
    columns[FOUND] = Some(pg::text(repair.found));
    write::insert(&Rel::open(Table::Audit, Access::Write), &columns);
}
