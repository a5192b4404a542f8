//! A protected request whose effects are in the database: begin, the handler, and the record are one transaction.

use super::failure::Raised;
use super::handler::{Handler, Sent, call, whole};
use super::options::Idempotent;
use crate::Error;
use crate::conn::Loan;
use crate::database::Database;
use crate::http::reply::{self, Reply};
use crate::request::{Answer, Begun, Request};
use crate::retry::Retry;
use crate::transaction::Tx;
use std::sync::Arc;
use tokio::time::timeout;

impl<D: Database> Idempotent<D> {
    pub(super) async fn protected<S: Handler>(&self, inner: S, sent: &Sent, request: &Request) -> Result<Reply, Error> {
        let mut retry = Retry::new(self.deadline, self.wait);
        loop {
            let tx = match request.begin(&self.database, retry.left()).await {
                Ok(Begun::Answered(answer)) => return Ok(self.replay(&answer)),
                Ok(Begun::Started(tx)) => tx,
                Err(error) => {
                    retry.after(error).await?;
                    continue;
                }
            };
            match self.execute(inner.clone(), sent, request, Loan::new(tx)).await {
                Ok(reply) => return Ok(reply),
                Err(error) => retry.after(error).await?,
            }
        }
    }

    /// Lends the transaction to the handler, and ends it.
    async fn execute<S: Handler>(
        &self,
        inner: S,
        sent: &Sent,
        request: &Request,
        loan: Loan<D>,
    ) -> Result<Reply, Error> {
        let limit = self.handler_timeout;
        let called = timeout(limit, async {
            let (response, raised) = call(inner, sent.request(loan.slot())).await;
            (whole(response).await, raised)
        });
        let Ok((reply, raised)) = called.await else {
            // The loan is dropped, which closes the connection.
            return Err(Error::TimedOut { limit });
        };
        if let Some(Raised::Error(error)) = raised {
            let error = loan.attribute(error).await;
            loan.rollback().await;
            let error = if error.has("ID008") { ended_by_handler() } else { error };
            return if error.is_retryable() { Err(error) } else { reply.map(|reply| caused(reply, error)) };
        }
        let refused = raised.is_some();
        match reply {
            Ok(reply) if reply::is_final(reply.status()) => {
                let Some(tx) = loan.take()? else { unreachable!("the transaction was begun") };
                timeout(limit, self.record(tx, request, &reply, refused))
                    .await
                    .unwrap_or(Err(Error::TimedOut { limit }))?;
                Ok(reply)
            }
            other => {
                // A connection that the handler has kept is an error of the handler, whatever it answers.
                if let Some(tx) = loan.take()? {
                    tx.rollback().await;
                }
                other
            }
        }
    }

    async fn record(&self, mut tx: Tx<D>, request: &Request, reply: &Reply, refused: bool) -> Result<(), Error> {
        let failed = reply.status().as_u16() >= 400;
        let statement = request.record_statement(&Answer::new(failed, reply::recorded(reply, &self.headers)));
        let recorded = match statement {
            Ok(statement) => tx.record(statement, failed, refused).await,
            Err(error) => Err(error),
        };
        if recorded.is_err() {
            tx.rollback().await;
        }
        recorded.map_err(|error| if error.has("ID007") || error.has("3B001") { ended_by_handler() } else { error })
    }
}

/// The handler has sent COMMIT or ROLLBACK: its transaction is over, or COMMIT was refused.
fn ended_by_handler() -> Error {
    Error::Other("the handler must not commit or roll back: the adapter commits after the answer is recorded".into())
}

/// The handler's own answer to its error. The layers in front find the error in the extensions of the answer.
fn caused(mut reply: Reply, error: Error) -> Reply {
    tracing::error!(error = %error, "the handler of a protected request failed");
    reply.extensions_mut().insert(Arc::new(error));
    reply
}
