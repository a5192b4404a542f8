//! A request that is executed each time it is sent: without a key, or with a method that is not protected. A handler
//! that takes a connection gets a transaction, which commits before the answer is sent.

use super::failure::Raised;
use super::handler::{Handler, call};
use super::options::{Idempotent, failed};
use crate::Error;
use crate::conn::Loan;
use crate::database::Database;
use crate::http::problem;
use crate::http::reply;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use std::sync::Arc;
use tokio::time::sleep;

impl<D: Database> Idempotent<D> {
    pub(super) async fn unprotected<S: Handler>(&self, inner: S, mut request: Request) -> Response {
        if self.lease.is_some() {
            return call(inner, request).await.0;
        }
        // A handler that takes no connection has no transaction: it may stream, and take as long as it likes.
        let loan = Loan::<D>::closed(self.database.clone(), self.deadline);
        request.extensions_mut().insert(loan.slot());
        let limit = self.handler_timeout;
        let expired = async {
            loan.begun().await;
            sleep(limit).await;
        };
        let (mut response, raised) = tokio::select! {
            called = call(inner, request) => called,
            // The loan is dropped, which closes the connection.
            () = expired => return self.explain(Error::TimedOut { limit }).map(Body::from),
        };
        let tx = match loan.take() {
            Ok(tx) => tx,
            Err(error) => return failed(error).map(Body::from),
        };
        let rejected = match raised {
            Some(Raised::Unavailable(error)) => {
                tracing::error!(error = %error, "no transaction could be begun");
                return self.problem(problem::UNAVAILABLE).map(Body::from);
            }
            Some(Raised::Error(source)) => {
                tracing::error!(error = %source, "the handler failed");
                response.extensions_mut().insert(Arc::new(Error::Work { cause: None, source }));
                true
            }
            Some(Raised::Refusal) => true,
            None => !reply::is_final(response.status()),
        };
        let Some(mut tx) = tx else { return response };
        if rejected {
            tx.rollback().await;
            return response;
        }
        // The SELECT fails if an error that the handler caught has aborted the transaction. COMMIT would not.
        match tx.commit("SELECT 1::text".into()).await {
            Ok(()) => response,
            Err(error) => {
                tx.rollback().await;
                let caught = error.has("25P02") && response.status().as_u16() >= 400;
                if caught { response } else { failed(error).map(Body::from) }
            }
        }
    }
}
