//! The driver tokio-postgres, with the pool deadpool.

use crate::database::{self, Ask, Database, Row, Sent};
use crate::{Cause, Error};
use deadpool_postgres::tokio_postgres::{self, SimpleQueryMessage, SimpleQueryRow};
use deadpool_postgres::{ClientWrapper, Object, Pool, PoolError};
use std::error::Error as StdError;
use std::sync::Arc;
use std::{io, iter};

macro_rules! ask {
    ($($client:ty),*) => { $(
        impl Ask for $client {
            async fn simple(&mut self, sql: String) -> Result<Vec<Row>, Error> {
                rows(self.simple_query(&sql).await)
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

fn rows(answer: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>) -> Result<Vec<Row>, Error> {
    let text = |row: SimpleQueryRow| (0..row.len()).map(|n| row.get(n).map(String::from)).collect();
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(text(row)),
        _ => None,
    };
    Ok(answer.map_err(own)?.into_iter().filter_map(row).collect())
}

/// An error of a connection of ours. Whatever is no answer of the server leaves the connection in an unknown state.
fn own(error: tokio_postgres::Error) -> Error {
    Error::Database { cause: cause(&error).unwrap_or(Cause::Lost), source: error.into() }
}

fn cause(error: &tokio_postgres::Error) -> Option<Cause> {
    if let Some(error) = error.as_db_error() {
        return Some(Cause::Reported {
            sqlstate: error.code().code().into(),
            message: error.message().into(),
            detail: error.detail().map(String::from),
            hint: error.hint().map(String::from),
        });
    }
    let mut inner = iter::successors(error.source(), |error| (**error).source());
    (error.is_closed() || inner.any(|error| error.is::<io::Error>())).then_some(Cause::Lost)
}

impl Database for Pool {
    type Connection = Connection;

    async fn connect(&self) -> Result<Connection, Error> {
        match self.get().await {
            Ok(client) => Ok(Connection { client: Some(Arc::new(client)) }),
            Err(PoolError::Timeout(_)) => Err(Error::NoConnection),
            Err(PoolError::Backend(error)) => Err(own(error)),
            Err(error) => Err(Error::Other(error.into())),
        }
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        cause(error.downcast_ref()?)
    }
}

/// The connection of a request. Its handle is shared, so no handler can begin a transaction within its transaction.
pub struct Connection {
    // Shared with statements that were sent and are not answered yet.
    client: Option<Arc<Object>>,
}

impl Connection {
    fn client(&self) -> &Arc<Object> {
        self.client.as_ref().expect("the client is present until the connection is released or dropped")
    }
}

impl Ask for Connection {
    async fn simple(&mut self, sql: String) -> Result<Vec<Row>, Error> {
        rows(self.client().simple_query(&sql).await)
    }
}

impl database::Connection for Connection {
    type Handle = ClientWrapper;

    fn handle(&self) -> &ClientWrapper {
        self.client()
    }

    async fn send(&mut self, sql: String) -> Result<Sent, Error> {
        let client = self.client().clone();
        Ok(Box::pin(async move { rows(client.simple_query(&sql).await) }))
    }

    fn release(mut self) {
        self.client = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // What is taken from deadpool is not returned to it. The end of the client closes the connection.
        if let Some(client) = self.client.take().and_then(Arc::into_inner) {
            drop(Object::take(client));
        }
    }
}
