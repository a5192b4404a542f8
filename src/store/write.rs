//! Writing one row, in one of two ways.
//!
//! *Directly*, as PostgreSQL writes its catalogs (`CatalogTupleInsert` and its like), without executor and plan. This
//! way fires no trigger, evaluates no expression or predicate of an index, and checks no constraint except unique
//! indexes. So it serves only a table that needs none of that.
//!
//! *By SQL*, as the owner of the table. The executor does all that it does for anybody's statement. This way is taken
//! as soon as somebody has added anything to the table that the direct way ignores, for example a partial index or the
//! row trigger of pg_repack.
//!
//! `way.rs` tells which way serves a table.

use crate::error::Error;
use crate::pg::{self, Sight, Statements};
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::direct;
use crate::store::rel::{Access, Rel};
use crate::store::tuple::{Tid, check_columns};
use crate::store::way::Way;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;

thread_local! {
    /// Whether the present write by SQL is the extension's own.
    static WRITING: Cell<bool> = const { Cell::new(false) };
}

static STATEMENTS: Statements<(Table, Verb)> = Statements::new();

/// Whether the present write by SQL is the extension's own. Otherwise a restore or a superuser's statement writes.
pub fn is_ours() -> bool {
    WRITING.get()
}

/// Runs `work`, whose writes by SQL count as the extension's own.
pub fn as_ours<T>(work: impl FnOnce() -> T) -> T {
    let former = WRITING.replace(true);
    pg::finally(work, || WRITING.set(former))
}

/// What a statement does to a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Verb {
    Insert,
    Update,
    Delete,
}

/// Inserts a row, and tells where if it is written directly. The commands that follow see the row.
pub fn insert<'rel>(table: &'rel Rel, columns: &[Option<pg_sys::Datum>]) -> Option<Tid<'rel>> {
    let Some(way) = direct_way(table, columns) else {
        by_sql(table, Verb::Insert, columns, None);
        return None;
    };
    // SAFETY: the row is one of this table, and the direct way serves the table.
    Some(Tid::of(unsafe { direct::insert(table.rel, columns, way.simple_indexes) }))
}

/// Writes a row over the one at `at`, which has the same primary key, or inserts the row as [`insert()`] does.
pub fn save<'rel>(table: &'rel Rel, at: Option<Tid<'rel>>, columns: &[Option<pg_sys::Datum>]) -> Option<Tid<'rel>> {
    let Some(at) = at else { return insert(table, columns) };
    update(table, at, columns);
    None
}

/// Writes a row over the one at `at`, which has the same primary key.
pub fn update(table: &Rel, at: Tid<'_>, columns: &[Option<pg_sys::Datum>]) {
    if direct_way(table, columns).is_none() {
        return by_sql(table, Verb::Update, columns, Some(at));
    }
    // SAFETY: as in insert(). `at` is a row of this table, which was locked before the row was found. The caller's
    // advisory lock keeps other transactions from changing the row.
    unsafe { direct::update(table.rel, at.get(), columns) }
}

/// Deletes a row.
pub fn delete(table: &Rel, at: Tid<'_>) {
    debug_assert!(table.access == Access::Write);
    // SAFETY: as in update(). The command counter makes a row deletable that this command itself inserted.
    unsafe {
        pg_sys::CommandCounterIncrement();
        if !way(table).direct {
            return by_sql(table, Verb::Delete, &[], Some(at));
        }
        pg_sys::CatalogTupleDelete(table.rel, &mut at.get());
        pg_sys::CommandCounterIncrement();
    }
}

/// How a table takes a row with these columns, if it may be written directly. Raises an error if the table has others.
pub(super) fn direct_way(table: &Rel, columns: &[Option<pg_sys::Datum>]) -> Option<Way> {
    debug_assert!(table.access == Access::Write);
    // SAFETY: the relation is open.
    unsafe {
        let shape = (*table.rel).rd_att;
        check_columns(shape, columns.len());
        let has_default_for_missing = !(*shape).constr.is_null() && !(*(*shape).constr).missing.is_null();
        debug_assert!(!has_default_for_missing, "an upgrade script adds a column without a default");
    }
    Some(way(table)).filter(|way| way.serves(columns))
}

/// How a table takes its rows.
pub(super) fn way(table: &Rel) -> Way {
    let remember = |cache: &mut cache::Cache, way| cache.ways[table.table as usize] = Some(way);
    let read = || {
        // SAFETY: the relation is open and locked.
        (unsafe { Way::of(table.rel, table.table) }, true)
    };
    cache::remembered(|cache| cache.ways[table.table as usize], read, remember)
}

/// Executes the statement for a row. Insert takes the columns, delete takes the place, and update takes both.
fn by_sql(table: &Rel, verb: Verb, columns: &[Option<pg_sys::Datum>], at: Option<Tid<'_>>) {
    let mut tid = at.map(Tid::get);
    let place = tid.as_mut().map(|tid| pg_sys::Datum::from(tid as *mut pg_sys::ItemPointerData));
    let values: Vec<_> = columns.iter().copied().chain(place.map(Some)).collect();
    // The snapshot sees the row, since it is newer than the lock under which the row was found.
    let run = || {
        let statement = STATEMENTS.get((table.table, verb), || statement(table, verb));
        statement.execute(&values, Sight::Newest, |_| {})
    };
    if way(table).replaced || as_ours(|| pg::as_role(table.owner(), run)) != 1 {
        Error::NotWritten { relation: format!("idempotence.{}", table.table.name()) }.raise();
    }
    // SAFETY: called inside a transaction.
    unsafe { pg_sys::CommandCounterIncrement() }
}

/// The statement, and the types of its parameters.
fn statement(table: &Rel, verb: Verb) -> (String, Vec<pg_sys::Oid>) {
    // SAFETY: the relation is open, and the loop goes over the numbers of its columns.
    let (names, mut types): (Vec<String>, Vec<pg_sys::Oid>) = unsafe {
        let shape = (*table.rel).rd_att;
        let column = |number| {
            let column = pg::tuple_attribute(shape, number);
            let name = CStr::from_ptr((*column).attname.data.as_ptr()).to_string_lossy();
            (!(*column).attisdropped).then(|| (format!("\"{name}\""), (*column).atttypid))
        };
        (0..(*shape).natts as usize).filter_map(column).unzip()
    };
    let parameters = (1..=names.len()).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ");
    let (name, place) = (table.table.name(), names.len() + 1);
    let names = names.join(", ");
    let statement = match verb {
        Verb::Insert => format!("INSERT INTO idempotence.{name} ({names}) VALUES ({parameters})"),
        Verb::Update => format!(
            "UPDATE idempotence.{name} SET ({names}) = ROW ({parameters}) WHERE ctid OPERATOR(pg_catalog.=) ${place}"
        ),
        Verb::Delete => {
            types.clear();
            format!("DELETE FROM idempotence.{name} WHERE ctid OPERATOR(pg_catalog.=) $1")
        }
    };
    if verb != Verb::Insert {
        types.push(pg_sys::TIDOID);
    }
    (statement, types)
}
