//! The round trips of a request, counted by the proxy clients/roundtrips/count.py: a protected request takes as many as
//! an unprotected one, and a replay takes one. IDEM_URI: see run.sh.

mod common;
#[path = "common/http.rs"]
mod http;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post as on_post;
use common::{Driver, Place};
use deadpool_postgres::Pool;
use http::{post, serve, unique};
use idempotence::axum::{Conn, Failure, Idempotent};
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const WRITING_BEGIN: &str = include_str!("../../roundtrips/writing_begin.sql");
const COUNT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roundtrips/count.py");

/// The proxy. It ends when its standard input is closed.
struct Proxy {
    _process: Child,
    port: u16,
    control: String,
}

impl Proxy {
    async fn start() -> Proxy {
        let mut process = Command::new("python3")
            .args([COUNT, "--stdin", "--listen", "0", "--upstream", &http::uri()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("python3 runs");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let ready: Value = serde_json::from_str(&line).expect("one line of JSON");
        let control = ready["control"].as_str().unwrap().trim_start_matches("http://").to_owned();
        Proxy { _process: process, port: ready["port"].as_u64().unwrap() as u16, control }
    }

    async fn control(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.control).await.unwrap();
        let request = format!("{request} HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// The round trips that the work causes, in their order, without the ping of sqlx when a connection is returned to
    /// its pool: it comes after the answer.
    async fn trips(&self, work: impl Future<Output = u16>, status: u16) -> Vec<Value> {
        self.control("POST /reset").await;
        assert_eq!(work.await, status);
        let counted: Value = serde_json::from_str(&self.control("GET /trips").await).unwrap();
        let connections = counted["connections"].as_array().unwrap();
        let trips = connections.iter().flat_map(|one| one["trips"].as_array().unwrap().clone());
        trips.filter(|trip| trip["messages"] != json!(["Sync"])).collect()
    }
}

async fn protected<D: Driver>(mut conn: Conn<D>) -> Result<StatusCode, Failure> {
    D::execute(&mut conn, "INSERT INTO axum_effect VALUES ('trips')".into()).await?;
    Ok(StatusCode::CREATED)
}

/// Begin, insert, commit: what the same route does without protection.
async fn counted<D: Driver>(pool: D, unprotected: axum::routing::MethodRouter, proxy: &Proxy) {
    let app = Router::new()
        .route("/plain", unprotected)
        .route("/protected", on_post(protected::<D>).layer(Idempotent::new(pool.clone(), "axum")))
        .route("/optional", on_post(protected::<D>).layer(Idempotent::new(pool, "axum").optional()));
    let port = serve(app).await;
    // The pool connects.
    assert_eq!(post(port, "/plain", "x").send().await.status, 201);
    assert_eq!(post(port, "/protected", &unique("warm")).send().await.status, 201);
    let plain = proxy.trips(async { post(port, "/plain", "x").send().await.status }, 201).await;
    let key = unique("trips");
    let first = proxy.trips(async { post(port, "/protected", &key).send().await.status }, 201).await;
    let replay = proxy.trips(async { post(port, "/protected", &key).send().await.status }, 201).await;
    let other = proxy.trips(async { post(port, "/protected", &key).body("other").send().await.status }, 422).await;
    assert_eq!(plain.len(), 3, "{plain:#?}");
    assert_eq!(first.len(), 3, "{first:#?}");
    // The answer does not wait for the second: it ends the transaction.
    assert_eq!(replay.len(), 2, "{replay:#?}");
    assert_eq!(replay[1]["statements"][0], "ROLLBACK", "{replay:#?}");
    assert_eq!(other.len(), 2, "{other:#?}");
    let statements = |trip: &Value| trip["statements"].to_string();
    // The handler's own statement is not folded.
    assert!(statements(&first[0]).contains("idem_begin") && !statements(&first[0]).contains("axum_effect"));
    assert!(statements(&first[1]).contains("axum_effect") && !statements(&first[1]).contains("idem_"));
    assert_eq!(first[2]["results"].as_array().and_then(|results| results.last()), Some(&"COMMIT".into()), "{first:#?}");
}

/// The COMMIT of a replay never reaches the server. The adapter waits for it if begin has written, so it begins again.
async fn waits_for_commit<D: Driver>(pool: D, proxy: &Proxy) {
    let app = Router::new().route("/protected", on_post(protected::<D>).layer(Idempotent::new(pool, "axum")));
    let (port, key) = (serve(app).await, unique("writing"));
    assert_eq!(post(port, "/protected", &key).send().await.status, 201);
    let replay = async {
        proxy.control("POST /cut?when=before&at=COMMIT").await;
        post(port, "/protected", &key).send().await.status
    };
    let trips = proxy.trips(replay, 201).await;
    let begins = trips.iter().filter(|trip| trip["statements"].to_string().contains("idem_begin"));
    assert_eq!(begins.count(), 2, "{trips:#?}");
}

fn through(proxy: &Proxy, user: &'static str) -> Place {
    let user = Some(user);
    Place { uri: http::uri(), user, database: None, host: Some(("127.0.0.1".into(), proxy.port)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres() {
    let _ = http::pool::<Pool>(1).await;
    let proxy = Proxy::start().await;
    let pool = Pool::open(&through(&proxy, "postgres"), 1);
    let plain = async |State(pool): State<Pool>| -> Result<StatusCode, Failure> {
        let mut client = pool.get().await?;
        let transaction = client.transaction().await?;
        transaction.batch_execute("INSERT INTO axum_effect VALUES ('trips')").await?;
        transaction.commit().await?;
        Ok(StatusCode::CREATED)
    };
    counted(pool.clone(), on_post(plain).with_state(pool), &proxy).await;
    http::connect().await.batch_execute(WRITING_BEGIN).await.expect("the setup succeeds");
    waits_for_commit(Pool::open(&through(&proxy, "client_writer"), 1), &proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_driver() {
    let _ = http::pool::<PgPool>(1).await;
    let proxy = Proxy::start().await;
    // Without the pings of the pool, which both routes would send.
    let options = through(&proxy, "postgres").options();
    let pool = PgPoolOptions::new().max_connections(1).test_before_acquire(false).connect_lazy_with(options);
    let plain = async |State(pool): State<PgPool>| -> Result<StatusCode, Failure> {
        let mut transaction = pool.begin().await?;
        sqlx::raw_sql("INSERT INTO axum_effect VALUES ('trips')").execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(StatusCode::CREATED)
    };
    counted(pool.clone(), on_post(plain).with_state(pool), &proxy).await;
    http::connect().await.batch_execute(WRITING_BEGIN).await.expect("the setup succeeds");
    waits_for_commit(PgPool::open(&through(&proxy, "client_writer"), 1), &proxy).await;
}
