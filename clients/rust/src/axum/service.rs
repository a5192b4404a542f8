//! The layer as tower calls it, and what it does with each request.

use super::body::{self, Read};
use super::handler::{Handler, Sent};
use super::options::{Idempotent, failed};
use crate::database::Database;
use crate::http::{key, problem};
use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::response::Response;
use serde_json::json;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

impl<D: Database> Idempotent<D> {
    async fn serve<S: Handler>(self, inner: S, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        if !self.protects(&parts.method) {
            return self.unprotected(inner, Request::from_parts(parts, body)).await;
        }
        let key = match key::key(&parts.headers, self.strict) {
            Ok(Some(key)) => key,
            Ok(None) if self.required => return self.problem(problem::KEY_MISSING).map(Body::from),
            Ok(None) => return self.unprotected(inner, Request::from_parts(parts, body)).await,
            Err(problem) => return self.problem(problem).map(Body::from),
        };
        let identity = match self.identity.name(&mut parts).await {
            Ok(Ok(identity)) => identity,
            Ok(Err(rejection)) => return rejection,
            Err(error) => return failed(error).map(Body::from),
        };
        let body = match body::read(&parts.headers, body, self.max_body).await {
            Read::Whole(body) => body,
            Read::TooLarge(body) if self.pass => {
                return self.unprotected(inner, Request::from_parts(parts, body)).await;
            }
            Read::TooLarge(_) => {
                let detail = format!("The body is larger than {} bytes, the limit of this route.", self.max_body);
                return self.problem(problem::BODY_TOO_LARGE.because(|_| detail)).map(Body::from);
            }
            Read::Incomplete => return self.problem(problem::BODY_INCOMPLETE).map(Body::from),
        };
        // As it was sent: not decoded, and before a router has stripped a prefix.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let request = self.request(&identity, &key).payload(&json!({
            "method": parts.method.as_str(),
            "path": uri.path(),
            "query": uri.query().unwrap_or_default(),
            "body": key::digest(&body),
        }));
        let sent = Sent { parts, body };
        let answered = match self.lease {
            Some(length) => self.leased(inner, sent, request, length).await,
            None => self.protected(inner, &sent, &request).await,
        };
        answered.unwrap_or_else(|error| self.explain(error)).map(Body::from)
    }
}

impl<D: Database, S> Layer<S> for Idempotent<D> {
    type Service = Protected<S, D>;

    fn layer(&self, inner: S) -> Protected<S, D> {
        Protected { inner, rules: self.clone() }
    }
}

/// A service below [`Idempotent`].
#[derive(Clone)]
pub struct Protected<S, D: Database> {
    inner: S,
    rules: Idempotent<D>,
}

impl<S: Handler, D: Database> Service<Request> for Protected<S, D> {
    type Response = Response;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The handler's readiness is awaited before each of its calls.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (rules, inner) = (self.rules.clone(), self.inner.clone());
        Box::pin(async move { Ok(rules.serve(inner, request).await) })
    }
}
