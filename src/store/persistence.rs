//! `idempotence.persistence`: which tables a DBA wants logged or unlogged. The table has a row for each choice; without
//! one a table is as `CREATE EXTENSION` makes it.
//!
//! A dump has the choices, but `CREATE EXTENSION` makes the tables of a restored database. So the sweep applies the
//! choices where the tables differ from them.

use crate::error::Error;
use crate::store::catalog::Table;
use crate::store::exclusive;
use crate::store::rel::{Access, Rel};
use crate::store::sql;

/// What can be logged or unlogged: its name in SQL, and the table.
pub type What = (&'static str, Table);

/// The leases, by default logged, and the client sessions at work, by default unlogged.
pub const ALL: [What; 2] = [("claims", Table::Lease), ("sessions", Table::SessionLive)];

/// Makes the table logged or unlogged, and notes the choice for dumps. Gives whether the table has changed. An error if
/// somebody uses it.
pub fn choose((what, table): What, unlogged: bool) -> Result<bool, Error> {
    let changes = is_unlogged(table) != unlogged;
    if changes && !apply(table, unlogged)? {
        return Err(Error::TableInUse { relation: format!("idempotence.{}", table.name()), what });
    }
    let statement = "INSERT INTO idempotence.persistence AS p (what, unlogged) VALUES ($1, $2)
        ON CONFLICT (what) DO UPDATE SET unlogged = EXCLUDED.unlogged";
    sql::execute(statement, &[what.into(), unlogged.into()])?;
    Ok(changes)
}

/// Whether the table is unlogged now.
fn is_unlogged(table: Table) -> bool {
    Rel::open(table, Access::Read).is_unlogged()
}

/// Applies the choices to tables that nobody uses just now. Gives how many tables have changed.
pub fn apply_choices() -> Result<usize, Error> {
    if Rel::open(Table::Persistence, Access::Read).is_empty() {
        return Ok(0);
    }
    let mut changed = 0;
    for (name, unlogged) in sql::pairs::<String, bool>("SELECT what, unlogged FROM idempotence.persistence", &[])? {
        let what = ALL.into_iter().find(|(what, table)| *what == name && is_unlogged(*table) != unlogged);
        if let Some((_, table)) = what
            && apply(table, unlogged)?
        {
            changed += 1;
        }
    }
    Ok(changed)
}

/// Gives false if somebody uses the table.
fn apply(table: Table, unlogged: bool) -> Result<bool, Error> {
    // A wait for these locks would make others wait behind it.
    if !exclusive::lock_alone(table) {
        return Ok(false);
    }
    let name = table.name();
    let how = if unlogged { "UNLOGGED" } else { "LOGGED" };
    sql::execute(&format!("ALTER TABLE idempotence.{name} SET {how}"), &[]).map(|_| true)
}
