//! sqlx.

use crate::database::{Ask, Database, Row, Sent, Transaction, in_time};
use crate::error::{BoxError, Cause};
use sqlx::postgres::PgRow;
use sqlx::{Error, PgConnection, PgPool, Postgres, Row as _};
use std::error::Error as StdError;
use std::time::Duration;

impl Ask for PgConnection {
    async fn ask(&mut self, sql: &'static str, args: &[Option<&str>]) -> Result<Vec<Row>, BoxError> {
        let found = if args.is_empty() {
            sqlx::raw_sql(sql).fetch_all(self).await?
        } else {
            args.iter().fold(sqlx::query(sql), |query, arg| query.bind(*arg)).fetch_all(self).await?
        };
        let text = |row: PgRow| (0..row.len()).map(|n| row.try_get(n)).collect::<Result<Row, _>>();
        Ok(found.into_iter().map(text).collect::<Result<_, _>>()?)
    }
}

impl Ask for sqlx::Transaction<'_, Postgres> {
    async fn ask(&mut self, sql: &'static str, args: &[Option<&str>]) -> Result<Vec<Row>, BoxError> {
        (**self).ask(sql, args).await
    }
}

pub(crate) fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
    match error.downcast_ref::<Error>()? {
        Error::Database(error) => error.code().map(|code| Cause::State(code.into())),
        Error::Io(_) | Error::PoolTimedOut | Error::WorkerCrashed => Some(Cause::Lost),
        _ => None,
    }
}

impl Transaction for sqlx::Transaction<'static, Postgres> {
    // It has no pipeline: sent is answered.
    async fn send(&mut self, sql: &'static str, args: &[Option<&str>]) -> Result<Sent, BoxError> {
        let rows = self.ask(sql, args).await?;
        Ok(Box::pin(async { Ok(rows) }))
    }

    async fn commit(mut self, last: Option<(&'static str, &[Option<&str>])>) -> Result<(), BoxError> {
        if let Some((sql, args)) = last {
            self.ask(sql, args).await?;
        }
        Ok(sqlx::Transaction::commit(self).await?)
    }

    async fn rollback(self) -> Result<(), BoxError> {
        Ok(sqlx::Transaction::rollback(self).await?)
    }
}

impl Database for PgPool {
    type Tx = sqlx::Transaction<'static, Postgres>;

    async fn begin(&self, limit: Duration) -> Result<Self::Tx, BoxError> {
        in_time(limit, PgPool::begin(self)).await
    }

    async fn ask(&self, limit: Duration, sql: &'static str, args: &[Option<&str>]) -> Result<Vec<Row>, BoxError> {
        in_time(limit, self.acquire()).await?.ask(sql, args).await
    }
}
