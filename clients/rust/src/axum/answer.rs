//! The endpoint that returns the answer to a request under its key.

use super::options::{Idempotent, failed};
use crate::Error;
use crate::database::Database;
use crate::http::reply::Reply;
use crate::http::{key, problem};
use crate::request::{Request, Ticket};
use crate::retry::Retry;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, HeaderValue, VARY};
use axum::response::Response;

impl<D: Database> Idempotent<D> {
    /// The answer to the request with this key, for a GET: `get(move |request| idempotent.answer(request))`. It waits
    /// for a request that is in progress, and never executes one.
    pub async fn answer(self, request: axum::extract::Request) -> Response {
        let mut response = self.look_up(request).await;
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.append(VARY, HeaderValue::from_static("Idempotency-Key"));
        response
    }

    async fn look_up(&self, request: axum::extract::Request) -> Response {
        let (mut parts, _) = request.into_parts();
        let key = match key::key(&parts.headers, self.strict) {
            Ok(Some(key)) => key,
            Ok(None) => return self.problem(problem::KEY_MISSING).map(Body::from),
            Err(problem) => return self.problem(problem).map(Body::from),
        };
        match self.identity.name(&mut parts).await {
            Ok(Ok(identity)) => self.found(&self.request(&identity, &key)).await.map(Body::from),
            Ok(Err(rejection)) => rejection,
            Err(error) => failed(error).map(Body::from),
        }
    }

    async fn found(&self, request: &Request) -> Reply {
        let mut retry = Retry::new(self.deadline, self.wait);
        loop {
            let error = match request.look(&self.database, retry.left()).await {
                Ok(Ticket { status, expires_at, .. }) if status == "in_progress" => {
                    Error::InProgress { key: request.key.clone(), expires_at }
                }
                Ok(ticket) => {
                    return match (ticket.answer(), &*ticket.status) {
                        (Some(answer), _) => self.replay(&answer),
                        (None, "suspended") => self.problem(problem::INTERRUPTED),
                        (None, "not_here") => self.problem(problem::UNAVAILABLE),
                        _ => self.problem(problem::UNKNOWN),
                    };
                }
                Err(error) => error,
            };
            if let Err(error) = retry.after(error).await {
                return self.explain(error);
            }
        }
    }
}
