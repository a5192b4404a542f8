//! `idempotence.sweep`: what the sweep remembers, with a row for each step that remembers something, and for each journal
//! that it could not sweep. The table is unlogged, so a crash or a failover empties it, and the next sweep notices that.

use crate::domain::cursor::Cursor;
use crate::error::{Error, or_raise};
use crate::lock::{LockClass, Tag};
use crate::pg::{self, Timestamptz};
use crate::store::sql;

/// When a step last came to the end of its table, and how far it has come since; `None` after a crash, before the step's first
/// time, and on a standby.
pub fn find(step: &str) -> Option<(i64, Cursor)> {
    if pg::in_recovery() {
        return None;
    }
    let query = "SELECT done_at, place FROM idempotence.sweep WHERE step OPERATOR(pg_catalog.=) $1";
    let (Timestamptz(done_at), place) = or_raise(sql::pairs(query, &[step.into()])).pop()?;
    Some((done_at, Cursor::of_number(place)))
}

/// Remembers a step. The caller holds the sweep's lock.
pub fn save(step: &str, done_at: i64, cursor: Cursor) {
    debug_assert!(Tag::sweep().is_held_by_us());
    or_raise(write(step, done_at, cursor, None));
}

fn write(step: &str, done_at: i64, cursor: Cursor, said: Option<&str>) -> Result<(), Error> {
    let statement =
        "INSERT INTO idempotence.sweep (step, done_at, place, said) VALUES ($1, $2, $3, $4) ON CONFLICT (step)
        DO UPDATE SET done_at = EXCLUDED.done_at, place = EXCLUDED.place, said = EXCLUDED.said";
    let arguments = [step.into(), Timestamptz(done_at).into(), cursor.number().into(), said.into()];
    sql::execute(statement, &arguments).map(drop)
}

/// The name under which it is remembered that a journal cannot be swept.
fn of_journal(journal: &str) -> String {
    format!("journal {journal}")
}

/// Remembers why a journal cannot be swept; `None`: it can. The caller holds the journals' lock.
pub fn save_failed(journal: &str, why: Option<&str>) -> Result<(), Error> {
    debug_assert!(Tag::of_all(LockClass::Journals).is_held_by_us());
    let step = of_journal(journal);
    let query = "SELECT said FROM idempotence.sweep WHERE step OPERATOR(pg_catalog.=) $1";
    let said = sql::column::<String>(query, &[step.as_str().into()])?.pop();
    match why {
        _ if said.as_deref() == why => Ok(()),
        Some(_) => write(&step, pg::now_us(), Cursor::START, why),
        None => forget(vec![step]),
    }
}

/// Forgets why journals could not be swept that no session has any more. The caller holds the journals' lock.
pub fn forget_failed(journals: &[String]) -> Result<(), Error> {
    let known: Vec<String> = journals.iter().map(|journal| of_journal(journal)).collect();
    let gone = "SELECT step FROM idempotence.sweep WHERE said IS NOT NULL AND step OPERATOR(pg_catalog.<>) ALL ($1)";
    let gone = sql::column::<String>(gone, &[known.into()])?;
    // Looked for first: a DELETE takes a transaction id, also where it finds nothing.
    if gone.is_empty() { Ok(()) } else { forget(gone) }
}

fn forget(steps: Vec<String>) -> Result<(), Error> {
    let statement = "DELETE FROM idempotence.sweep WHERE step OPERATOR(pg_catalog.=) ANY ($1)";
    sql::execute(statement, &[steps.into()]).map(drop)
}

/// Has the sweep rest until the end of this transaction, which restores rows. A step takes moments; one that does not end
/// must not stop the restore without a word.
pub fn rest() -> Result<(), Error> {
    const MOST_US: i64 = 60_000_000;
    if Tag::restore().share(Some(MOST_US)) && Tag::sweep().share(Some(MOST_US)) {
        return Ok(());
    }
    let hint = "The row sweep of idempotence.health names who holds the sweep. End that, and restore once more.";
    Err(Error::WaitRanOut { what: "a step of the sweep".into(), hint })
}
