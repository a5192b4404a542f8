//! The application that clients/http_vectors.json and clients/chaos test: served DRIVER PORT URI [ROUTES]. It serves
//! the routes of the file ROUTES, or else POST /pay for the chaos. With `unprotected` in place of a driver, /pay is not
//! protected: bench/clients compares with that.

mod common;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Json, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, serve};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use common::{Application, Driver, Place};
use deadpool_postgres::Pool;
use idempotence::axum::{Failure, Idempotent};
use idempotence::{Ask, BoxError, Conn, Lease};
use serde_json::{Value, json};
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// The number of calls of the handler in each case.
static CALLS: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);

/// The connection that a handler uses: that of its transaction or, with a lease, one of its own.
enum Given<D: Driver> {
    Conn(Conn<D>),
    Outside(D),
}

impl<D: Driver> Given<D> {
    async fn execute(&mut self, sql: String) -> Result<(), BoxError> {
        match self {
            Given::Conn(conn) => D::execute(conn, sql).await,
            Given::Outside(database) => database.outside(sql).await,
        }
    }
}

async fn handle<D: Driver>(mut given: Given<D>, body: Bytes) -> Result<Response, Failure> {
    let body: Value = serde_json::from_slice(&body)?;
    let run = body["run"].as_str().unwrap_or_default();
    let lists = body["work"].as_array().ok_or("no work")?;
    let call = {
        let mut calls = CALLS.lock().expect("nobody panics");
        let call = calls.entry(body.to_string()).or_default();
        *call += 1;
        *call - 1
    };
    for action in lists[call.min(lists.len() - 1)].as_array().ok_or("no list")? {
        if let Some(amount) = action.get("effect") {
            given.execute(format!("INSERT INTO client_effect VALUES ('{run}', {amount})")).await?;
        } else if let Some(sql) = action["sql"].as_str() {
            given.execute(sql.into()).await?;
        } else if let Some(sql) = action["caught"].as_str() {
            given.execute(sql.into()).await.expect_err("the statement fails");
        } else if let Some(error) = action["foreign"].as_str() {
            D::foreign(error).await?;
        } else if let Some(time) = action["sleep"].as_f64() {
            tokio::time::sleep(Duration::from_secs_f64(time)).await;
        } else if let Some(status) = action["raise"].as_u64() {
            return Err(Failure::answer((StatusCode::from_u16(status as u16)?, "refused")));
        } else if action.get("raise").is_some() {
            return Err(Application("raised".into()).into());
        } else {
            return Ok(respond(&action["respond"])?);
        }
    }
    Err("no answer".into())
}

fn respond(answer: &Value) -> Result<Response, BoxError> {
    let mut response = Response::builder().status(answer["status"].as_u64().ok_or("no status")? as u16);
    for (name, value) in answer["headers"].as_object().into_iter().flatten() {
        response = response.header(name, HeaderValue::from_bytes(&latin_1(value.as_str().ok_or("no text")?)?)?);
    }
    let body = if let Some(json) = answer.get("json") {
        response = response.header(CONTENT_TYPE, "application/json");
        json.to_string().into_bytes()
    } else if let Some(base64) = answer["base64"].as_str() {
        BASE64_STANDARD.decode(base64)?
    } else if let Some(times) = answer["fill"].as_u64() {
        vec![b'x'; times as usize]
    } else {
        answer["text"].as_str().unwrap_or_default().into()
    };
    Ok(response.body(Body::from(body))?)
}

fn latin_1(text: &str) -> Result<Vec<u8>, std::char::TryFromCharError> {
    text.chars().map(u8::try_from).collect()
}

fn route<D: Driver>(pool: &D, route: &Value) -> MethodRouter {
    if route.get("sql").is_some() {
        let pool = pool.clone();
        let ask = async move || match pool.ask(Duration::from_secs(5), "SELECT 1::text", &[]).await {
            Ok(_) => StatusCode::OK,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        return get(ask);
    }
    let mut idempotent = Idempotent::new(pool.clone(), route["session"].as_str().expect("a session"));
    for (name, value) in route.as_object().expect("a route") {
        let seconds = || Duration::from_secs_f64(value.as_f64().expect("seconds"));
        let header = value.as_str().unwrap_or_default().to_owned();
        idempotent =
            match &**name {
                "required" => idempotent.optional(),
                "strict" => idempotent.strict(),
                "unprotectable" => idempotent.pass_unprotectable(),
                "max_body" => idempotent.max_body(value.as_u64().expect("bytes") as usize),
                "wait" => idempotent.wait(seconds()),
                "lease" => idempotent.lease(seconds()),
                "handler_timeout" => idempotent.handler_timeout(seconds()),
                "methods" => {
                    idempotent.methods(value.as_array().into_iter().flatten().map(|method| {
                        method.as_str().and_then(|method| method.parse::<Method>().ok()).expect("a method")
                    }))
                }
                "identity" => idempotent.identity(move |parts| {
                    let caller = parts.headers.get(&header).map(|value| value.to_str().unwrap_or_default());
                    caller.unwrap_or_default().to_owned()
                }),
                "path" | "prefix" | "session" | "answer" => idempotent,
                _ => panic!("no option is known of the name {name}"),
            };
    }
    if route.get("answer").is_some() {
        return get(move |request: Request| idempotent.answer(request));
    }
    let methods = if route.get("lease").is_some() {
        let outside = pool.clone();
        let work = async move |_: Extension<Arc<Lease<D>>>, body: Bytes| handle(Given::Outside(outside), body).await;
        post(work.clone()).patch(work.clone()).put(work.clone()).delete(work)
    } else {
        let work = async move |conn: Conn<D>, body: Bytes| handle(Given::Conn(conn), body).await;
        post(work).patch(work).put(work).delete(work)
    };
    methods.layer(idempotent)
}

async fn insert(conn: &mut impl Ask, body: &Value) -> Result<(StatusCode, Json<Value>), BoxError> {
    let insert = "INSERT INTO chaos_effect (key) VALUES ($1::text) RETURNING n::text";
    let rows = conn.ask(insert, &[body["key"].as_str()]).await?;
    let n: u64 = rows[0][0].as_deref().unwrap_or_default().parse()?;
    Ok((StatusCode::CREATED, Json(json!({"n": n}))))
}

async fn pay<D: Driver>(mut conn: Conn<D>, Json(body): Json<Value>) -> Result<impl IntoResponse, Failure> {
    Ok(insert(&mut conn, &body).await?)
}

async fn unprotected(State(pool): State<Pool>, Json(body): Json<Value>) -> Result<impl IntoResponse, Failure> {
    let mut client = pool.get().await?;
    let mut transaction = client.transaction().await?;
    let answer = insert(&mut transaction, &body).await?;
    transaction.commit().await?;
    Ok(answer)
}

/// The layer in front.
async fn refuse(request: Request, next: Next) -> Response {
    match request.headers().get("x-refuse").and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok()) {
        Some(status) => (status, "refused").into_response(),
        None => next.run(request).await,
    }
}

async fn start<D: Driver>(port: u16, uri: String, routes: Option<String>) -> Result<(), BoxError> {
    let user = routes.is_some().then_some("client_owner");
    let pool = D::open(&Place { uri, user, database: None, host: None }, 4);
    let mut app = Router::new();
    if let Some(file) = routes {
        let file: Value = serde_json::from_slice(&std::fs::read(file)?)?;
        for one in file["routes"].as_array().ok_or("no routes")?.iter().filter(|one| one.get("needs").is_none()) {
            let path = one["path"].as_str().ok_or("no path")?;
            let path = if one["prefix"] == json!(true) { format!("{path}{{*rest}}") } else { path.into() };
            app = app.route(&path, route(&pool, one));
        }
    } else {
        app = app.route("/pay", post(pay::<D>).layer(Idempotent::new(pool, "chaos")));
    }
    listen(port, app).await
}

async fn listen(port: u16, app: Router) -> Result<(), BoxError> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(serve(listener, app.layer(from_fn(refuse))).await?)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [driver, port, uri, routes @ ..] = &args[..] else { return Err("arguments: DRIVER PORT URI [ROUTES]".into()) };
    let (port, uri, routes) = (port.parse()?, uri.clone(), routes.first().cloned());
    match &**driver {
        Pool::NAME => start::<Pool>(port, uri, routes).await,
        PgPool::NAME => start::<PgPool>(port, uri, routes).await,
        "unprotected" => {
            let pool = Pool::open(&Place { uri, user: None, database: None, host: None }, 4);
            listen(port, Router::new().route("/pay", post(unprotected)).with_state(pool)).await
        }
        _ => Err("the driver is tokio-postgres or sqlx, or unprotected".into()),
    }
}
