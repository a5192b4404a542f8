//! `idempotence.audit`: who repaired or decided what, when and why. The extension adds rows, and deletes old ones if an
//! admin says so.
//!
//! It tells of roles by their names. A role that was dropped has no name any more, and its oid is a number that means
//! another role on another server.

use crate::error::Error;
use crate::pg::{self, Timestamptz};
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::sql;
use crate::store::tuple::columns;
use crate::store::write;

columns! { "audit", Columns, COLUMNS: AT, BY, LOGIN, APPLICATION, CLIENT_ADDR, ACTION, SESSION, REQUEST, REASON, FOUND }

/// Notes a repair, in the transaction that makes it, and what it found. `action` tells which repair it was, for example
/// `forget`. `session` and `request` are empty where it concerns none. `reason` is that of the caller; `None`: the call takes none.
pub fn note(action: &str, session: &str, request: &str, reason: Option<&str>, found: &str) {
    let mut columns = [None; COLUMNS];
    columns[AT] = Some(pg::now_us().into());
    columns[BY] = Some(pg::current_role_text());
    columns[LOGIN] = Some(pg::text(&pg::login_name()));
    columns[APPLICATION] = Some(pg::text(&pg::application_name()));
    columns[CLIENT_ADDR] = pg::client_address().as_deref().map(pg::text);
    columns[ACTION] = Some(pg::text(action));
    columns[SESSION] = Some(pg::text(session));
    columns[REQUEST] = Some(pg::text(request));
    columns[REASON] = reason.map(pg::text);
    columns[FOUND] = Some(pg::text(found));
    write::insert(&Rel::open(Table::Audit, Access::Write), &columns);
}

/// Deletes the rows from before a moment; gives how many.
pub fn delete_before(before: i64) -> Result<usize, Error> {
    let statement = "DELETE FROM ONLY idempotence.audit WHERE at OPERATOR(pg_catalog.<) $1";
    sql::execute(statement, &[Timestamptz(before).into()])
}
