//! The layer for axum in situations that clients/http_vectors.json cannot describe: layers between, extractors,
//! streams, disconnects, panics, connections that outlive their request, and errors of other pools. IDEM_URI: see
//! run.sh.

mod common;
#[path = "common/http.rs"]
mod http;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, FromRequestParts, Json, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post as on_post};
use common::Driver;
use deadpool_postgres::Pool;
use futures_util::stream;
use http::{connect, effects, eventually, finish, pool, post, serve, unique, write};
use http_body_util::{BodyExt, Full};
use idempotence::axum::{Conn, Failure, Idempotent};
use idempotence::{Ask, Lease};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep};

/// Each test, with both drivers.
macro_rules! with_both_drivers {
    ($($name:ident),* $(,)?) => {
        mod tokio_postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name::<super::Pool>().await })*
        }
        mod sqlx_driver {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name::<super::PgPool>().await })*
        }
    };
}

with_both_drivers!(
    an_error_of_another_pool_calls_the_handler_once,
    an_error_of_a_socket_calls_the_handler_once,
    a_refusal_has_no_effects_although_a_layer_between_rebuilds_its_response,
    an_error_has_no_effects_although_a_layer_between_rebuilds_its_response,
    leased_work_survives_its_caller,
    a_caller_that_disconnects_releases_the_claim_in_the_middle_of_a_statement,
    a_stream_is_refused_and_leaks_no_connection,
    trailers_are_refused,
    a_stream_behind_a_safe_method_passes_by_and_holds_no_connection,
    what_refuses_before_the_work_is_not_recorded,
    the_original_path_is_compared,
    header_values_are_replayed_byte_for_byte,
    a_body_that_breaks_off_is_refused,
    a_connection_that_outlives_its_request_has_no_effect,
    a_panic_leaks_no_connection,
    a_handler_that_commits_is_refused,
    an_empty_identity_is_refused,
);

async fn an_error_of_another_pool_calls_the_handler_once<D: Driver>() {
    let who = unique("other-pool");
    let calls = Arc::new(AtomicUsize::new(0));
    // Its only connection is in use.
    let options = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(200));
    let other = options.connect(&http::uri()).await.unwrap();
    let _in_use = other.acquire().await.unwrap();
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        counted.fetch_add(1, Ordering::Relaxed);
        write(&mut conn, &name).await?;
        let _ = other.acquire().await?;
        Ok("done".into())
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")))).await;
    let answer = post(port, "/", &who).send().await;
    assert_eq!((answer.status, calls.load(Ordering::Relaxed), effects(&who).await), (500, 1, 0), "{answer:?}");
}

async fn an_error_of_a_socket_calls_the_handler_once<D: Driver>() {
    let who = unique("socket");
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        counted.fetch_add(1, Ordering::Relaxed);
        write(&mut conn, &name).await?;
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        // As a driver wraps it.
        Err(sqlx::Error::Io(reset).into())
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")))).await;
    let answer = post(port, "/", &who).send().await;
    assert_eq!((answer.status, calls.load(Ordering::Relaxed), effects(&who).await), (500, 1, 0), "{answer:?}");
}

/// Keeps the status of an answer, and nothing else.
async fn rebuild(request: Request, next: Next) -> Response {
    let status = next.run(request).await.status();
    (status, format!("rebuilt {}", status.as_u16())).into_response()
}

async fn a_refusal_has_no_effects_although_a_layer_between_rebuilds_its_response<D: Driver>() {
    let who = unique("refused");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        Err(Failure::answer((StatusCode::PAYMENT_REQUIRED, "insufficient funds")))
    };
    let layers = on_post(handler).layer(from_fn(rebuild)).layer(Idempotent::new(pool::<D>(2).await, "axum"));
    let port = serve(Router::new().route("/", layers)).await;
    let first = post(port, "/", &who).send().await;
    let second = post(port, "/", &who).send().await;
    assert_eq!((first.status, &*first.body, first.replayed()), (402, "rebuilt 402", false));
    assert_eq!((second.status, &*second.body, second.replayed()), (402, "rebuilt 402", true));
    assert_eq!(effects(&who).await, 0);
}

async fn an_error_has_no_effects_although_a_layer_between_rebuilds_its_response<D: Driver>() {
    let who = unique("failed");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        Err("the processor is unavailable".into())
    };
    // This layer turns every error into an answer that would be final.
    let soften = async |request: Request, next: Next| match next.run(request).await.status() {
        StatusCode::INTERNAL_SERVER_ERROR => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        status => status.into_response(),
    };
    let layers = on_post(handler).layer(from_fn(soften)).layer(Idempotent::new(pool::<D>(2).await, "axum"));
    let port = serve(Router::new().route("/", layers)).await;
    for _ in 0..2 {
        let answer = post(port, "/", &who).send().await;
        assert_eq!((answer.status, answer.replayed()), (422, false));
    }
    assert_eq!(effects(&who).await, 0);
}

async fn leased_work_survives_its_caller<D: Driver>() {
    let who = unique("leased");
    let pool = pool::<D>(2).await;
    let (outside, name) = (pool.clone(), who.clone());
    let handler = async move |_: Extension<Arc<Lease<D>>>| -> Result<String, Failure> {
        outside.outside(format!("INSERT INTO axum_effect VALUES ('{name}')")).await?;
        sleep(Duration::from_secs(1)).await;
        outside.outside(format!("INSERT INTO axum_effect VALUES ('{name}-end')")).await?;
        Ok("done".into())
    };
    let layer = Idempotent::new(pool, "axum").lease(Duration::from_secs(2));
    let port = serve(Router::new().route("/", on_post(handler).layer(layer))).await;
    let caller = post(port, "/", &who).start(2).await;
    eventually("the handler is at work", async || effects(&who).await == 1).await;
    drop(caller);
    eventually("the handler has ended", async || effects(&format!("{who}-end")).await == 1).await;
    eventually("the answer is recorded", async || post(port, "/", &who).send().await.status == 200).await;
    let replay = post(port, "/", &who).send().await;
    assert_eq!((&*replay.body, replay.replayed(), effects(&who).await), ("done", true, 1));
}

async fn a_caller_that_disconnects_releases_the_claim_in_the_middle_of_a_statement<D: Driver>() {
    let who = unique("gone");
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            conn.ask("SELECT pg_sleep(60)::text", &[]).await?;
        }
        Ok("done".into())
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(1).await, "axum")))).await;
    let caller = post(port, "/", &who).start(2).await;
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active'
        AND pid <> pg_backend_pid()";
    let client = connect().await;
    eventually("it sleeps", async || {
        calls.load(Ordering::Relaxed) == 1 && client.query_one(sleeping, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    drop(caller);
    eventually("the claim is released", async || post(port, "/", &who).send().await.status == 200).await;
    assert_eq!(effects(&who).await, 1);
}

/// Never ends.
fn ticks() -> Body {
    Body::from_stream(stream::unfold((), async |()| {
        sleep(Duration::from_millis(50)).await;
        Some((Ok::<_, Infallible>(Bytes::from("data: x\n\n")), ()))
    }))
}

async fn a_stream_is_refused_and_leaks_no_connection<D: Driver>() {
    let who = unique("stream");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>| -> Result<Response, Failure> {
        write(&mut conn, &name).await?;
        Ok(Response::new(ticks()))
    };
    let events = async move |_: Conn<D>| ([(header::CONTENT_TYPE, "text/event-stream")], ticks()).into_response();
    let layer = Idempotent::new(pool::<D>(2).await, "axum");
    let app = Router::new().route("/", on_post(handler)).route("/events", on_post(events)).layer(layer);
    let port = serve(app).await;
    for _ in 0..3 {
        assert_eq!(post(port, "/", &who).send().await.status, 500);
        assert_eq!(post(port, "/events", &format!("{who}-events")).send().await.status, 500);
    }
    assert_eq!(effects(&who).await, 0);
}

async fn trailers_are_refused<D: Driver>() {
    let who = unique("trailers");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>, how: String| -> Result<Response, Failure> {
        write(&mut conn, &name).await?;
        let whole = Full::new(Bytes::from("done"));
        Ok(match &*how {
            "announced" => ([(header::TRAILER, "x-sum")], "done").into_response(),
            _ => Response::new(Body::new(whole.with_trailers(async {
                Some(Ok(HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))])))
            }))),
        })
    };
    let layer = Idempotent::new(pool::<D>(1).await, "axum");
    let port = serve(Router::new().route("/", on_post(handler).layer(layer))).await;
    for how in ["announced", "sent", "sent"] {
        assert_eq!(post(port, "/", &format!("{who}-{how}")).body(how).send().await.status, 500, "{how}");
    }
    assert_eq!(effects(&who).await, 0);
}

async fn a_stream_behind_a_safe_method_passes_by_and_holds_no_connection<D: Driver>() {
    use tokio::io::AsyncReadExt;
    let pool = pool::<D>(1).await;
    let app =
        Router::new().route("/", get(async || Response::new(ticks()))).layer(Idempotent::new(pool.clone(), "axum"));
    let port = serve(app).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = post(port, "/", "x").method("GET").body("").start(0).await;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        streams.push(stream);
    }
    pool.ask(Duration::from_secs(1), "SELECT 1::text", &[]).await.expect("the only connection is free");
}

/// An extractor that authenticates, as applications write it.
struct Caller(String);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let token = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match token.and_then(|token| token.strip_prefix("Bearer ")) {
            Some(name) => Ok(Caller(name.into())),
            None => Err((StatusCode::UNAUTHORIZED, "log in")),
        }
    }
}

async fn what_refuses_before_the_work_is_not_recorded<D: Driver>() {
    let who = unique("before");
    let name = who.clone();
    let handler =
        async move |mut conn: Conn<D>, Caller(caller): Caller, Json(_): Json<Value>| -> Result<String, Failure> {
            write(&mut conn, &name).await?;
            Ok(caller)
        };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")))).await;
    let call = || post(port, "/", &who);
    assert_eq!(call().send().await.status, 401);
    assert_eq!(call().header("Authorization: Bearer ann").send().await.status, 415);
    assert_eq!(call().method("PUT").header("Authorization: Bearer ann").send().await.status, 405);
    let complete = call().header("Authorization: Bearer ann").header("Content-Type: application/json");
    let first = complete.send().await;
    assert_eq!((first.status, &*first.body, first.replayed()), (200, "ann", false));
    assert!(complete.send().await.replayed());
    assert_eq!(effects(&who).await, 1);
}

async fn the_original_path_is_compared<D: Driver>() {
    let who = unique("path");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>, Path(path): Path<String>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        Ok(path)
    };
    let inner = Router::new().route("/{*path}", on_post(handler)).layer(Idempotent::new(pool::<D>(2).await, "axum"));
    let port = serve(Router::new().nest("/a", inner.clone()).nest("/b", inner)).await;
    assert_eq!(post(port, "/a/x%2Fy", &who).send().await.status, 200);
    assert!(post(port, "/a/x%2Fy", &who).send().await.replayed());
    for other in ["/a/x/y", "/b/x%2Fy", "/a/x%2fy", "/a/x%2Fy?z"] {
        assert_eq!(post(port, other, &who).send().await.status, 422, "{other}");
    }
    assert_eq!(effects(&who).await, 1);
}

async fn header_values_are_replayed_byte_for_byte<D: Driver>() {
    let values: [(&str, &[u8]); 3] = [
        ("content-disposition", "attachment; filename=\"Rückruf.pdf\"".as_bytes()),
        ("location", b"/\xe4\xf6"),
        ("retry-after", b"7"),
    ];
    let handler = async move |_: Conn<D>| {
        let mut response = StatusCode::ACCEPTED.into_response();
        for (name, value) in values {
            response.headers_mut().insert(name, HeaderValue::from_bytes(value).unwrap());
        }
        response
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")))).await;
    let who = unique("headers");
    for replayed in [false, true] {
        let answer = post(port, "/", &who).send().await;
        assert_eq!((answer.status, answer.replayed()), (202, replayed));
        for (name, value) in values {
            assert_eq!(answer.header(name).as_deref(), Some(value), "{name}, replayed: {replayed}");
        }
    }
}

async fn a_body_that_breaks_off_is_refused<D: Driver>() {
    let who = unique("body");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>, body: String| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        Ok(body)
    };
    let layer = Idempotent::new(pool::<D>(2).await, "axum");
    // A layer in front that shortens the body.
    let shorten = async |request: Request, next: Next| {
        let (parts, _) = request.into_parts();
        next.run(Request::from_parts(parts, Body::from("1"))).await
    };
    let app = Router::new().route("/", on_post(handler.clone()).layer(layer.clone()));
    let port = serve(app.route("/shortened", on_post(handler).layer(layer).layer(from_fn(shorten)))).await;
    let mut caller = post(port, "/", &who).body("10").start(4).await;
    caller.shutdown().await.unwrap();
    if let Some(answer) = finish(caller).await {
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    let shortened = post(port, "/shortened", &who).body("1000").send().await;
    assert_eq!(shortened.status, 400, "{shortened:?}");
    assert!(shortened.body.contains("#body-incomplete"), "{shortened:?}");
    assert_eq!(effects(&who).await, 0);
    assert_eq!(post(port, "/", &who).body("1000").send().await.body, "1000");
}

async fn a_connection_that_outlives_its_request_has_no_effect<D: Driver>() {
    let who = unique("late");
    let calls = Arc::new(AtomicUsize::new(0));
    let late = Arc::new(AtomicUsize::new(0));
    let (counted, written, name) = (calls.clone(), late.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            let (written, name) = (written.clone(), name.clone());
            tokio::spawn(async move {
                sleep(Duration::from_secs(1)).await;
                if write(&mut conn, &name).await.is_ok() {
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok("done".into())
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")))).await;
    assert_eq!(post(port, "/", &who).send().await.status, 500);
    // The claim is released although the task still has the connection.
    let began = Instant::now();
    eventually("the claim is released", async || post(port, "/", &who).send().await.status == 200).await;
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    sleep(Duration::from_millis(1500)).await;
    assert_eq!((effects(&who).await, late.load(Ordering::Relaxed)), (1, 0));
}

async fn a_panic_leaks_no_connection<D: Driver>() {
    let who = unique("panic");
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        assert!(counted.fetch_add(1, Ordering::Relaxed) >= 4, "the handler panics");
        Ok("done".into())
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")))).await;
    for _ in 0..4 {
        eventually("the handler is called again", async || {
            let before = calls.load(Ordering::Relaxed);
            let _ = finish(post(port, "/", &who).start(2).await).await;
            calls.load(Ordering::Relaxed) > before
        })
        .await;
    }
    eventually("it succeeds", async || post(port, "/", &who).send().await.status == 200).await;
    assert_eq!(effects(&who).await, 1);
}

async fn a_handler_that_commits_is_refused<D: Driver>() {
    let who = unique("commits");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>, sql: String| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        D::execute(&mut conn, sql).await?;
        Ok("done".into())
    };
    // The layers in front find the error.
    let explain = async |request: Request, next: Next| {
        let response = next.run(request).await;
        let error = response.extensions().get::<Arc<idempotence::Error>>().map(ToString::to_string);
        (response.status(), error.unwrap_or_default()).into_response()
    };
    let layers = any(handler).layer(Idempotent::new(pool::<D>(2).await, "axum")).layer(from_fn(explain));
    let port = serve(Router::new().route("/", layers)).await;
    for sql in ["COMMIT", "ROLLBACK"] {
        let answer = post(port, "/", &who).body(sql).send().await;
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(answer.body.contains("the handler must not commit or roll back"), "{sql}: {answer:?}");
    }
    assert_eq!(effects(&who).await, 0);
}

async fn an_empty_identity_is_refused<D: Driver>() {
    let who = unique("identity");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        Ok("done".into())
    };
    let layer = Idempotent::new(pool::<D>(2).await, "axum").identity(|parts| {
        let value = parts.headers.get("x-caller").and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    });
    let port = serve(Router::new().route("/", on_post(handler).layer(layer))).await;
    assert_eq!(post(port, "/", &who).send().await.status, 500);
    assert_eq!(effects(&who).await, 0);
    assert_eq!(post(port, "/", &who).header("X-Caller: ann").send().await.status, 200);
}
