//! What a driver implements: a pool, and a connection that runs statements.

use crate::{Cause, Error, sql};
use futures_util::future::BoxFuture;
use std::error::Error as StdError;
use std::iter;
use std::time::Duration;

/// A row whose columns are all text.
pub type Row = Vec<Option<String>>;
/// The rows of statements that were sent already.
pub type Sent = BoxFuture<'static, Result<Vec<Row>, Error>>;

/// Runs statements: a connection, or a transaction. All arguments and columns are text, and the statements cast them,
/// so that neither a driver's own types nor a setting of the connection makes a difference.
pub trait Ask: Send {
    /// Runs statements in one round trip, and returns the rows of all of them.
    fn simple(&mut self, sql: String) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Runs a statement with the arguments `$1`, `$2` and so on.
    fn ask(&mut self, sql: &str, args: &[Option<&str>]) -> impl Future<Output = Result<Vec<Row>, Error>> + Send {
        let sql = sql::with_arguments(sql, args);
        async move { self.simple(sql?).await }
    }
}

/// A connection that was taken from a pool. It is closed when it is dropped, unless it was released before.
pub trait Connection: Ask + Sync + Sized + 'static {
    /// The object on which the users of the driver run their statements.
    type Handle: ?Sized;

    /// That object.
    fn handle(&self) -> &Self::Handle;

    /// Sends statements without waiting for their answer, where the driver has a pipeline. The statements that follow
    /// are sent after the returned future was polled.
    fn send(&mut self, sql: String) -> impl Future<Output = Result<Sent, Error>> + Send;

    /// Runs statements and COMMIT in one round trip. COMMIT is not executed if one of the statements fails.
    fn commit(&mut self, last: String) -> impl Future<Output = Result<(), Error>> + Send {
        async move { self.simple(format!("{last}; COMMIT")).await.map(drop) }
    }

    /// Rolls the transaction back.
    fn rollback(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        async move { self.simple("ROLLBACK".into()).await.map(drop) }
    }

    /// Returns it to its pool.
    fn release(self);
}

/// A connection whose users need exclusive access to run a statement.
pub trait Exclusive: Connection {
    /// The object on which they run it.
    fn handle_mut(&mut self) -> &mut Self::Handle;
}

/// A pool of connections: `deadpool_postgres::Pool`, `sqlx::PgPool`.
pub trait Database: Clone + Send + Sync + 'static {
    /// Its connections.
    type Connection: Connection;

    /// Takes a connection from the pool.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Error>> + Send;

    /// What the driver knows of an error, if the error is one of its own. Errors that wrap it are not its own.
    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause>;

    /// Runs a statement in a transaction of its own. `limit`: how long to wait for a connection.
    fn ask(
        &self,
        limit: Duration,
        sql: &str,
        args: &[Option<&str>],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send {
        let sql = sql::with_arguments(sql, args);
        async move {
            let mut connection = connect(self, limit).await?;
            let rows = connection.simple(sql?).await;
            if !rows.as_ref().is_err_and(Error::is_lost) {
                connection.release();
            }
            rows
        }
    }
}

/// Waits for a connection of the pool.
pub(crate) async fn connect<D: Database>(database: &D, limit: Duration) -> Result<D::Connection, Error> {
    let limit = limit.max(Duration::from_millis(100));
    tokio::time::timeout(limit, database.connect()).await.unwrap_or(Err(Error::NoConnection))
}

/// What the driver knows of an error, or of an error that it wraps.
pub(crate) fn cause<D: Database>(error: &(dyn StdError + 'static)) -> Option<Cause> {
    iter::successors(Some(error), |error| (**error).source()).find_map(D::cause)
}
