//! The sweep's step that looks whether rows that were restored have their sessions, see `store/restore.rs`.

use crate::domain::cursor::Cursor;
use crate::error::Error;
use crate::store::catalog::Table;
use crate::store::restore;
use crate::store::sql;
use crate::sweep::parts;

/// How often rows that were found without their session are looked for again: they expire, or are deleted.
const AGAIN: &str = "1 hour";

/// In the column `place` the table's number is above the place in it, which has 48 bits.
const TABLE_SHIFT: u32 = 52;

fn lost() -> Error {
    Error::Corrupted { message: "table \"idempotence.restore\" names a place that is none".into() }
}

/// What one part of the look came to.
pub struct Looked {
    /// The table.
    pub table: &'static str,
    /// So many rows without a session were found there.
    pub found: usize,
    /// There is more to look through.
    pub more: bool,
}

/// Looks through a part of what was restored, from where the last look stopped; `None` when there is nothing
/// to look for. It ends with the first part that has what is looked for. The caller holds the sweep's lock.
pub fn look(limit: usize) -> Result<Option<Looked>, Error> {
    if !restore::is_in_question()? {
        return Ok(None);
    }
    // What was noted since has the look begin anew.
    let begin = format!(
        "UPDATE idempotence.restore SET looked_at = pg_catalog.clock_timestamp(), place = 0
         WHERE EXISTS (SELECT FROM idempotence.restore r WHERE r.looked_at IS NULL)
            OR (place OPERATOR(pg_catalog.=) 0 AND (looked_at OPERATOR(pg_catalog.+) '{AGAIN}'::pg_catalog.interval) OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp())"
    );
    let begins = sql::execute(&begin, &[])? > 0;
    let place = sql::first::<i64>("SELECT pg_catalog.max(place) FROM idempotence.restore")?.unwrap_or(0);
    if place == 0 && !begins {
        return Ok(None);
    }
    let (number, from) = ((place >> TABLE_SHIFT) as usize, Cursor::of_number(place));
    let Some(table) = restore::TABLES.get(number).copied() else { return Err(lost()) };
    let [now, abandoned] = restore::moments();
    let arguments = vec![now.into(), abandoned.into()];
    let part = parts::find(table, "session", from, limit, restore::condition(table), arguments)?;
    let found = part.ids.len();
    let next = match part.next {
        _ if found > 0 => None,
        Some(next) => Some((number, next)),
        None => (number + 1 < restore::TABLES.len()).then_some((number + 1, Cursor::START)),
    };
    match next {
        Some((number, next)) => {
            let place = (number as i64) << TABLE_SHIFT | next.number();
            sql::execute("UPDATE idempotence.restore SET place = $1", &[place.into()])?;
        }
        None if found > 0 => {
            sql::execute("UPDATE idempotence.restore SET place = 0, orphans = $1", &[(found as i64).into()])?;
        }
        None if restore::missing().is_some() => {
            sql::execute("UPDATE idempotence.restore SET place = 0, orphans = NULL", &[])?;
        }
        None if restore::has_come(Table::Secret) => _ = restore::accept()?,
        // The rest of the restore may be still to come: what has come so far is remembered.
        None => {
            let doubled = "DELETE FROM idempotence.restore r WHERE EXISTS (
                SELECT FROM idempotence.restore n
                WHERE n.brought OPERATOR(pg_catalog.=) r.brought AND n.noted_at OPERATOR(pg_catalog.>) r.noted_at)";
            sql::execute(doubled, &[])?;
            sql::execute("UPDATE idempotence.restore SET place = 0, orphans = 0", &[])?;
        }
    }
    Ok(Some(Looked { table: table.name(), found, more: next.is_some() }))
}
