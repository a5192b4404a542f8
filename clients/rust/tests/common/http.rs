//! An application on a port of its own, a client for it, and a table that counts the effects of its handlers.

#![allow(dead_code)] // each program uses a part

use crate::common::{Driver, Place};
use axum::Router;
use deadpool_postgres::tokio_postgres::{Client, NoTls};
use idempotence::{Ask, BoxError, Conn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;

const SETUP: &str = "
    SET client_min_messages = error;
    SELECT pg_advisory_lock(7);
    CREATE EXTENSION IF NOT EXISTS idempotence;
    CREATE TABLE IF NOT EXISTS axum_effect (who text NOT NULL);
    CREATE TABLE IF NOT EXISTS axum_unique (who text PRIMARY KEY);
    SELECT idem_create_session('axum', ttl => '1 hour') WHERE NOT EXISTS (
        SELECT FROM idempotence.sessions WHERE session = 'axum');
    SELECT pg_advisory_unlock(7)";

pub fn uri() -> String {
    std::env::var("IDEM_URI").expect("IDEM_URI is a URI of a superuser, as in run.sh")
}

pub async fn connect() -> Client {
    let place = Place { uri: uri(), user: None, database: None, host: None };
    let (client, connection) = place.config().connect(NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// A pool of few connections: a leak exhausts it. IDEM_POOLER: a URI of the same database through a pooler.
pub async fn pool<D: Driver>(size: usize) -> D {
    static DONE: OnceCell<()> = OnceCell::const_new();
    DONE.get_or_init(async || connect().await.batch_execute(SETUP).await.expect("the setup succeeds")).await;
    let uri = std::env::var("IDEM_POOLER").unwrap_or_else(|_| uri());
    D::open(&Place { uri, user: None, database: None, host: None }, size)
}

/// A name that no other test and no earlier run has used.
pub fn unique(test: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_micros();
    format!("{test}-{now:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// An effect in the transaction of the request.
pub async fn write<D: Driver>(conn: &mut Conn<D>, who: &str) -> Result<(), BoxError> {
    conn.ask("INSERT INTO axum_effect VALUES ($1::text)", &[Some(who)]).await?;
    Ok(())
}

/// The number of committed effects.
pub async fn effects(who: &str) -> i64 {
    let rows = connect().await.query("SELECT count(*) FROM axum_effect WHERE who = $1", &[&who]).await;
    rows.expect("a count")[0].get(0)
}

pub async fn serve(app: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move { axum::serve(listener, app).await });
    port
}

#[derive(Debug, PartialEq)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
    bytes: Vec<u8>,
}

impl Response {
    pub fn replayed(&self) -> bool {
        self.head.to_lowercase().contains("idempotent-replayed: true")
    }

    /// The bytes of a header.
    pub fn header(&self, name: &str) -> Option<Vec<u8>> {
        let start = format!("{name}: ");
        let line = self
            .bytes
            .split(|byte| *byte == b'\n')
            .find(|line| line.len() > start.len() && line[..start.len()].eq_ignore_ascii_case(start.as_bytes()))?;
        Some(line[start.len()..].trim_ascii_end().to_vec())
    }
}

pub struct Call {
    port: u16,
    method: &'static str,
    path: String,
    headers: Vec<String>,
    body: String,
}

/// A POST with this key.
pub fn post(port: u16, path: &str, key: &str) -> Call {
    let headers = vec![format!("Idempotency-Key: \"{key}\"")];
    Call { port, method: "POST", path: path.into(), headers, body: "{}".into() }
}

impl Call {
    pub fn method(mut self, method: &'static str) -> Call {
        self.method = method;
        self
    }

    pub fn header(mut self, header: &str) -> Call {
        self.headers.push(header.into());
        self
    }

    pub fn body(mut self, body: &str) -> Call {
        self.body = body.into();
        self
    }

    /// The connection, on which the request was sent with this Content-Length.
    pub async fn start(&self, length: usize) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("a connection");
        let mut head = format!("{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", self.method, self.path);
        for header in &self.headers {
            head += &format!("{header}\r\n");
        }
        head += &format!("Content-Length: {length}\r\n\r\n{}", self.body);
        stream.write_all(head.as_bytes()).await.expect("the request is sent");
        stream
    }

    pub async fn send(&self) -> Response {
        let stream = self.start(self.body.len()).await;
        finish(stream).await.expect("an answer")
    }
}

/// The answer, or None if the server has closed the connection without one.
pub async fn finish(mut stream: TcpStream) -> Option<Response> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
    read.expect("an answer within 20 seconds").ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, head: head.into(), body: body.into(), bytes: bytes.clone() })
}

/// Waits until it is true, for ten seconds.
pub async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    for _ in 0..200 {
        if is_true().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not within ten seconds");
}
