//! The transaction in which a request is begun, executed and recorded.

use crate::database::{self, Ask, Connection, Database, Row, Sent};
use crate::{Error, sql};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// What identifies a transaction to another connection: its backend, and when it began.
const BACKEND: &str = "pg_catalog.pg_backend_pid()::text, \
    extract(epoch FROM pg_catalog.transaction_timestamp())::text";
const TERMINATE: &str = "SELECT pg_catalog.pg_terminate_backend(pid)::text FROM pg_catalog.pg_stat_activity \
    WHERE pid = $1::text::integer AND extract(epoch FROM xact_start)::text = $2::text";

/// How long to wait for an answer of a connection on which a statement may still run that the handler has abandoned.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of a transaction after an error.
pub enum State {
    Usable,
    /// A statement failed. PostgreSQL accepts only a rollback.
    Aborted,
    /// The connection is lost.
    Lost,
}

/// An open transaction. When it is dropped, its connection is closed, and the server rolls it back.
pub struct Tx<D: Database> {
    database: D,
    connection: Option<D::Connection>,
    backend: Option<Backend>,
}

#[derive(Clone)]
pub struct Backend {
    pid: String,
    began: String,
}

impl<D: Database> Tx<D> {
    /// Begins a transaction and, in the same round trip, runs a query and sets the savepoint `idempotence`. `columns`
    /// and `from`: the two parts of the query. Returns its row.
    pub async fn begin(database: &D, limit: Duration, columns: &str, from: &str) -> Result<(Tx<D>, Row), Error> {
        let connection = database::connect(database, limit).await?;
        let mut tx = Tx { database: database.clone(), connection: Some(connection), backend: None };
        let begin = format!("BEGIN; SELECT {BACKEND}{columns}{from}; SAVEPOINT idempotence");
        match tx.connection().simple(begin).await {
            Ok(rows) => {
                let mut row = rows.into_iter().next().unwrap_or_default();
                let others = row.split_off(row.len().min(2));
                if let [Some(pid), Some(began)] = &row[..] {
                    tx.backend = Some(Backend { pid: pid.clone(), began: began.clone() });
                }
                Ok((tx, others))
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Begins a transaction.
    pub async fn open(database: &D, limit: Duration) -> Result<Tx<D>, Error> {
        Ok(Self::begin(database, limit, "", "").await?.0)
    }

    pub fn connection(&mut self) -> &mut D::Connection {
        self.connection.as_mut().expect("the connection is present until the transaction has ended")
    }

    pub fn handle(&self) -> &<D::Connection as Connection>::Handle {
        self.connection.as_ref().expect("the connection is present until the transaction has ended").handle()
    }

    pub fn database(&self) -> D {
        self.database.clone()
    }

    pub fn backend(&self) -> Option<Backend> {
        self.backend.clone()
    }

    pub async fn send(&mut self, sql: String) -> Result<Sent, Error> {
        self.connection().send(sql).await
    }

    /// Runs a last statement, commits in the same round trip, and returns the connection to the pool. After an error of
    /// the server the transaction is still there.
    ///
    /// Behind a statement that succeeded, the command tag of COMMIT cannot be ROLLBACK.
    pub async fn commit(&mut self, last: String) -> Result<(), Error> {
        let committed = self.connection().commit(last).await;
        match &committed {
            Ok(()) => self.release(),
            Err(error) if error.is_lost() => drop(self.connection.take()),
            Err(_) => {}
        }
        committed
    }

    /// Records an answer and commits. `failed`: the request failed, so its record is kept without effects where an
    /// error that the handler caught has aborted the transaction. `discard`: without effects in any case.
    pub async fn record(&mut self, record: String, failed: bool, discard: bool) -> Result<(), Error> {
        let without_effects = format!("ROLLBACK TO SAVEPOINT idempotence; {record}");
        let recorded = if discard { Err(None) } else { self.commit(record).await.map_err(Some) };
        match recorded {
            Err(None) => self.commit(without_effects).await,
            Err(Some(error)) if failed && error.has("25P02") => self.commit(without_effects).await,
            Err(Some(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Rolls back and returns the connection to the pool. If that fails, the connection is closed.
    pub async fn rollback(mut self) {
        if self.connection.is_some()
            && let Ok(Ok(())) = timeout(PATIENCE, self.connection().rollback()).await
        {
            self.release();
        }
    }

    pub async fn state(&mut self) -> State {
        if self.connection.is_none() {
            return State::Lost;
        }
        match timeout(PATIENCE, self.connection().simple("SELECT 1::text".into())).await {
            Ok(Ok(_)) => State::Usable,
            Ok(Err(error)) if error.has("25P02") => State::Aborted,
            Ok(Err(_)) | Err(_) => State::Lost,
        }
    }

    fn release(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.release();
        }
    }
}

impl<D: Database> Drop for Tx<D> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection);
            if let Some(backend) = self.backend.take() {
                backend.terminate(self.database.clone());
            }
        }
    }
}

impl Backend {
    /// Terminates the backend, in the background, if it still executes this transaction. A backend that executes a
    /// statement does not notice that its connection was closed, and holds the claim until the statement ends.
    pub fn terminate<D: Database>(self, database: D) {
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            // An idle backend ends by itself.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let Ok(sql) = sql::with_arguments(TERMINATE, &[Some(&self.pid), Some(&self.began)]) else { return };
            let _ = database.ask(Duration::from_secs(5), &sql, &[]).await;
        });
    }
}
