//! Clients that number their requests and keep the rules for numbers, whatever happens to them and to their
//! server in the meantime. Two connections send each request at the same time, and both go on until they have
//! its answer. They send the next request only after that. Only the extension keeps a request from being
//! executed twice, because the table of effects has no constraint.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use rand::RngExt;
use tokio::time::{Duration, Instant, sleep};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::limits::{LIMIT, PATIENCE};
use crate::load::{LEVELS, count, lock};

/// The application name of the connections, for a test that watches or disturbs them.
pub const APPLICATION: &str = "sender";

/// The longest range of numbers that a request has in a session with strict order.
const RANGE_MAX: i64 = 3;

/// A client session.
struct Session {
    name: String,
    strict: bool,
    /// For each lane, the number up to which it has its answers. With n lanes, a lane has every n-th number.
    /// A strict session has one lane.
    lanes: Vec<AtomicI64>,
}

/// A request that both connections send.
struct Request<'a> {
    session: &'a str,
    first: i64,
    last: i64,
    /// All requests up to this number have their answers.
    acked: i64,
}

/// How often the clients met each kind of disturbance.
#[derive(Debug, Default)]
pub struct Tally {
    /// The client rolled back.
    pub rolled_back: AtomicUsize,
    /// SQLSTATE 57014.
    pub cancelled: AtomicUsize,
    /// There was no server, or it refused or ended the connection.
    pub disconnected: AtomicUsize,
    /// SQLSTATE 40001.
    pub unserializable: AtomicUsize,
    /// The other connection was at work on the request, and the wait ended.
    pub in_progress: AtomicUsize,
    /// The other connection had executed the request.
    pub replayed: AtomicUsize,
}

/// The clients.
pub struct Senders<'a> {
    /// The server that new connections go to.
    cluster: Mutex<&'a Cluster>,
    database: &'a str,
    sessions: Vec<Session>,
    /// The sender that executed the request, as both connections were told, by session and first number.
    told: Mutex<HashMap<(usize, i64), usize>>,
    /// What the clients met with.
    pub tally: Tally,
    /// Whether the test rewrites tables in the meantime. That causes a deadlock (40P01) now and then.
    pub beside_rewrites: bool,
}

impl<'a> Senders<'a> {
    /// Registers the sessions, in a database with the extension. `any` is the number of sessions with numbers
    /// in any order, each with `window` requests in flight. `strict` is the number of sessions with strict
    /// order.
    pub async fn register(
        cluster: &'a Cluster,
        database: &'a str,
        any: usize,
        window: usize,
        strict: usize,
    ) -> Result<Self> {
        cluster.psql(
            database,
            "CREATE TABLE effect (session text NOT NULL, first bigint NOT NULL, last bigint NOT NULL, by int NOT NULL)",
        )?;
        let connection = cluster.connect(database).await?;
        let mut sessions = Vec::new();
        for number in 0..any + strict {
            let is_strict = number >= any;
            let ordering = if is_strict { "strict" } else { "any" };
            let name = connection.register(&format!("window_size => {window}, ordering => '{ordering}'")).await?;
            // This saves the session, so that it outlives a crash.
            connection.text(&format!("SELECT idem_ack('{name}', 1, 'another stream')")).await?;
            let lanes = (0..if is_strict { 1 } else { window }).map(|_| AtomicI64::new(0)).collect();
            sessions.push(Session { name, strict: is_strict, lanes });
        }
        Ok(Self {
            cluster: Mutex::new(cluster),
            database,
            sessions,
            told: Mutex::default(),
            tally: Tally::default(),
            beside_rewrites: false,
        })
    }

    /// Sends all further connections to another server.
    pub fn move_to(&self, cluster: &'a Cluster) {
        *lock(&self.cluster) = cluster;
    }

    /// Sends requests until each lane has the answers to this number of further requests.
    pub async fn send(&self, requests: usize) -> Result<()> {
        let lanes = self.sessions.iter().enumerate().flat_map(|(number, session)| {
            (0..session.lanes.len()).map(move |lane| self.send_lane(number, lane, requests))
        });
        try_join_all(lanes).await?;
        Ok(())
    }

    /// The number of requests that have been answered.
    pub fn answered(&self) -> usize {
        lock(&self.told).len()
    }

    /// Waits until this number of further requests has been answered.
    pub async fn progress(&self, requests: usize) -> Result<()> {
        let (start, wanted) = (Instant::now(), self.answered() + requests);
        while self.answered() < wanted {
            ensure!(start.elapsed() <= LIMIT, "the clients do not get on");
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn send_lane(&self, number: usize, lane: usize, requests: usize) -> Result<()> {
        let session = &self.sessions[number];
        let step = session.lanes.len() as i64;
        // Each connection has an id of its own.
        let id = 1000 * number + 2 * lane;
        let (mut one, mut other) = (self.connect().await?, self.connect().await?);
        // A lane that has sent before goes on after its last answered request.
        let mut first = match session.lanes[lane].load(Relaxed) {
            0 => lane as i64 + 1,
            answered => answered + step,
        };
        for _ in 0..requests {
            let last = if session.strict { first + rand::rng().random_range(0..RANGE_MAX) } else { first };
            let acked = session.lanes.iter().map(|lane| lane.load(Relaxed)).min().unwrap_or(0);
            let request = Request { session: &session.name, first, last, acked };
            let (by, also) = tokio::try_join!(
                self.until_answered(&mut one, &request, id),
                self.until_answered(&mut other, &request, id + 1)
            )
            .with_context(|| format!("request {first} to {last} of session {}", session.name))?;
            ensure!(
                by == also,
                "request {first} of {} was executed by {by} by one answer, by {also} by the other",
                session.name
            );
            lock(&self.told).insert((number, first), by);
            session.lanes[lane].store(last, Relaxed);
            first = last + step;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Connection> {
        let start = Instant::now();
        loop {
            let cluster = *lock(&self.cluster);
            // The test may disturb this connection too, and in the meantime `move_to` may have been called.
            if let Ok(connection) = cluster.connect(self.database).await {
                let settings = format!("SET application_name = '{APPLICATION}'; SET idempotence.wait = '{PATIENCE}'");
                if connection.try_text(&settings).await.is_ok() {
                    return Ok(connection);
                }
            }
            ensure!(start.elapsed() <= LIMIT, "nobody lets the clients in");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends the request until it is answered. Returns the id of the sender that executed it.
    async fn until_answered(&self, connection: &mut Connection, request: &Request<'_>, by: usize) -> Result<usize> {
        loop {
            match self.attempt(connection, request, by).await {
                Ok(Some(answer)) => return answer.parse().with_context(|| answer.clone()),
                Ok(None) => continue,
                Err(error) => {
                    let met = match error.code().map(|state| state.code()) {
                        Some("57014") => &self.tally.cancelled,
                        Some("40001") => &self.tally.unserializable,
                        Some("40P01") if self.beside_rewrites => &self.tally.unserializable,
                        // The server is shut down, has crashed or is not up yet, or only this connection was ended.
                        None | Some("57P01" | "57P02" | "57P03") => &self.tally.disconnected,
                        Some(_) => return Err(error.into()),
                    };
                    count(met);
                    // A rollback fails if the connection is gone, or if a late cancel hits it.
                    if connection.text("ROLLBACK").await.is_err() {
                        *connection = self.connect().await?;
                    }
                }
            }
        }
    }

    /// Sends the request in one transaction. Returns the answer if the transaction was committed.
    async fn attempt(
        &self,
        connection: &Connection,
        request: &Request<'_>,
        by: usize,
    ) -> Result<Option<String>, tokio_postgres::Error> {
        let Request { session, first, last, acked } = request;
        let chance = |share| rand::rng().random_bool(share);
        let level = LEVELS[rand::rng().random_range(0..LEVELS.len())];
        connection.try_text(&format!("BEGIN ISOLATION LEVEL {level}")).await?;
        let mut begin =
            format!("SELECT status, response FROM idem_begin('{session}', {first}, payload => '{{\"from\": {first}}}'");
        if first != last {
            begin += &format!(", last => {last}");
        }
        if chance(0.2) {
            begin += &format!(", ack => {acked}");
        }
        begin += if chance(0.3) { ", wait => '2 ms')" } else { ")" };
        let work = format!("INSERT INTO effect VALUES ('{session}', {first}, {last}, {by})");
        let record = format!("SELECT FROM idem_record('{session}', {first}, '{by}')");

        if chance(0.1) {
            // Executes the request, and rolls back to the savepoint.
            let vain = format!("SAVEPOINT vain; {begin}");
            if connection.try_text(&vain).await? == "started|" {
                connection.try_text(&format!("{work}; {record}")).await?;
            }
            connection.try_text("ROLLBACK TO vain").await?;
        }
        let ticket = connection.try_text(&begin).await?;
        let answer = match ticket.split_once('|') {
            Some(("started", _)) => {
                connection.try_text(&work).await?;
                connection.try_text(&record).await?;
                by.to_string()
            }
            Some(("in_progress", _)) => {
                count(&self.tally.in_progress);
                connection.try_text("ROLLBACK").await?;
                return Ok(None);
            }
            _ => {
                count(&self.tally.replayed);
                ticket.replace("succeeded|", "")
            }
        };
        if chance(0.05) {
            count(&self.tally.rolled_back);
            connection.try_text("ROLLBACK").await?;
            return Ok(None);
        }
        connection.try_text("COMMIT").await?;
        Ok(Some(answer))
    }

    /// Proves that each request took effect once, by the sender that both connections were told of, and that no
    /// number was left out.
    pub async fn prove(&self) -> Result<()> {
        let cluster = *lock(&self.cluster);
        let connection = cluster.reconnect(self.database).await?;
        let mut told = lock(&self.told).clone();
        for (number, session) in self.sessions.iter().enumerate() {
            let name = &session.name;
            let effects = connection
                .text(&format!("SELECT first, last, by FROM effect WHERE session = '{name}' ORDER BY first"))
                .await?;
            let mut next = 1;
            for effect in effects.lines() {
                let columns: Vec<&str> = effect.split('|').collect();
                let (first, last): (i64, i64) = (columns[0].parse()?, columns[1].parse()?);
                ensure!(first == next, "after number {} of {name} comes the effect {effect}", next - 1);
                let by = told.remove(&(number, first)).with_context(|| format!("nobody was told of {effect}"))?;
                ensure!(by.to_string() == columns[2], "of {effect} the clients were told {by}");
                next = last + 1;
            }
            let position = connection.text(&format!("SELECT last_number FROM idem_position('{name}')")).await?;
            ensure!(position == (next - 1).to_string(), "{name} is at {position}, its last effect at {}", next - 1);
        }
        ensure!(told.is_empty(), "answered without an effect: {told:?}");
        Ok(())
    }
}
