//! The layer with the options of its routes, and the answers that depend on them.

use super::identity::{Identity, Principal};
use crate::database::Database;
use crate::http::key;
use crate::http::problem::{DOCS, Problem};
use crate::http::reply::{self, HEADERS, Reply};
use crate::request::{Answer, Request};
use crate::{Cause, Error, http};
use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use std::sync::Arc;
use std::time::Duration;

/// The layer, with the options of the routes below it.
#[derive(Clone)]
pub struct Idempotent<D: Database> {
    pub(super) database: D,
    session: Arc<str>,
    pub(super) required: bool,
    pub(super) strict: bool,
    methods: Option<Arc<[Method]>>,
    pub(super) identity: Identity,
    pub(super) max_body: usize,
    pub(super) pass: bool,
    pub(super) wait: Duration,
    pub(super) deadline: Duration,
    pub(super) handler_timeout: Duration,
    ttl: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) headers: Arc<[HeaderName]>,
    docs: Arc<str>,
}

impl<D: Database> Idempotent<D> {
    /// The routes below it record their requests in this session.
    ///
    /// # Panics
    /// If the session has no name.
    pub fn new(database: D, session: &str) -> Self {
        assert!(!session.is_empty(), "Idempotent needs the name of a session, from idem_create_session()");
        Idempotent {
            database,
            session: session.into(),
            required: true,
            strict: false,
            methods: None,
            identity: Identity::Shared,
            max_body: 1 << 20,
            pass: false,
            wait: Duration::ZERO,
            deadline: Duration::from_secs(5),
            handler_timeout: Duration::from_secs(60),
            ttl: None,
            lease: None,
            headers: HEADERS.map(HeaderName::from_static).into(),
            docs: DOCS.into(),
        }
    }

    /// Executes a request without a key each time it is sent. By default it is refused.
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Accepts only the quoted string of the draft as a key.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// The protected methods. By default all methods are protected except GET, HEAD, OPTIONS and TRACE.
    ///
    /// # Panics
    /// If there is none.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let upper = |method: Method| method.as_str().to_ascii_uppercase().parse::<Method>().unwrap_or(method);
        let methods: Arc<[Method]> = methods.into_iter().map(upper).collect();
        assert!(!methods.is_empty(), "Idempotent::methods needs at least one method");
        self.methods = Some(methods);
        self
    }

    /// The id of the caller whom a layer in front has authenticated. The keys of two callers are different requests. If
    /// there is no id, the answer is 500: authenticate in front of this layer, or use [`Idempotent::authenticate`].
    ///
    /// Without an identity all callers share their keys. Then a caller who sends the key and the body of another caller
    /// gets that caller's answer.
    pub fn identity<P: Principal>(mut self, identity: impl Fn(&Parts) -> P + Send + Sync + 'static) -> Self {
        self.identity = Identity::of(identity);
        self
    }

    /// Authenticates the caller by an extractor before the request begins, and takes the id of the caller from it. A
    /// rejection is the answer, and nothing is recorded. The handler may use the same extractor.
    pub fn authenticate<E, P>(self, identity: impl Fn(&E) -> P + Send + Sync + 'static) -> Self
    where
        E: FromRequestParts<()> + Send + 'static,
        P: Principal,
    {
        self.authenticate_with_state((), identity)
    }

    /// As [`Idempotent::authenticate`], for an extractor that needs a state.
    pub fn authenticate_with_state<E, S, P>(
        mut self,
        state: S,
        identity: impl Fn(&E) -> P + Send + Sync + 'static,
    ) -> Self
    where
        E: FromRequestParts<S> + Send + 'static,
        S: Send + Sync + 'static,
        P: Principal,
    {
        self.identity = Identity::extracted(state, identity);
        self
    }

    /// The largest body of a protected request: 1 MiB. A larger one is refused.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Executes a request whose body is too large each time it is sent. By default it is refused.
    pub fn pass_unprotectable(mut self) -> Self {
        self.pass = true;
        self
    }

    /// How long a duplicate waits for the first request, without a connection. By default it does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long to try again, after a lost connection and the like: 5 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long a handler may hold its connection: 60 seconds. Then the connection is closed, and the answer is 503. A
    /// handler with a lease has no limit but its lease.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = limit;
        self
    }

    /// How long the answer is kept; by default the ttl of the session.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// For effects outside the database: the handler gets `Extension<Arc<Lease<D>>>` instead of a connection. The
    /// handler runs to its end even if the caller disconnects.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// The headers that are recorded and replayed. Set-Cookie never is.
    pub fn headers(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers = headers.into_iter().filter(|name| name != "set-cookie").collect();
        self
    }

    /// The page that explains the types of problems.
    pub fn docs(mut self, docs: &str) -> Self {
        self.docs = docs.into();
        self
    }

    pub(super) fn protects(&self, method: &Method) -> bool {
        match &self.methods {
            Some(methods) => methods.iter().any(|one| one.as_str().eq_ignore_ascii_case(method.as_str())),
            None => !method.is_safe(),
        }
    }

    /// The request under this key.
    pub(super) fn request(&self, identity: &str, key: &str) -> Request {
        let request =
            Request::new(&*self.session, key::name(identity, key)).wait(Duration::ZERO).deadline(self.deadline);
        self.ttl.into_iter().fold(request, Request::ttl)
    }

    pub(super) fn problem(&self, problem: Problem) -> Reply {
        problem.reply(&self.docs)
    }

    pub(super) fn replay(&self, answer: &Answer) -> Reply {
        if answer.status == "cancelled" {
            return self.problem(http::problem::CANCELLED);
        }
        // A request that was given up after too many attempts, or a record that no adapter has made.
        reply::replayed(&answer.response).unwrap_or_else(|| self.problem(http::problem::INTERRUPTED))
    }

    /// The answer to a request that failed with this error.
    pub(super) fn explain(&self, error: Error) -> Reply {
        let problem = match &error {
            Error::InProgress { .. } => http::problem::IN_PROGRESS,
            Error::Interrupted { .. } => http::problem::INTERRUPTED,
            Error::Superseded { .. } => http::problem::SUPERSEDED,
            Error::TimedOut { .. } => http::problem::UNAVAILABLE,
            Error::Database { .. } if error.has("ID001") => http::problem::KEY_REUSED,
            Error::Database { cause: Cause::Reported { sqlstate, detail, .. }, .. } if sqlstate == "ID009" => {
                let found = detail.as_deref().unwrap_or_default();
                http::problem::RESPONSE_TOO_LARGE.because(|limit| format!("{found} {limit}"))
            }
            _ if error.is_retryable() => http::problem::UNAVAILABLE,
            _ => return failed(error),
        };
        let mut reply = self.problem(problem);
        if reply.status().is_server_error() {
            tracing::error!(error = %error, "a protected request failed");
            reply.extensions_mut().insert(Arc::new(error));
        }
        reply
    }
}

/// An unexpected error: 500. The layers in front find an `Arc<Error>` in the extensions of the answer.
pub fn failed(error: Error) -> Reply {
    tracing::error!(error = %error, "a protected request failed");
    let mut reply = Reply::new(Bytes::from_static(b"Internal Server Error"));
    *reply.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    reply.extensions_mut().insert(Arc::new(error));
    reply
}
