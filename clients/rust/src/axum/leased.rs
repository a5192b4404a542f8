//! A protected request whose effects are outside the database: it is executed with a lease.

use super::failure::Raised;
use super::handler::{Handler, Sent, call, whole};
use super::options::Idempotent;
use crate::Error;
use crate::database::Database;
use crate::http::reply::{self, Reply};
use crate::lease::{Lease, Leased, of_work};
use crate::request::Request;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;

/// Statuses that say that the handler was not called, or has refused the caller before its work.
const NOT_BEGUN: [StatusCode; 4] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
];

impl<D: Database> Idempotent<D> {
    pub(super) async fn leased<S: Handler>(
        &self,
        inner: S,
        sent: Sent,
        request: Request,
        length: Duration,
    ) -> Result<Reply, Error> {
        let lease = match request.hold_within(&self.database, length, self.wait).await? {
            Leased::Answered(answer) => return Ok(self.replay(&answer)),
            Leased::Held(lease) => lease,
        };
        // In a task of its own: if the caller disconnects, this future is dropped, and the work must not be.
        let rules = self.clone();
        let work = tokio::spawn(async move { rules.execute_with_lease(inner, sent, lease).await });
        match work.await {
            Ok(answered) => answered,
            Err(error) => match error.try_into_panic() {
                // For the layers in front that handle panics.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(Error::Other(error.into())),
            },
        }
    }

    async fn execute_with_lease<S: Handler>(self, inner: S, sent: Sent, lease: Arc<Lease<D>>) -> Result<Reply, Error> {
        let (reply, raised) = lease
            .guard(async {
                let (response, raised) = call(inner, sent.request(lease.clone())).await;
                (whole(response).await, raised)
            })
            .await?;
        if let Some(Raised::Error(error)) = raised {
            return match of_work::<D>(error) {
                error @ Error::Superseded { .. } => Err(error),
                error => {
                    tracing::error!(error = %error, "the handler of a protected request failed");
                    reply.map(|mut reply| {
                        reply.extensions_mut().insert(Arc::new(error));
                        reply
                    })
                }
            };
        }
        let reply = reply?;
        if lease.ended().is_err() {
            if reply::is_final(reply.status()) {
                lease.record(&reply::recorded(&reply, &self.headers), reply.status().as_u16() >= 400).await?;
            } else if NOT_BEGUN.contains(&reply.status()) {
                lease.release().await?;
            }
            // After any other answer the lease expires: the effect may have happened.
        }
        Ok(reply)
    }
}
