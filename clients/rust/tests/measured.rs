//! The application in Rust that bench/clients measures: measured DRIVER URI PORT. POST /unprotected inserts a key in a
//! transaction, as the driver's documentation does it; POST /protected does the same through the adapter.

use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Router, serve};
use deadpool_postgres::tokio_postgres::{Client, Error, GenericClient, NoTls, Statement};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use idempotence::BoxError;
use idempotence::axum::{Conn, Failure, Idempotent};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};

const INSERT: &str = "INSERT INTO chaos_effect (key) VALUES ($1) RETURNING n";

fn key(body: &Value) -> &str {
    body["key"].as_str().unwrap_or_default()
}

type Answer = Result<(StatusCode, Json<Value>), Failure>;

fn created(n: i64) -> Answer {
    Ok((StatusCode::CREATED, Json(json!({"n": n}))))
}

mod tokio_postgres {
    use super::*;

    async fn insert(client: &impl GenericClient, statement: &Statement, body: &Value) -> Result<i64, Error> {
        Ok(client.query_one(statement, &[&key(body)]).await?.get(0))
    }

    pub async fn unprotected(State(pool): State<Pool>, Json(body): Json<Value>) -> Answer {
        let mut client = pool.get().await?;
        let insert = client.prepare_cached(INSERT).await?;
        let transaction = client.transaction().await?;
        let n = self::insert(&*transaction, &insert, &body).await?;
        transaction.commit().await?;
        created(n)
    }

    pub async fn protected(conn: Conn<Pool>, Json(body): Json<Value>) -> Answer {
        let insert = conn.prepare_cached(INSERT).await?;
        let client: &Client = &conn;
        created(self::insert(client, &insert, &body).await?)
    }

    pub fn pool(uri: &str) -> Result<Pool, BoxError> {
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(uri.parse()?, NoTls, config);
        Ok(Pool::builder(manager).max_size(8).build()?)
    }
}

mod sqlx_ {
    use super::*;

    async fn insert(connection: &mut PgConnection, body: &Value) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(INSERT).bind(key(body)).fetch_one(connection).await
    }

    pub async fn unprotected(State(pool): State<PgPool>, Json(body): Json<Value>) -> Answer {
        let mut transaction = pool.begin().await?;
        let n = insert(&mut transaction, &body).await?;
        transaction.commit().await?;
        created(n)
    }

    pub async fn protected(mut conn: Conn<PgPool>, Json(body): Json<Value>) -> Answer {
        created(insert(&mut conn, &body).await?)
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, uri, port] = &arguments[..] else { return Err("arguments: DRIVER URI PORT".into()) };
    let app = match &**driver {
        "tokio-postgres" => {
            let pool = tokio_postgres::pool(uri)?;
            let protected = post(tokio_postgres::protected).layer(Idempotent::new(pool.clone(), "chaos"));
            let unprotected = post(tokio_postgres::unprotected).with_state(pool);
            Router::new().route("/protected", protected).route("/unprotected", unprotected)
        }
        "sqlx" => {
            // The pool would ask the server whether a connection is alive each time that it is taken.
            let pool = PgPoolOptions::new().max_connections(8).test_before_acquire(false).connect(uri).await?;
            let protected = post(sqlx_::protected).layer(Idempotent::new(pool.clone(), "chaos"));
            let unprotected = post(sqlx_::unprotected).with_state(pool);
            Router::new().route("/protected", protected).route("/unprotected", unprotected)
        }
        _ => return Err("the driver is tokio-postgres or sqlx".into()),
    };
    Ok(serve(tokio::net::TcpListener::bind(("127.0.0.1", port.parse()?)).await?, app).await?)
}
