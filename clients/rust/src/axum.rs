//! A layer for axum: a route under it executes a request with an Idempotency-Key once, and its answer leaves after COMMIT.

pub use crate::database::Conn;
use crate::database::{Ask, Database, Slot, Transaction};
use crate::http::{self, Problem, Reply};
use crate::lease::Leased;
use crate::run::{Answer, Request, Retry, Ticket};
use crate::{BoxError, Error};
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

type Identity = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// How routes are protected: a layer, and what its builder says of them.
#[derive(Clone)]
pub struct Idempotent<D: Database> {
    database: D,
    session: Arc<str>,
    required: bool,
    strict: bool,
    methods: Arc<[Method]>,
    identity: Option<Identity>,
    max_body: usize,
    pass: bool,
    wait: Duration,
    deadline: Duration,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    headers: Arc<[HeaderName]>,
    docs: Arc<str>,
}

impl<D: Database> Idempotent<D> {
    /// The routes under it record their requests in this session.
    pub fn new(database: D, session: &str) -> Self {
        Idempotent {
            database,
            session: session.into(),
            required: true,
            strict: false,
            methods: [Method::POST, Method::PATCH].into(),
            identity: None,
            max_body: 1 << 20,
            pass: false,
            wait: Duration::ZERO,
            deadline: Duration::from_secs(5),
            ttl: None,
            lease: None,
            headers: http::HEADERS.map(HeaderName::from_static).into(),
            docs: http::DOCS.into(),
        }
    }

    /// A request without a key is executed each time, and not refused.
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Only the draft's quoted string is a key.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// The methods that are protected: POST and PATCH. The others are executed each time.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Who the caller is. The keys of two callers never meet.
    pub fn identity(mut self, identity: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.identity = Some(Arc::new(identity));
        self
    }

    /// The most bytes of a body that is protected: a MiB. A larger one, or one of no told length, is refused.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// A body that cannot be protected is executed each time, and not refused.
    pub fn pass_unprotectable(mut self) -> Self {
        self.pass = true;
        self
    }

    /// How long a duplicate waits for the first, without a connection: not at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long to try again, after a lost connection and the like: 5 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long the answer is kept; by default the ttl of the session.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// For effects elsewhere: the handler gets `Extension<Arc<Lease<D>>>` in the place of a connection.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }

    /// The headers that a replay has. Never Set-Cookie.
    pub fn headers(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers = headers.into_iter().filter(|name| name != "set-cookie").collect();
        self
    }

    /// Where the types of problems are explained: by default in the draft.
    pub fn docs(mut self, docs: &str) -> Self {
        self.docs = docs.into();
        self
    }

    /// The answer to the request that has this key, for a GET: `get(move |request| idempotent.answer(request))`. Waits for
    /// whoever is at work, and never executes.
    pub async fn answer(self, request: axum::extract::Request) -> Response {
        let (parts, _) = request.into_parts();
        let found = match http::key(&parts.headers, self.strict) {
            Ok(Some(key)) => self.told(&self.request(&parts, &key)).await,
            Ok(None) => Err(http::KEY_MISSING),
            Err(problem) => Err(problem),
        };
        found.unwrap_or_else(|problem| self.problem(problem)).map(Body::from)
    }

    async fn told(&self, request: &Request) -> Result<Reply, Problem> {
        let mut retry = Retry::new(self.deadline, self.wait);
        loop {
            let error = match request.look(&self.database, retry.left()).await {
                Ok(Ticket { status, expires_at, .. }) if status == "in_progress" => {
                    Error::InProgress { key: String::new(), expires_at }
                }
                Ok(ticket) => {
                    return match (ticket.answer(), &*ticket.status) {
                        (Some(answer), _) => Ok(self.replay(&answer)),
                        (None, "suspended") => Err(http::INTERRUPTED),
                        (None, "not_here") => Err(http::UNAVAILABLE),
                        _ => Err(http::UNKNOWN),
                    };
                }
                Err(error) => error,
            };
            if let Err(error) = retry.after(error).await {
                return explained(&error).map_or_else(|| Ok(failed(error)), Err);
            }
        }
    }

    fn request(&self, parts: &Parts, key: &str) -> Request {
        let identity = self.identity.as_ref().map(|identity| identity(parts)).unwrap_or_default();
        let request =
            Request::new(&*self.session, http::name(&identity, key)).wait(Duration::ZERO).deadline(self.deadline);
        self.ttl.into_iter().fold(request, Request::ttl)
    }

    fn problem(&self, problem: Problem) -> Reply {
        http::problem(problem, &self.docs)
    }

    fn replay(&self, answer: &Answer) -> Reply {
        if answer.status == "cancelled" {
            return self.problem(http::CANCELLED);
        }
        // Else given up after too many attempts, or no answer of an adapter.
        http::replayed(&answer.response).unwrap_or_else(|| self.problem(http::INTERRUPTED))
    }

    /// The key of a request that is to be protected.
    fn key(&self, parts: &Parts, body: &Body) -> Result<Option<String>, Problem> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        let Some(key) = http::key(&parts.headers, self.strict)? else {
            return if self.required { Err(http::KEY_MISSING) } else { Ok(None) };
        };
        match body.size_hint().exact() {
            Some(length) if length <= self.max_body as u64 => Ok(Some(key)),
            _ if self.pass => Ok(None),
            Some(_) => Err(http::BODY_TOO_LARGE),
            None => Err(http::LENGTH_REQUIRED),
        }
    }

    async fn serve<S: Handler>(self, inner: S, request: axum::extract::Request) -> Response {
        let (parts, body) = request.into_parts();
        let key = self.key(&parts, &body);
        let key = match key {
            Ok(Some(key)) => key,
            Ok(None) => return self.unprotected(inner, parts, body).await,
            Err(problem) => return self.problem(problem).map(Body::from),
        };
        let Ok(body) = to_bytes(body, self.max_body).await else { return StatusCode::BAD_REQUEST.into_response() };
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let request = self.request(&parts, &key).payload(&json!({
            "method": parts.method.as_str(),
            "path": uri.path(),
            "query": uri.query().unwrap_or_default(),
            "body": http::digest(&body),
        }));
        let sent = Sent { parts, body };
        let answered = match self.lease {
            Some(length) => self.leased(inner, &sent, &request, length).await,
            None => self.protected(inner, &sent, &request).await,
        };
        let reply = answered.unwrap_or_else(|error| match explained(&error) {
            Some(problem) => self.problem(problem),
            None => failed(error),
        });
        reply.map(Body::from)
    }

    async fn protected<S: Handler>(&self, inner: S, sent: &Sent, request: &Request) -> Result<Reply, Error> {
        let mut retry = Retry::new(self.deadline, self.wait);
        loop {
            let slot = Slot::<D>::default();
            let error = match self.executed(inner.clone(), sent, request, &slot, retry.left()).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            slot.rollback().await;
            retry.after(error).await?;
        }
    }

    /// What is not committed when it returns is to be rolled back.
    async fn executed<S: Handler>(
        &self,
        inner: S,
        sent: &Sent,
        request: &Request,
        slot: &Slot<D>,
        left: Duration,
    ) -> Result<Reply, Error> {
        let mut conn = slot.open(self.database.begin(left).await?);
        let ticket = request.begin(&mut conn).await?;
        if let Some(answer) = request.answered(&ticket)? {
            drop(conn);
            slot.take()?.commit(None).await?;
            return Ok(self.replay(&answer));
        }
        conn.ask("SAVEPOINT idempotence", &[]).await?;
        drop(conn);
        let (reply, refused) = called(inner, sent.request(slot.clone())).await?;
        let mut tx = slot.take()?;
        if http::is_final(reply.status()) {
            let answer = Answer::new(reply.status().as_u16() >= 400, http::recorded(&reply, &self.headers));
            let mut recorded = if refused { Ok(false) } else { request.record(&mut tx, &answer).await.map(|()| true) };
            // An error of the database that the handler has caught took the effects back, and its refusal may be recorded.
            if answer.failed() && recorded.as_ref().is_err_and(|error| error.has("25P02")) {
                recorded = Ok(false);
            }
            if !recorded? {
                tx.ask("ROLLBACK TO SAVEPOINT idempotence", &[]).await?;
                request.record(&mut tx, &answer).await?;
            }
            tx.commit(None).await?;
        } else {
            let _ = tx.rollback().await;
        }
        Ok(reply)
    }

    async fn leased<S: Handler>(
        &self,
        inner: S,
        sent: &Sent,
        request: &Request,
        length: Duration,
    ) -> Result<Reply, Error> {
        let lease = match request.hold_within(&self.database, length, self.wait).await? {
            Leased::Answered(answer) => return Ok(self.replay(&answer)),
            Leased::Held(lease) => lease,
        };
        let (reply, _) = lease.guard(called(inner, sent.request(lease.clone()))).await??;
        // What is not final leaves the lease to run out: nobody knows what was done elsewhere.
        if http::is_final(reply.status()) && lease.answer().is_none() {
            lease.record(&http::recorded(&reply, &self.headers), reply.status().as_u16() >= 400).await?;
        }
        Ok(reply)
    }

    /// A transaction and no more. It cannot be tried again.
    async fn unprotected<S: Handler>(&self, inner: S, mut parts: Parts, body: Body) -> Response {
        let slot = Slot::<D>::default();
        if self.lease.is_none() {
            match self.database.begin(self.deadline).await {
                Ok(tx) => drop(slot.open(tx)),
                Err(_) => return self.problem(http::UNAVAILABLE).map(Body::from),
            }
            parts.extensions.insert(slot.clone());
        }
        let answered = async {
            let (reply, refused) = called(inner, axum::extract::Request::from_parts(parts, body)).await?;
            if self.lease.is_none() && http::is_final(reply.status()) && !refused {
                let mut tx = slot.take()?;
                // COMMIT does not say that an error of the database, which the handler has caught, took all back.
                tx.ask("SELECT 'well'::text WHERE $1::text IS NULL", &[None]).await?;
                tx.commit(None).await?;
            }
            Ok(reply)
        };
        let reply = answered.await.unwrap_or_else(failed);
        slot.rollback().await;
        reply.map(Body::from)
    }
}

/// What an error says to the caller, if it is one of the request's.
fn explained(error: &Error) -> Option<Problem> {
    match error {
        Error::InProgress { .. } => Some(http::IN_PROGRESS),
        Error::Interrupted { .. } => Some(http::INTERRUPTED),
        Error::Superseded { .. } => Some(http::SUPERSEDED),
        _ if error.has("ID001") => Some(http::KEY_REUSED),
        _ => error.is_retryable().then_some(http::UNAVAILABLE),
    }
}

/// The error of a handler, or of the database: 500. The layers around find an `Arc<Error>` in its extensions.
fn failed(error: Error) -> Reply {
    let mut reply = Reply::new(Bytes::from_static(b"Internal Server Error"));
    *reply.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    reply.extensions_mut().insert(Arc::new(error));
    reply
}

/// A request, which may be handed to the handler more than once.
struct Sent {
    parts: Parts,
    body: Bytes,
}

impl Sent {
    fn request(&self, given: impl Clone + Send + Sync + 'static) -> axum::extract::Request {
        let mut parts = self.parts.clone();
        parts.extensions.insert(given);
        axum::extract::Request::from_parts(parts, Body::from(self.body.clone()))
    }
}

/// What a layer stands in front of.
pub trait Handler:
    Service<axum::extract::Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S> Handler for S where
    S: Service<axum::extract::Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

/// The handler's answer, whole; and whether it was given as a [`Failure`].
async fn called<S: Handler>(mut inner: S, request: axum::extract::Request) -> Result<(Reply, bool), Error> {
    let ready = poll_fn(|context| inner.poll_ready(context)).await;
    let response = match ready {
        Ok(()) => inner.call(request).await.unwrap_or_else(|never| match never {}),
        Err(never) => match never {},
    };
    let (mut parts, body) = response.into_parts();
    let raised = parts.extensions.remove::<Raised>();
    if let Some(error) = raised.as_ref().and_then(|raised| raised.0.clone()) {
        drop(raised);
        return Err(Arc::into_inner(error).map_or_else(|| Error::Other("the handler has failed".into()), Error::from));
    }
    let body = to_bytes(body, usize::MAX).await.map_err(|error| Error::Other(error.into()))?;
    Ok((Reply::from_parts(parts, body), raised.is_some()))
}

/// What a protected handler fails with. `?` makes it of any error: all is taken back, the request is tried again if that may
/// help, and else the answer is 500. [`Failure::answer`] takes the handler's effects back, too, and its answer is final.
pub struct Failure(Response);

/// Beside an answer: the error, if it is one.
#[derive(Clone)]
struct Raised(Option<Arc<BoxError>>);

impl Failure {
    /// An answer without effects: what the handler has written is taken back. If it is 2xx to 4xx, but for 408, 409, 425
    /// and 429, it is recorded, and is the answer to each retry.
    pub fn answer(response: impl IntoResponse) -> Failure {
        let mut response = response.into_response();
        response.extensions_mut().insert(Raised(None));
        Failure(response)
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(Raised(Some(Arc::new(error.into()))));
        Failure(response)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.0
    }
}

impl<D: Database, S: Send + Sync> FromRequestParts<S> for Conn<D> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let lent = parts.extensions.get::<Slot<D>>().and_then(Slot::lend);
        lent.ok_or_else(|| {
            "this route has no layer Idempotent over this pool, or a lease, or it has asked for its connection twice"
                .into()
        })
    }
}

impl<D: Database, S> Layer<S> for Idempotent<D> {
    type Service = Protected<S, D>;

    fn layer(&self, inner: S) -> Protected<S, D> {
        Protected { inner, rules: self.clone() }
    }
}

/// A service behind [`Idempotent`].
#[derive(Clone)]
pub struct Protected<S, D: Database> {
    inner: S,
    rules: Idempotent<D>,
}

impl<S: Handler, D: Database> Service<axum::extract::Request> for Protected<S, D> {
    type Response = Response;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The handler is waited for when it is called, perhaps more than once.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: axum::extract::Request) -> Self::Future {
        let (rules, inner) = (self.rules.clone(), self.inner.clone());
        Box::pin(async move { Ok(rules.serve(inner, request).await) })
    }
}
