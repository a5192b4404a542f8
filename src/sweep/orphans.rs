//! The sweep's step that looks whether restored rows have their sessions. `store/restore.rs` says why.

use crate::domain::cursor::Cursor;
use crate::error::Error;
use crate::store::restore;
use crate::store::secret;
use crate::store::sql;
use crate::sweep::parts::{self, Progress};

/// The pause before rows without a session are looked for again. Meanwhile they may expire, or be deleted.
const AGAIN: &str = "1 hour";

/// The column `place` has the table's number above this bit, and below it the place in the table (48 bits).
const TABLE_SHIFT: u32 = 52;

/// Finds a row if all tables have come, those without which requests are answered too. None of the others is missing.
const WHOLE: &str =
    "SELECT true FROM idempotence.missing m JOIN idempotence.restore r ON r.brought OPERATOR(pg_catalog.=) 'secret'
    WHERE m.beside IS NULL LIMIT 1";

/// Looks through a part of the tables that a restore fills, from where the last look stopped. The look ends
/// with the first part that has a row without a session. Nothing is done if nothing was restored, or it is not yet time
/// to look again. The caller holds the sweep's lock.
pub fn look(limit: usize) -> Result<Progress, Error> {
    if !restore::is_in_question()? {
        return Ok(Progress::default());
    }
    // A row that was noted since the look began has it begin anew.
    let due = format!(
        "EXISTS (SELECT FROM idempotence.restore r WHERE r.looked_at IS NULL)
            OR (place OPERATOR(pg_catalog.=) 0 AND (looked_at OPERATOR(pg_catalog.+) '{AGAIN}'::pg_catalog.interval) OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp())"
    );
    let begins = sql::first::<bool>(&format!("SELECT true FROM idempotence.restore WHERE {due} LIMIT 1"))?.is_some();
    if begins {
        let begin = "UPDATE idempotence.restore SET looked_at = pg_catalog.clock_timestamp(), place = 0 WHERE";
        sql::execute(&format!("{begin} {due}"), &[])?;
    }
    let place = sql::first::<i64>("SELECT pg_catalog.max(place) FROM idempotence.restore")?.unwrap_or(0);
    if place == 0 && !begins {
        return Ok(Progress::default());
    }
    let (number, from) = ((place >> TABLE_SHIFT) as usize, Cursor::of_number(place));
    let lost = || Error::Corrupted { message: "table \"idempotence.restore\" names a place that is none".into() };
    let table = restore::TABLES.get(number).copied().ok_or_else(lost)?;
    let [now, abandoned] = restore::moments();
    let arguments = vec![now.into(), abandoned.into()];
    let (ids, next) = parts::find(table, "session", from, limit, &restore::orphan_condition(table), arguments)?;
    let found = ids.len();
    let next = match next {
        _ if found > 0 => None,
        Some(next) => Some((number, next)),
        None => (number + 1 < restore::TABLES.len()).then_some((number + 1, Cursor::START)),
    };
    let end = |orphans: Option<usize>| {
        let orphans = orphans.map(|found| found as i64);
        sql::execute("UPDATE idempotence.restore SET place = 0, orphans = $1", &[orphans.into()]).map(drop)
    };
    match next {
        Some((number, next)) => {
            let place = (number as i64) << TABLE_SHIFT | next.number();
            sql::execute("UPDATE idempotence.restore SET place = $1", &[place.into()])?;
        }
        None if found > 0 => end(Some(found))?,
        None if restore::missing()?.is_some() || secret::check_alone().is_err() => end(None)?,
        None if sql::first::<bool>(WHOLE)?.is_some() => _ = restore::accept()?,
        // The key of the digests was not restored yet, or the audit, so that may be still to come. One row
        // for each table that has come stays, and says that its rows have their sessions.
        None => {
            let doubled = "DELETE FROM idempotence.restore r WHERE EXISTS (
                SELECT FROM idempotence.restore n
                WHERE n.brought OPERATOR(pg_catalog.=) r.brought AND n.noted_at OPERATOR(pg_catalog.>) r.noted_at)";
            sql::execute(doubled, &[])?;
            end(Some(0))?;
        }
    }
    Ok(Progress::counted(found, &format!("rows of {} whose session was not restored", table.name()), next.is_some()))
}
