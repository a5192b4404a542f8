//! Makes a journal, or checks that a table can be one.

use super::table::{self, COLUMNS, TENANT_TYPES};
use crate::arguments;
use crate::error::Error;
use pgrx::pg_sys;
use pgrx::spi::Spi;

/// Makes a journal with the rights of the caller, unless there is one. `tenant` names the tenant's column. Gives false if the
/// table was there, and fits.
pub fn create(journal: &str, tenant: &str, tenant_type: pg_sys::Oid) -> Result<bool, Error> {
    let Some((_, sql_type)) = TENANT_TYPES.into_iter().find(|(of, _)| of.value() == tenant_type) else {
        return Err(Error::Invalid {
            message: format!("the tenant of journal {journal} cannot be of this type"),
            detail: format!("A tenant is of one of the types {}.", TENANT_TYPES.map(|(_, name)| name).join(", ")),
            hint: "Choose that of the column by which the rows of the requests are distributed.",
        });
    };
    if tenant.is_empty() || COLUMNS.iter().any(|(name, ..)| *name == tenant) {
        return Err(Error::Invalid {
            message: format!("the tenant's column of journal {journal} cannot be named \"{tenant}\""),
            detail: "Another column of a journal has this name, or it is empty.".into(),
            hint: "Name it as the column by which the rows of the requests are distributed.",
        });
    }
    arguments::check_writable("idem_create_journal", || format!("Table {journal} is to be made."))?;
    let quoted = table::first::<String>("SELECT pg_catalog.quote_ident($1)", &[tenant.into()])?.unwrap_or_default();
    match table::find_named(journal) {
        Ok(found) if found.tenant == quoted && found.tenant_type.value() == tenant_type => return Ok(false),
        Ok(found) => {
            let detail = format!("Its column for the tenant is {}, and not {quoted} of type {sql_type}.", found.tenant);
            return Err(Error::UnfitJournal { journal: found.name.clone(), detail });
        }
        Err(Error::NoJournal { .. }) => {}
        Err(error) => return Err(error),
    }
    let name = table::first::<String>(
        "SELECT pg_catalog.string_agg(pg_catalog.quote_ident(part), '.') FROM pg_catalog.unnest(pg_catalog.parse_ident($1)) AS part",
        &[journal.into()],
    )?
    .unwrap_or_default();
    let columns = COLUMNS.map(|(name, sql_type, _, constraint)| format!("{name} {}{constraint}", sure(sql_type)));
    let statements = format!(
        "CREATE TABLE {name} ({quoted} {} NOT NULL, {}, PRIMARY KEY ({quoted}, session, request)) WITH (fillfactor = 80);
         CREATE INDEX ON {name} (expires_at);
         COMMENT ON TABLE {name} IS 'A journal of extension idempotence: what is known of the requests of its sessions'",
        sure(sql_type),
        columns.join(", ")
    );
    let broken = |error| Error::Corrupted { message: format!("could not execute {statements}: {error}") };
    Spi::run(&statements).map_err(broken)?;
    // A temporary table is none, and the search_path may have made it one.
    table::find(journal)?;
    Ok(true)
}

/// A type so that the caller's search_path has no say in what it is. The other names are words of SQL itself.
fn sure(sql_type: &str) -> String {
    match sql_type {
        "text" | "timestamptz" | "uuid" | "jsonb" => format!("pg_catalog.{sql_type}"),
        _ => sql_type.to_owned(),
    }
}
