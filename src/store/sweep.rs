//! `idempotence.sweep`: what the sweep remembers, with a row for each step that remembers something, and for each journal
//! that it could not sweep. The table is unlogged, so a crash or a failover empties it, and the next sweep notices that.

use crate::domain::cursor::Cursor;
use crate::error::Error;
use crate::lock::{LockClass, Tag};
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::sql;
use crate::store::tuple::{Tid, Tuple, columns};
use crate::store::write;

columns! { "sweep", COLUMNS: DONE_AT, PLACE, STEP, SAID }
type Columns<'a> = Tuple<'a, COLUMNS>;

/// What is remembered of a step.
pub struct Swept {
    /// When the step last came to the end of its table.
    pub done_at: i64,
    /// How far the step has come since.
    pub cursor: Cursor,
}

/// What is remembered of a step; `None` after a crash, before the step's first time, and on a standby.
pub fn find(step: &str) -> Option<Swept> {
    let table = readable()?;
    let ((done_at, place), _) = find_in(&table, step, |row| Some((row.int8(DONE_AT)?, row.int8(PLACE)?)))?;
    Some(Swept { done_at, cursor: Cursor::of_number(place) })
}

fn readable() -> Option<Rel> {
    (!pg::in_recovery()).then(|| Rel::open(Table::Sweep, Access::Read))
}

fn find_in<'rel, T>(
    table: &'rel Rel,
    step: &str,
    read: impl Fn(&Columns<'rel>) -> Option<T>,
) -> Option<(T, Tid<'rel>)> {
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| {
        row.text_is(STEP, step).then(|| read(row).map(|told| (told, row.at()))).flatten()
    })
}

/// Remembers a step. The caller holds the sweep's lock.
pub fn save(step: &str, done_at: i64, cursor: Cursor) {
    debug_assert!(Tag::sweep().is_held_by_us());
    let columns: [_; COLUMNS] = [Some(done_at.into()), Some(cursor.number().into()), Some(pg::text(step)), None];
    let table = Rel::open(Table::Sweep, Access::Write);
    let former = find_in(&table, step, |_| Some(()));
    write::save(&table, former.map(|((), at)| at), &columns);
}

/// The name under which it is remembered that a journal cannot be swept.
fn of_journal(journal: &str) -> String {
    format!("journal {journal}")
}

/// Remembers why a journal cannot be swept; `None`: it can. The caller holds the journals' lock.
pub fn save_failed(journal: &str, why: Option<&str>) {
    debug_assert!(Tag::of_all(LockClass::Journals).is_held_by_us());
    let step = of_journal(journal);
    let table = Rel::open(Table::Sweep, Access::Write);
    let columns: [_; COLUMNS] =
        [Some(pg::now_us().into()), Some(0i64.into()), Some(pg::text(&step)), why.map(pg::text)];
    match find_in(&table, &step, |row| Some(row.text(SAID))) {
        Some((_, at)) if why.is_none() => write::delete(&table, at),
        Some((said, at)) if said.as_deref() != why => write::update(&table, at, &columns),
        None if why.is_some() => write::insert(&table, &columns),
        _ => {}
    }
}

/// Forgets why journals could not be swept that no session has any more. The caller holds the journals' lock.
pub fn forget_failed(journals: &[String]) -> Result<(), Error> {
    let known: Vec<String> = journals.iter().map(|journal| of_journal(journal)).collect();
    // Looked for first: a DELETE takes a transaction id, also where it finds nothing.
    let gone = "SELECT step FROM idempotence.sweep WHERE said IS NOT NULL AND step OPERATOR(pg_catalog.<>) ALL ($1)";
    let gone = sql::column::<String>(gone, &[known.into()])?;
    if gone.is_empty() {
        return Ok(());
    }
    let statement = "DELETE FROM idempotence.sweep WHERE step OPERATOR(pg_catalog.=) ANY ($1)";
    sql::execute(statement, &[gone.into()]).map(drop)
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
