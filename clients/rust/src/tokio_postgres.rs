//! tokio-postgres, with deadpool. Statements are not prepared, but sent with the types of their arguments: one round trip,
//! and nothing stays in a connection that may be a pooler's.

use crate::database::{Ask, Database, Row, Sent, Transaction, in_time};
use crate::error::{BoxError, Cause};
use deadpool_postgres::tokio_postgres::types::{ToSql, Type};
use deadpool_postgres::tokio_postgres::{self, Error};
use deadpool_postgres::{ClientWrapper, Object, Pool, PoolError};
use futures_util::future::join;
use std::error::Error as StdError;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use std::{io, iter};

macro_rules! ask {
    ($($client:ty),*) => { $(
        impl Ask for $client {
            async fn ask(&mut self, sql: &'static str, args: &[Option<&str>]) -> Result<Vec<Row>, BoxError> {
                rows(self.query_typed(sql, &typed(args)).await)
            }
        }
    )* };
}

ask!(
    Object,
    ClientWrapper,
    tokio_postgres::Client,
    tokio_postgres::Transaction<'_>,
    deadpool_postgres::Transaction<'_>
);

fn typed<'a>(args: &'a [Option<&'a str>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    args.iter().map(|arg| (arg as &(dyn ToSql + Sync), Type::TEXT)).collect()
}

fn rows(answer: Result<Vec<tokio_postgres::Row>, Error>) -> Result<Vec<Row>, BoxError> {
    let text = |row: tokio_postgres::Row| (0..row.len()).map(|n| row.try_get(n)).collect::<Result<Row, _>>();
    Ok(answer?.into_iter().map(text).collect::<Result<_, _>>()?)
}

pub(crate) fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
    if let Some(PoolError::Timeout(_)) = error.downcast_ref() {
        return Some(Cause::Lost);
    }
    let error = error.downcast_ref::<Error>()?;
    let mut inner = iter::successors(error.source(), |error| (**error).source());
    match error.code() {
        Some(code) => Some(Cause::State(code.code().into())),
        None => (error.is_closed() || inner.any(|error| error.is::<io::Error>())).then_some(Cause::Lost),
    }
}

/// A transaction on a connection of the pool.
pub struct Tx {
    // Shared with a statement that is sent and not answered yet.
    client: Option<Arc<Object>>,
}

impl Tx {
    fn client(&self) -> &Arc<Object> {
        self.client.as_ref().expect("it is there until the end of the transaction")
    }

    /// The connection goes back to the pool only if the transaction has ended.
    async fn end(mut self, last: Option<(&'static str, &[Option<&str>])>, end: &str) -> Result<(), BoxError> {
        let client = self.client().clone();
        match last {
            // Where the last statement fails, COMMIT rolls back.
            Some((sql, args)) => {
                let args = typed(args);
                let (last, ended) = join(client.query_typed(sql, &args), client.batch_execute(end)).await;
                self.over(ended.is_ok());
                last.map(drop).and(ended)?;
            }
            None => {
                let ended = client.batch_execute(end).await;
                self.over(ended.is_ok());
                ended?;
            }
        }
        Ok(())
    }

    fn over(&mut self, ended: bool) {
        if ended {
            self.client = None;
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Closed, which rolls back.
        if let Some(client) = self.client.take().and_then(Arc::into_inner) {
            drop(Object::take(client));
        }
    }
}

impl Deref for Tx {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        self.client()
    }
}

impl Ask for Tx {
    async fn ask(&mut self, sql: &'static str, args: &[Option<&str>]) -> Result<Vec<Row>, BoxError> {
        rows(self.client().query_typed(sql, &typed(args)).await)
    }
}

impl Transaction for Tx {
    async fn send(&mut self, sql: &'static str, args: &[Option<&str>]) -> Result<Sent, BoxError> {
        let (client, args) = (self.client().clone(), args.iter().map(|arg| arg.map(String::from)).collect::<Vec<_>>());
        Ok(Box::pin(async move {
            let args: Vec<_> = args.iter().map(Option::as_deref).collect();
            rows(client.query_typed(sql, &typed(&args)).await)
        }))
    }

    async fn commit(self, last: Option<(&'static str, &[Option<&str>])>) -> Result<(), BoxError> {
        self.end(last, "COMMIT").await
    }

    async fn rollback(self) -> Result<(), BoxError> {
        self.end(None, "ROLLBACK").await
    }
}

impl Database for Pool {
    type Tx = Tx;

    async fn begin(&self, limit: Duration) -> Result<Tx, BoxError> {
        // In a Tx before it begins, so that nobody gets a connection on which a BEGIN is under way.
        let tx = Tx { client: Some(Arc::new(in_time(limit, self.get()).await?)) };
        tx.client().batch_execute("BEGIN").await?;
        Ok(tx)
    }

    async fn ask(&self, limit: Duration, sql: &'static str, args: &[Option<&str>]) -> Result<Vec<Row>, BoxError> {
        in_time(limit, self.get()).await?.ask(sql, args).await
    }
}
