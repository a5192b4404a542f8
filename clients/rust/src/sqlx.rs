//! The driver sqlx.

use crate::database::{self, Ask, Database, Exclusive, Row, Sent};
use crate::{Cause, Error};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgDatabaseError, PgQueryResult, PgRow, PgStatement, PgTransactionManager, PgTypeInfo};
use sqlx::{
    Acquire, AssertSqlSafe, Describe, Either, Execute, Executor, PgConnection, PgPool, Postgres, Row as _, SqlSafeStr,
    SqlStr, Transaction,
};
use sqlx_core::transaction::TransactionManager;
use std::error::Error as StdError;

impl Ask for PgConnection {
    async fn simple(&mut self, sql: String) -> Result<Vec<Row>, Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(self).await.map_err(own)?;
        let text = |row: PgRow| (0..row.len()).map(|n| row.try_get(n)).collect::<Result<Row, _>>();
        rows.into_iter().map(text).collect::<Result<_, _>>().map_err(own)
    }
}

impl Ask for Transaction<'_, Postgres> {
    async fn simple(&mut self, sql: String) -> Result<Vec<Row>, Error> {
        (**self).simple(sql).await
    }
}

/// An error of a connection of ours. Whatever is no answer of the server leaves the connection in an unknown state.
fn own(error: sqlx::Error) -> Error {
    Error::Database { cause: cause(&error).unwrap_or(Cause::Lost), source: error.into() }
}

fn cause(error: &sqlx::Error) -> Option<Cause> {
    match error {
        sqlx::Error::Database(error) => {
            let error = error.try_downcast_ref::<PgDatabaseError>()?;
            Some(Cause::Reported {
                sqlstate: error.code().into(),
                message: error.message().into(),
                detail: error.detail().map(String::from),
                hint: error.hint().map(String::from),
            })
        }
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => Some(Cause::Lost),
        _ => None,
    }
}

impl Database for PgPool {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, Error> {
        match self.acquire().await {
            Ok(connection) => Ok(Connection { connection, known: false, released: false }),
            Err(sqlx::Error::PoolTimedOut) => Err(Error::NoConnection),
            Err(error) if cause(&error).is_some() => Err(own(error)),
            Err(error) => Err(Error::Other(error.into())),
        }
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        cause(error.downcast_ref()?)
    }
}

/// The connection of a request, as a handler uses it: `&mut *conn` executes queries, like a `&mut PgConnection`.
///
/// sqlx reads no rows when it begins a transaction. This transaction is begun in the round trip that returns the rows
/// of `idem_begin`, so sqlx does not know of it. [`begin`](Connection::begin) and [`acquire`](Connection::acquire) make
/// it known, which costs a round trip.
#[derive(Debug)]
pub struct Connection {
    connection: PoolConnection<Postgres>,
    // Whether sqlx knows the transaction.
    known: bool,
    released: bool,
}

impl Connection {
    /// sqlx's own connection, for functions that need one. It begins nested transactions as savepoints.
    pub async fn acquire(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if !self.known {
            // sqlx counts it as its outermost transaction.
            let sql = "SAVEPOINT idempotence_acquired".into_sql_str();
            PgTransactionManager::begin(&mut self.connection, Some(sql)).await?;
            self.known = true;
        }
        Ok(&mut self.connection)
    }

    /// Begins a nested transaction, which is a savepoint.
    pub async fn begin(&mut self) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
        sqlx::Connection::begin(self.acquire().await?).await
    }
}

impl Ask for Connection {
    fn simple(&mut self, sql: String) -> impl Future<Output = Result<Vec<Row>, Error>> + Send {
        (*self.connection).simple(sql)
    }
}

impl database::Connection for Connection {
    type Handle = Connection;

    fn handle(&self) -> &Connection {
        self
    }

    // sqlx has no pipeline: the statements are answered when this returns.
    async fn send(&mut self, sql: String) -> Result<Sent, Error> {
        let rows = self.simple(sql).await?;
        Ok(Box::pin(async { Ok(rows) }))
    }

    async fn commit(&mut self, last: String) -> Result<(), Error> {
        match PgTransactionManager::get_transaction_depth(&self.connection) {
            0 => self.simple(format!("{last}; COMMIT")).await.map(drop),
            1 => {
                self.simple(last).await?;
                PgTransactionManager::commit(&mut self.connection).await.map_err(own)
            }
            _ => Err(Error::Other("a nested transaction is still open: commit it or roll it back".into())),
        }
    }

    async fn rollback(&mut self) -> Result<(), Error> {
        if !self.known {
            return self.simple("ROLLBACK".into()).await.map(drop);
        }
        while PgTransactionManager::get_transaction_depth(&self.connection) > 0 {
            PgTransactionManager::rollback(&mut self.connection).await.map_err(own)?;
        }
        Ok(())
    }

    fn release(mut self) {
        self.released = true;
    }
}

impl Exclusive for Connection {
    fn handle_mut(&mut self) -> &mut Connection {
        self
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.released {
            self.connection.close_on_drop();
        }
    }
}

impl<'c> Executor<'c> for &'c mut Connection {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        (*self.connection).fetch_many(query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        (*self.connection).fetch_optional(query)
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        (*self.connection).prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        (*self.connection).describe(sql)
    }
}

impl<'c> Acquire<'c> for &'c mut Connection {
    type Database = Postgres;
    type Connection = &'c mut PgConnection;

    fn acquire(self) -> BoxFuture<'c, Result<Self::Connection, sqlx::Error>> {
        Box::pin(Connection::acquire(self))
    }

    fn begin(self) -> BoxFuture<'c, Result<Transaction<'c, Postgres>, sqlx::Error>> {
        Box::pin(Connection::begin(self))
    }
}
