//! The connection that a handler borrows for the time of its request.

use crate::database::{Ask, Connection, Database, Exclusive, Row};
use crate::transaction::{Backend, State, Tx};
use crate::{BoxError, Cause, Error, database};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

const ENDED: &str = "the transaction of this request has ended: use a connection of your own for work that outlives it";

/// Where the transaction of a request is while it is not lent to the handler.
enum Place<D: Database> {
    /// Not begun yet. It is begun when a handler asks for the connection.
    #[cfg_attr(not(feature = "axum"), allow(dead_code))]
    Closed {
        database: D,
        limit: Duration,
    },
    Here(Tx<D>),
    Lent {
        database: D,
        backend: Option<Backend>,
    },
    Ended,
}

/// The place from which a handler borrows the transaction.
pub(crate) struct Slot<D: Database>(Arc<Shared<D>>);

struct Shared<D: Database> {
    place: Mutex<Place<D>>,
    /// Notified when a handler asks for a transaction that has not begun.
    #[cfg_attr(not(feature = "axum"), allow(dead_code))]
    begun: Notify,
}

impl<D: Database> Clone for Slot<D> {
    fn clone(&self) -> Self {
        Slot(self.0.clone())
    }
}

impl<D: Database> Slot<D> {
    fn place(&self) -> MutexGuard<'_, Place<D>> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None while it is lent, and after its end.
    pub fn lend(&self) -> Option<Conn<D>> {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::Ended) {
            Place::Here(tx) => {
                *place = Place::Lent { database: tx.database(), backend: tx.backend() };
                Some(Conn { tx: Some(tx), slot: self.clone() })
            }
            other => {
                *place = other;
                None
            }
        }
    }

    /// Begins the transaction if it has not begun, and lends it.
    #[cfg(feature = "axum")]
    pub async fn lend_or_begin(&self) -> Result<Option<Conn<D>>, Error> {
        let closed = match &*self.place() {
            Place::Closed { database, limit } => Some((database.clone(), *limit)),
            _ => None,
        };
        if let Some((database, limit)) = closed {
            let tx = Tx::open(&database, limit).await?;
            *self.place() = Place::Here(tx);
            self.0.begun.notify_one();
        }
        Ok(self.lend())
    }
}

/// Lends a transaction to a handler, and takes it back when the handler has returned. When it is dropped before, the
/// connection is closed.
pub(crate) struct Loan<D: Database>(Slot<D>);

impl<D: Database> Loan<D> {
    pub fn new(tx: Tx<D>) -> Self {
        Self::at(Place::Here(tx))
    }

    /// A loan whose transaction is begun when a handler asks for it.
    #[cfg(feature = "axum")]
    pub fn closed(database: D, limit: Duration) -> Self {
        Self::at(Place::Closed { database, limit })
    }

    fn at(place: Place<D>) -> Self {
        Loan(Slot(Arc::new(Shared { place: Mutex::new(place), begun: Notify::new() })))
    }

    /// For the handler.
    #[cfg(feature = "axum")]
    pub fn slot(&self) -> Slot<D> {
        self.0.clone()
    }

    pub fn lend(&self) -> Option<Conn<D>> {
        self.0.lend()
    }

    /// Waits until the transaction has begun.
    #[cfg(feature = "axum")]
    pub async fn begun(&self) {
        self.0.0.begun.notified().await
    }

    /// Ends the loan. None: the transaction was never begun. An error: the handler has not returned its connection.
    /// Then the backend is terminated, which releases the claim.
    pub fn take(&self) -> Result<Option<Tx<D>>, Error> {
        match std::mem::replace(&mut *self.0.place(), Place::Ended) {
            Place::Here(tx) => Ok(Some(tx)),
            Place::Closed { .. } => Ok(None),
            Place::Lent { database, backend } => {
                if let Some(backend) = backend {
                    backend.terminate(database);
                }
                Err(Error::Other("the handler has kept its connection, so its transaction is rolled back".into()))
            }
            Place::Ended => Err(Error::Other(ENDED.into())),
        }
    }

    /// Ends the loan and rolls back.
    pub async fn rollback(&self) {
        if let Ok(Some(tx)) = self.take() {
            tx.rollback().await;
        }
    }

    /// Decides whether the request's own transaction caused an error of the work. Only then may the work be called
    /// again.
    pub async fn attribute(&self, error: BoxError) -> Error {
        let source = match error.downcast::<Error>() {
            Ok(error) => match *error {
                Error::Database { source, .. } => source,
                other => return Error::Work { cause: None, source: other.into() },
            },
            Err(error) => error,
        };
        let Some(cause) = database::cause::<D>(&*source) else { return Error::Work { cause: None, source } };
        let state = match self.lend() {
            Some(mut conn) => conn.tx().state().await,
            None => State::Usable,
        };
        match (state, &cause) {
            (State::Aborted, Cause::Reported { .. }) | (State::Lost, _) => Error::Database { cause, source },
            _ => Error::Work { cause: Some(cause), source },
        }
    }
}

impl<D: Database> Drop for Loan<D> {
    fn drop(&mut self) {
        // A handler or a caller that is gone leaves the transaction here.
        drop(self.take());
    }
}

/// The connection of a request, lent to its handler. It derefs to the object that the users of the driver know: a
/// `tokio_postgres::Client`, or with sqlx an executor of queries. What the handler writes commits together with the
/// answer. The transaction is begun already, and the adapter ends it.
///
/// After the handler has returned, every use panics with a message, and nothing is sent to the server.
pub struct Conn<D: Database> {
    tx: Option<Tx<D>>,
    slot: Slot<D>,
}

impl<D: Database> Conn<D> {
    /// # Panics
    /// If the handler has returned already.
    pub(crate) fn tx(&mut self) -> &mut Tx<D> {
        self.check();
        self.tx.as_mut().expect("the transaction is present until the connection is dropped")
    }

    fn check(&self) {
        assert!(matches!(*self.slot.place(), Place::Lent { .. }), "{ENDED}");
    }
}

impl<D: Database> Drop for Conn<D> {
    fn drop(&mut self) {
        let mut place = self.slot.place();
        if let (Place::Lent { .. }, Some(tx)) = (&*place, self.tx.take()) {
            *place = Place::Here(tx);
        }
    }
}

impl<D: Database> Deref for Conn<D> {
    type Target = <D::Connection as Connection>::Handle;

    fn deref(&self) -> &Self::Target {
        self.check();
        self.tx.as_ref().expect("the transaction is present until the connection is dropped").handle()
    }
}

impl<D: Database<Connection: Exclusive>> DerefMut for Conn<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx().connection().handle_mut()
    }
}

impl<D: Database> Ask for Conn<D> {
    async fn simple(&mut self, sql: String) -> Result<Vec<Row>, Error> {
        self.tx().connection().simple(sql).await
    }
}
