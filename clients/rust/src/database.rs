//! One face for the drivers.

use crate::{BoxError, Error};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A row whose columns are all text.
pub type Row = Vec<Option<String>>;
/// The rows of a statement that is sent already.
pub type Sent = futures_util::future::BoxFuture<'static, Result<Vec<Row>, BoxError>>;

/// What runs a statement: a connection, or a transaction. Arguments and columns are text, and the statement casts them: so
/// that no driver's own types, and nothing that somebody has set, makes a difference.
pub trait Ask: Send {
    /// Runs it.
    fn ask(
        &mut self,
        sql: &'static str,
        args: &[Option<&str>],
    ) -> impl Future<Output = Result<Vec<Row>, BoxError>> + Send;
}

/// A pool of connections: `deadpool_postgres::Pool`, `sqlx::PgPool`. `limit`: how long a connection is waited for.
pub trait Database: Clone + Send + Sync + 'static {
    /// A transaction that rolls back when it is dropped.
    type Tx: Transaction;
    /// Begins one.
    fn begin(&self, limit: Duration) -> impl Future<Output = Result<Self::Tx, BoxError>> + Send;
    /// Runs a statement that is a transaction of its own.
    fn ask(
        &self,
        limit: Duration,
        sql: &'static str,
        args: &[Option<&str>],
    ) -> impl Future<Output = Result<Vec<Row>, BoxError>> + Send;
}

/// An open transaction, which owns its connection. It derefs to what the driver's users work with.
pub trait Transaction: Ask + Deref + Sync + 'static {
    /// Sends a statement: where the driver has a pipeline, before what others send once the result has been polled.
    fn send(&mut self, sql: &'static str, args: &[Option<&str>])
    -> impl Future<Output = Result<Sent, BoxError>> + Send;
    /// Commits, after a last statement.
    fn commit(self, last: Option<(&'static str, &[Option<&str>])>)
    -> impl Future<Output = Result<(), BoxError>> + Send;
    /// Rolls back, and gives the connection back.
    fn rollback(self) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Waits for a connection.
pub(crate) async fn in_time<T, E>(limit: Duration, wait: impl Future<Output = Result<T, E>>) -> Result<T, BoxError>
where
    E: Into<BoxError>,
{
    match tokio::time::timeout(limit.max(Duration::from_millis(100)), wait).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(Error::NoConnection.into()),
    }
}

/// The place of a transaction that is lent to somebody else's code.
pub(crate) struct Slot<D: Database>(Arc<Mutex<Option<D::Tx>>>);

impl<D: Database> Clone for Slot<D> {
    fn clone(&self) -> Self {
        Slot(self.0.clone())
    }
}

impl<D: Database> Default for Slot<D> {
    fn default() -> Self {
        Slot(Arc::default())
    }
}

impl<D: Database> Slot<D> {
    pub fn open(&self, tx: D::Tx) -> Conn<D> {
        Conn { tx: Some(tx), slot: self.clone() }
    }

    /// Not there while it is lent.
    pub fn lend(&self) -> Option<Conn<D>> {
        let tx = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Conn { tx: Some(tx), slot: self.clone() })
    }

    pub fn take(&self) -> Result<D::Tx, Error> {
        let kept = "the work has kept its connection beyond its end, so what it did there is taken back";
        self.lend().and_then(|mut conn| conn.tx.take()).ok_or_else(|| Error::Other(kept.into()))
    }

    pub async fn rollback(&self) {
        if let Ok(tx) = self.take() {
            // Where it fails, the connection is gone, and the transaction with it.
            let _ = tx.rollback().await;
        }
    }
}

/// The connection on which a request is begun, lent to the work: it derefs to what the driver's users know, a
/// `tokio_postgres::Client` or a `sqlx::PgConnection`. What is done there commits with the answer. Its transaction is begun,
/// and is committed by whoever has lent it.
pub struct Conn<D: Database> {
    tx: Option<D::Tx>,
    slot: Slot<D>,
}

impl<D: Database> Conn<D> {
    pub(crate) fn tx(&mut self) -> &mut D::Tx {
        self.tx.as_mut().expect("it is there until it is dropped")
    }
}

impl<D: Database> Drop for Conn<D> {
    fn drop(&mut self) {
        *self.slot.0.lock().unwrap_or_else(PoisonError::into_inner) = self.tx.take();
    }
}

impl<D: Database> Deref for Conn<D> {
    type Target = <D::Tx as Deref>::Target;

    fn deref(&self) -> &Self::Target {
        self.tx.as_ref().expect("it is there until it is dropped")
    }
}

impl<D: Database<Tx: DerefMut>> DerefMut for Conn<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx()
    }
}

impl<D: Database> Ask for Conn<D> {
    fn ask(
        &mut self,
        sql: &'static str,
        args: &[Option<&str>],
    ) -> impl Future<Output = Result<Vec<Row>, BoxError>> + Send {
        self.tx().ask(sql, args)
    }
}
