//! The handler below the layer, and one call of it.

use super::failure::{Raised, noted};
use crate::Error;
use crate::http::reply::Reply;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::TRAILER;
use axum::http::request::Parts;
use axum::response::Response;
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::future::poll_fn;
use tower_service::Service;

/// What the layer stands in front of.
pub trait Handler:
    Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S> Handler for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

/// A request that may be sent to the handler more than once.
pub struct Sent {
    pub parts: Parts,
    pub body: Bytes,
}

impl Sent {
    /// The request, with what the handler's extractors look for.
    pub fn request(&self, given: impl Clone + Send + Sync + 'static) -> Request {
        let mut parts = self.parts.clone();
        parts.extensions.insert(given);
        Request::from_parts(parts, Body::from(self.body.clone()))
    }
}

/// Calls the handler. Returns its response, and whether it has failed with a [`Failure`](super::Failure).
pub async fn call<S: Handler>(mut inner: S, request: Request) -> (Response, Option<Raised>) {
    noted(async move {
        let Ok(()) = poll_fn(|context| inner.poll_ready(context)).await;
        let Ok(response) = inner.call(request).await;
        response
    })
    .await
}

/// The whole response. A stream is refused: it would be sent before COMMIT, or hold the connection for as long as it
/// lasts.
pub async fn whole(response: Response) -> Result<Reply, Error> {
    let (parts, body) = response.into_parts();
    if body.size_hint().exact().is_none() || parts.status.is_informational() {
        let refused = "the handler of a protected request answered with a stream, which cannot be recorded: \
                       answer with a complete body, and put layers that stream, such as compression, in front of the \
                       adapter";
        return Err(Error::Other(refused.into()));
    }
    let body = body.collect().await.map_err(|error| Error::Other(error.into()))?;
    if parts.headers.contains_key(TRAILER) || body.trailers().is_some() {
        return Err(Error::Other("trailers cannot be recorded".into()));
    }
    Ok(Reply::from_parts(parts, body.to_bytes()))
}
