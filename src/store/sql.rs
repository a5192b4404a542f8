//! Statements on our tables for the sweep, by SQL: it picks rows by other things than their keys, which
//! is the planner's business. Run as the owner of the tables; nobody else has a privilege on them.

use crate::error::Error;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use pgrx::datum::{DatumWithOid, TimestampWithTimeZone, Uuid};
use pgrx::spi::{self, Spi, SpiClient};
use pgrx::{FromDatum, pg_sys};

/// Executes a statement; how many rows it was about.
pub fn execute(statement: &str, arguments: &[DatumWithOid<'_>]) -> Result<usize, Error> {
    by_owner(statement, |client| Ok(client.update(statement, None, arguments)?.len()))
}

/// The first column of the first row.
pub fn first<T: FromDatum + pgrx::IntoDatum>(query: &str) -> Result<Option<T>, Error> {
    by_owner(query, |client| {
        let rows = client.update(query, Some(1), &[])?;
        if rows.is_empty() { Ok(None) } else { rows.first().get_one::<T>() }
    })
}

/// The first column of every row, without the nulls.
pub fn column<T: FromDatum + pgrx::IntoDatum>(query: &str, arguments: &[DatumWithOid<'_>]) -> Result<Vec<T>, Error> {
    by_owner(query, |client| {
        let rows = client.update(query, None, arguments)?;
        rows.map(|row| row.get::<T>(1)).filter_map(Result::transpose).collect()
    })
}

/// The first two columns of every row, without those that have a null there.
pub fn pairs<A, B>(query: &str, arguments: &[DatumWithOid<'_>]) -> Result<Vec<(A, B)>, Error>
where
    A: FromDatum + pgrx::IntoDatum,
    B: FromDatum + pgrx::IntoDatum,
{
    by_owner(query, |client| {
        let rows = client.update(query, None, arguments)?;
        rows.map(|row| Ok(row.get::<A>(1)?.zip(row.get::<B>(2)?))).filter_map(Result::transpose).collect()
    })
}

/// Moments and ids as arguments.
pub fn moment(us: i64) -> Option<TimestampWithTimeZone> {
    TimestampWithTimeZone::try_from(us as pg_sys::TimestampTz).ok()
}

/// See [`moment`].
pub fn ids(ids: &[[u8; 16]]) -> Vec<Uuid> {
    ids.iter().map(|id| Uuid::from_bytes(*id)).collect()
}

fn by_owner<T>(statement: &str, work: impl FnOnce(&mut SpiClient<'_>) -> Result<T, spi::Error>) -> Result<T, Error> {
    // Not left open: TRUNCATE refuses a table that is in use.
    let owner = Rel::open(Table::Segment, Access::Read).owner();
    pg::as_role(owner, || Spi::connect_mut(work))
        .map_err(|error| Error::Corrupted { message: format!("could not execute {statement}: {error}") })
}
