//! Clients that number their requests and keep the rules for that, whatever is done to them and their
//! server meanwhile. Each request is sent by two connections at the same time, which both go on until
//! they have its answer; only then comes the next. Nothing but the extension keeps them from executing
//! it twice: the table of effects has no constraint.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use rand::RngExt;
use tokio::time::{Duration, Instant, sleep};

use crate::{Cluster, Connection, LIMIT};

/// How the connections are known to whoever watches or disturbs them.
pub const APPLICATION: &str = "sender";

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Whoever has to wait longer than this on any machine is stuck.
const PATIENCE: &str = "2 min";

/// The longest range that a request takes where the order is strict.
const RANGE_MAX: i64 = 3;

/// A client session.
struct Session {
    name: String,
    strict: bool,
    /// Up to where each lane has its answers; a lane has every so-many-th number. One, if strict.
    lanes: Vec<AtomicI64>,
}

/// A request, as both connections send it.
struct Request<'a> {
    session: &'a str,
    first: i64,
    last: i64,
    /// All up to here have their answers.
    acked: i64,
}

/// What clients met with.
#[derive(Debug, Default)]
pub struct Tally {
    /// Their own doing.
    pub rolled_back: AtomicUsize,
    /// 57014
    pub cancelled: AtomicUsize,
    /// No server, or not for them.
    pub disconnected: AtomicUsize,
    /// 40001
    pub unserializable: AtomicUsize,
    /// The other connection was at it, and the wait ran out.
    pub in_progress: AtomicUsize,
    /// The other connection had executed it.
    pub replayed: AtomicUsize,
}

/// The clients.
pub struct Senders<'a> {
    /// Where their server is.
    cluster: Mutex<&'a Cluster>,
    database: &'a str,
    sessions: Vec<Session>,
    /// Who executed the request, as both connections were told, by session and first number.
    told: Mutex<HashMap<(usize, i64), usize>>,
    /// See there.
    pub tally: Tally,
    /// Whether somebody rewrites tables meanwhile, which may end in a deadlock (40P01) now and then.
    pub beside_rewrites: bool,
}

impl<'a> Senders<'a> {
    /// Registers them, in a database with the extension: so many sessions with numbers in any order,
    /// each with `window` requests in flight, and so many in strict order.
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
            // Saved, so that a crash does not take it.
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

    /// Where further connections go.
    pub fn move_to(&self, cluster: &'a Cluster) {
        *lock(&self.cluster) = cluster;
    }

    /// Sends until each lane has this number of further requests answered.
    pub async fn send(&self, requests: usize) -> Result<()> {
        let lanes = self.sessions.iter().enumerate().flat_map(|(number, session)| {
            (0..session.lanes.len()).map(move |lane| self.send_lane(number, lane, requests))
        });
        try_join_all(lanes).await?;
        Ok(())
    }

    /// How many requests have been answered.
    pub fn answered(&self) -> usize {
        lock(&self.told).len()
    }

    /// Waits until so many more have been.
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
        // Who sends is told apart all over the test.
        let id = 1000 * number + 2 * lane;
        let (mut one, mut other) = (self.connect().await?, self.connect().await?);
        // After the last that was answered, if this is not the first time.
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
            ensure!(by == also, "request {first} of {} was executed by {by}, says one, the other {also}", session.name);
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
            // What disturbs the clients may hit this, too, and the server may be another one by now.
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

    /// Who executed the request.
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
                        // The server is shut down, crashed, or not yet up; or the connection alone is ended.
                        None | Some("57P01" | "57P02" | "57P03") => &self.tally.disconnected,
                        Some(_) => return Err(error.into()),
                    };
                    count(met);
                    // A rollback fails where the connection is gone, or a late cancel hits it.
                    if connection.text("ROLLBACK").await.is_err() {
                        *connection = self.connect().await?;
                    }
                }
            }
        }
    }

    /// One transaction; the answer once that is committed.
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
            // Done, and taken back.
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

    /// Each request took effect once, by whom both connections were told, and no number was left out.
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

fn count(what: &AtomicUsize) {
    what.fetch_add(1, Relaxed);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
