//! `idempotence.audit`: who repaired what, when and why. The extension adds rows, and deletes old ones if an admin says so.

use crate::error::Error;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::sql::{self, moment};
use crate::store::tuple::columns;
use crate::store::write;

/// A repair.
pub struct Repair<'a> {
    /// Which repair it was, for example `forget`.
    pub action: &'a str,
    /// The session's name; empty if the repair concerns no session.
    pub session: &'a str,
    /// The request's key; empty if the repair concerns no request.
    pub request: &'a str,
    /// The reason, as the caller gave it.
    pub reason: &'a str,
    /// What the repair found.
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

/// Deletes the rows from before a moment; gives how many.
pub fn delete_before(before: i64) -> Result<usize, Error> {
    let statement = "DELETE FROM ONLY idempotence.audit WHERE at OPERATOR(pg_catalog.<) $1";
    sql::execute(statement, &[moment(before).into()])
}
