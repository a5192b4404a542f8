//! Options of the layer, and what a handler may do with its connection. IDEM_URI: see run.sh.

mod common;
#[path = "common/http.rs"]
mod http;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::routing::{any, post as on_post};
use common::Driver;
use deadpool_postgres::Pool;
use http::{connect, effects, eventually, pool, post, serve, unique, write};
use idempotence::axum::{Conn, Failure, Idempotent, Principal};
use idempotence::{Ask, BoxError};
use sqlx::{Acquire, PgConnection, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
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
    an_extractor_authenticates_before_the_request_begins,
    a_handler_that_hangs_in_a_statement_is_ended,
    a_handler_that_hangs_with_a_connection_in_its_own_task_is_ended,
    an_unprotected_request_has_one_transaction,
    an_answer_that_is_too_large_names_the_limit,
    a_deadlock_of_the_own_transaction_is_retried,
);

/// A token with a user and a sequence number, such as `ann/1`.
struct Token(Option<String>);

impl FromRequestParts<&'static str> for Token {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, revoked: &&'static str) -> Result<Self, StatusCode> {
        let token = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
        let token = token.filter(|token| token != revoked).ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Token(token.split('/').next().filter(|user| *user != "nobody").map(String::from)))
    }
}

async fn an_extractor_authenticates_before_the_request_begins<D: Driver>() {
    let who = unique("token");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        Ok("done".into())
    };
    let layer = Idempotent::new(pool::<D>(2).await, "axum");
    let layer = layer.authenticate_with_state("ann/1", |token: &Token| token.0.clone());
    let port = serve(Router::new().route("/", on_post(handler).layer(layer))).await;
    let call = |token: &str| post(port, "/", &who).header(&format!("Authorization: {token}"));
    assert_eq!(call("ann/1").send().await.status, 401);
    let first = call("ann/2").send().await;
    assert_eq!((first.status, first.replayed()), (200, false));
    // A replay needs a valid token, too.
    assert_eq!(call("ann/1").send().await.status, 401);
    assert_eq!(post(port, "/", &who).send().await.status, 401);
    assert!(call("ann/3").send().await.replayed());
    assert!(!call("bob/1").send().await.replayed());
    assert_eq!(call("nobody/1").send().await.status, 500);
    assert_eq!(effects(&who).await, 2);
}

async fn a_handler_that_hangs_in_a_statement_is_ended<D: Driver>() {
    let who = unique("hangs");
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            conn.ask("SELECT pg_sleep(60)::text", &[]).await?;
        }
        Ok("done".into())
    };
    let layer = Idempotent::new(pool::<D>(2).await, "axum").handler_timeout(Duration::from_millis(500));
    let port = serve(Router::new().route("/", on_post(handler).layer(layer))).await;
    let began = Instant::now();
    let answer = post(port, "/", &who).send().await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("#unavailable"), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(3));
    eventually("the claim is released", async || post(port, "/", &who).send().await.status == 200).await;
    assert_eq!((effects(&who).await, calls.load(Ordering::Relaxed)), (1, 2));
}

async fn a_handler_that_hangs_with_a_connection_in_its_own_task_is_ended<D: Driver>() {
    let who = unique("task");
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        let (counted, name) = (counted.clone(), name.clone());
        let task = tokio::spawn(async move {
            write(&mut conn, &name).await?;
            if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                sleep(Duration::from_secs(60)).await;
            }
            Ok::<_, BoxError>(())
        });
        task.await??;
        Ok("done".into())
    };
    let layer = Idempotent::new(pool::<D>(2).await, "axum").handler_timeout(Duration::from_millis(500));
    let port = serve(Router::new().route("/", on_post(handler).layer(layer))).await;
    assert_eq!(post(port, "/", &who).send().await.status, 503);
    eventually("the claim is released", async || post(port, "/", &who).send().await.status == 200).await;
    assert_eq!(effects(&who).await, 1);
}

async fn an_unprotected_request_has_one_transaction<D: Driver>() {
    let who = unique("unprotected");
    let name = who.clone();
    let handler = async move |mut conn: Conn<D>, work: String| -> Result<(StatusCode, &'static str), Failure> {
        write(&mut conn, &name).await?;
        match &*work {
            "refuse" => Err(Failure::answer((StatusCode::PAYMENT_REQUIRED, "no"))),
            "fail" => Err("an error".into()),
            "unauthorized" => Ok((StatusCode::UNAUTHORIZED, "no")),
            "unprocessable" => Ok((StatusCode::UNPROCESSABLE_ENTITY, "no")),
            _ => Ok((StatusCode::CREATED, "yes")),
        }
    };
    let layer = Idempotent::new(pool::<D>(1).await, "axum").methods([Method::POST]).optional();
    let port = serve(Router::new().route("/", any(handler).layer(layer))).await;
    let expected =
        [("refuse", 402, 0), ("fail", 500, 0), ("unauthorized", 401, 0), ("unprocessable", 422, 1), ("", 201, 2)];
    for (work, status, total) in expected {
        let answer = post(port, "/", &who).method("PUT").body(work).send().await;
        assert_eq!((answer.status, effects(&who).await), (status, total), "{work}: {answer:?}");
    }
}

async fn an_answer_that_is_too_large_names_the_limit<D: Driver>() {
    let who = unique("large");
    let handler = async move |_: Conn<D>| "x".repeat(2 << 20);
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(1).await, "axum")))).await;
    for _ in 0..2 {
        let answer = post(port, "/", &who).send().await;
        assert_eq!(answer.status, 500);
        for part in ["#response-too-large", "1048576 bytes", "idempotence.max_response"] {
            assert!(answer.body.contains(part), "{answer:?}");
        }
    }
}

async fn a_deadlock_of_the_own_transaction_is_retried<D: Driver>() {
    let who = unique("deadlock");
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, name) = (calls.clone(), who.clone());
    let handler = async move |mut conn: Conn<D>| -> Result<String, Failure> {
        write(&mut conn, &name).await?;
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            conn.ask("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$", &[]).await?;
        }
        Ok("done".into())
    };
    let port =
        serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(pool::<D>(1).await, "axum")))).await;
    assert_eq!(post(port, "/", &who).send().await.status, 200);
    assert_eq!((effects(&who).await, calls.load(Ordering::Relaxed)), (1, 2));
}

/// A function of an application that uses sqlx, and begins a transaction of its own.
async fn in_a_nested_transaction(conn: &mut PgConnection, who: &str, keep: bool) -> Result<(), sqlx::Error> {
    let mut nested = conn.begin().await?;
    sqlx::query("INSERT INTO axum_effect VALUES ($1)").bind(who).execute(&mut *nested).await?;
    if keep { nested.commit().await } else { nested.rollback().await }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_functions_that_need_a_connection_or_a_nested_transaction_work() {
    let who = unique("nested");
    let name = who.clone();
    let handler = async move |mut conn: Conn<PgPool>, work: String| -> Result<String, Failure> {
        let (kept, undone, name) = (format!("{name}-kept"), format!("{name}-undone"), name.clone());
        in_a_nested_transaction(conn.acquire().await?, &kept, true).await?;
        in_a_nested_transaction(conn.acquire().await?, &undone, false).await?;
        let mut nested = conn.begin().await?;
        // The unique violation ends with the nested transaction.
        for _ in 0..2 {
            let _ = sqlx::query("INSERT INTO axum_unique VALUES ($1)").bind(&name).execute(&mut *nested).await;
        }
        nested.rollback().await?;
        sqlx::query("INSERT INTO axum_effect VALUES ($1)").bind(&name).execute(&mut *conn).await?;
        if work == "fail" { Err("an error".into()) } else { Ok("done".into()) }
    };
    let database = pool::<PgPool>(1).await;
    let port = serve(Router::new().route("/", on_post(handler).layer(Idempotent::new(database.clone(), "axum")))).await;
    let count =
        async || (effects(&who).await, effects(&format!("{who}-kept")).await, effects(&format!("{who}-undone")).await);
    assert_eq!(post(port, "/", &format!("{who}-fail")).body("fail").send().await.status, 500);
    assert_eq!(count().await, (0, 0, 0));
    assert_eq!(post(port, "/", &who).send().await.status, 200);
    assert!(post(port, "/", &who).send().await.replayed());
    assert_eq!(count().await, (1, 1, 0));
    // The connection of the pool has no open transaction, and sqlx knows that.
    let mut transaction = database.begin().await.unwrap();
    sqlx::query("INSERT INTO axum_effect VALUES ($1)").bind(&who).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(effects(&who).await, 2);
}

#[tokio::test]
async fn principals_are_strings_and_integers_and_never_empty() {
    assert_eq!("ann".id(), Some("ann".into()));
    assert_eq!(7_i64.id(), Some("7".into()));
    assert_eq!(Some(7_u32).id(), Some("7".into()));
    assert_eq!(String::new().id(), None);
    assert_eq!(Some("").id(), None);
    assert_eq!(None::<String>.id(), None);
}

#[tokio::test]
#[should_panic(expected = "needs the name of a session")]
async fn a_layer_without_a_session_is_refused() {
    let _ = Idempotent::new(pool::<Pool>(1).await, "");
}

#[tokio::test]
#[should_panic(expected = "at least one method")]
async fn a_layer_without_a_method_is_refused() {
    let _ = Idempotent::new(pool::<Pool>(1).await, "axum").methods([]);
}

#[tokio::test]
async fn the_server_has_no_transaction_left() {
    // A transaction that a test has left open for more than a moment would hold its claim.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%idem%'
        AND now() - state_change > '30 s'";
    assert_eq!(connect().await.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 0);
}
