//! SQL statements on our tables. The sweep and the restore checks choose rows by other columns than their keys, which
//! is the planner's business. The statements run as the owner of the tables, since nobody else has a privilege on them.

use crate::error::Error;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use pgrx::datum::{DatumWithOid, Uuid};
use pgrx::spi::{self, Spi, SpiClient, SpiHeapTupleData};
use pgrx::{FromDatum, pg_sys};
use std::ffi::CString;

/// Executes a statement; gives the number of rows that it processed.
pub fn execute(statement: &str, arguments: &[DatumWithOid<'_>]) -> Result<usize, Error> {
    by_owner(statement, |client| Ok(client.update(statement, None, arguments)?.len()))
}

/// The first column of the only row; `None` if there is no row.
pub fn first<T: FromDatum + pgrx::IntoDatum>(query: &str) -> Result<Option<T>, Error> {
    Ok(column(query, &[])?.pop())
}

/// The first column of every row, without NULLs.
pub fn column<T: FromDatum + pgrx::IntoDatum>(query: &str, arguments: &[DatumWithOid<'_>]) -> Result<Vec<T>, Error> {
    newest(query, arguments, |row| row.get(1))
}

/// The first two columns of every row, without rows that have a NULL there.
pub fn pairs<A, B>(query: &str, arguments: &[DatumWithOid<'_>]) -> Result<Vec<(A, B)>, Error>
where
    A: FromDatum + pgrx::IntoDatum,
    B: FromDatum + pgrx::IntoDatum,
{
    newest(query, arguments, |row| Ok(row.get(1)?.zip(row.get(2)?)))
}

/// What `read` makes of each row of a query, which writes nothing, so that a standby executes it too.
pub fn rows<T>(
    query: &str,
    arguments: &[DatumWithOid<'_>],
    read: impl Fn(&SpiHeapTupleData<'_>) -> Result<T, spi::Error>,
) -> Result<Vec<T>, Error> {
    by_owner(query, |client| client.select(query, None, arguments)?.map(|row| read(&row)).collect())
}

/// Puts the rows of a query into a store; gives how many there are.
pub fn fill(store: &pg::RowStore, query: &str) -> u64 {
    let query = CString::new(query).expect("a text value has no NUL");
    pg::as_role(owner(), || store.add(&query))
}

/// Ids or digests as an argument.
pub fn ids(ids: &[[u8; 16]]) -> Vec<Uuid> {
    ids.iter().map(|id| Uuid::from_bytes(*id)).collect()
}

/// What `read` makes of each row of a query that sees what is committed now, whatever this transaction saw when it began.
/// It takes no transaction id, so a sweep that finds nothing to do writes nothing.
fn newest<T>(
    query: &str,
    arguments: &[DatumWithOid<'_>],
    read: impl Fn(&SpiHeapTupleData<'_>) -> Result<Option<T>, spi::Error>,
) -> Result<Vec<T>, Error> {
    let rows = pg::with_newest_snapshot(|| rows(query, arguments, read))?;
    Ok(rows.into_iter().flatten().collect())
}

fn by_owner<T>(statement: &str, work: impl FnOnce(&mut SpiClient<'_>) -> Result<T, spi::Error>) -> Result<T, Error> {
    pg::as_role(owner(), || Spi::connect_mut(work))
        .map_err(|error| Error::Corrupted { message: format!("could not execute {statement}: {error}") })
}

/// The role that owns our tables.
pub fn owner() -> pg_sys::Oid {
    // The table is closed again at once, since TRUNCATE refuses a table that is open.
    Rel::open(Table::Segment, Access::Read).owner()
}
