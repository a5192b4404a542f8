//! Clients that move money, the load of the crash and failover tests. Each transfer must happen once,
//! whatever happens to the server in the meantime. Only the extension keeps a retried transfer from
//! being executed again, because the table of effects has no constraint.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::limits::LIMIT;
use crate::load::lock;

const DATABASE: &str = "bank";
const ACCOUNTS: i32 = 8;
const OPENING_BALANCE: i64 = 1000;

/// A client gives up an attempt that has no answer after this time.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// After this share of the failed attempts, the client does not try again.
const ABANDON_RATE: f64 = 0.2;

/// The answers that the clients got.
#[derive(Default)]
struct Told {
    /// The response to each request whose COMMIT was answered.
    acknowledged: HashMap<String, String>,
    /// The requests that a client gave up after a failed attempt. They took effect once or not at all.
    abandoned: Vec<String>,
}

/// The clients at work.
pub struct Bank {
    shared: Arc<Shared>,
    clients: JoinSet<Result<()>>,
}

struct Shared {
    /// The connection string of the server.
    server: Mutex<String>,
    told: Mutex<Told>,
    retries: AtomicUsize,
    closing: AtomicBool,
}

/// The answer to an attempt.
enum Answer {
    Response(String),
    /// Another attempt is at work.
    InProgress,
}

impl Bank {
    /// Creates the database and starts this number of clients.
    pub fn open(server: &Cluster, clients: usize) -> Result<Self> {
        Self::open_with(server, clients, "SELECT idem_create_session('transfers')")
    }

    /// The same, where the outcomes are kept in a journal.
    pub fn open_with_journal(server: &Cluster, clients: usize) -> Result<Self> {
        let session =
            "SELECT idem_create_journal('transfer'); SELECT idem_create_session('transfers', journal => 'transfer')";
        Self::open_with(server, clients, session)
    }

    fn open_with(server: &Cluster, clients: usize, session: &str) -> Result<Self> {
        server.create_database(DATABASE)?;
        server.psql(
            DATABASE,
            &format!(
                "{session};
                 CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
                 INSERT INTO account SELECT n, {OPENING_BALANCE} FROM generate_series(0, {ACCOUNTS} - 1) n;
                 CREATE TABLE effect (key text NOT NULL, attempt text NOT NULL);
                 CREATE INDEX ON effect (key);"
            ),
        )?;
        let shared = Arc::new(Shared {
            server: Mutex::new(server.connect_string(DATABASE, "postgres")),
            told: Mutex::default(),
            retries: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let mut running = JoinSet::new();
        for _ in 0..clients {
            running.spawn(Arc::clone(&shared).client());
        }
        Ok(Self { shared, clients: running })
    }

    /// Sends all further attempts to another server.
    pub fn move_to(&self, server: &Cluster) {
        *lock(&self.shared.server) = server.connect_string(DATABASE, "postgres");
    }

    /// Waits until this number of further transfers has been acknowledged.
    pub async fn progress(&mut self, transfers: usize) -> Result<()> {
        let wanted = lock(&self.shared.told).acknowledged.len() + transfers;
        let start = Instant::now();
        while lock(&self.shared.told).acknowledged.len() < wanted {
            if let Some(ended) = self.clients.try_join_next() {
                ended?.context("a client gave up")?;
            }
            ensure!(start.elapsed() <= LIMIT, "the clients do not get on");
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Lets the clients finish their last transfer, and proves the answers that they got. Returns the number
    /// of their retries.
    pub async fn close(mut self, server: &Cluster) -> Result<usize> {
        self.shared.closing.store(true, Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended?.context("a client gave up")?;
        }
        let told = std::mem::take(&mut *lock(&self.shared.told));
        prove(server, &told).await?;
        Ok(self.shared.retries.load(Relaxed))
    }
}

impl Shared {
    async fn client(self: Arc<Self>) -> Result<()> {
        let mut connection = None;
        while !self.closing.load(Relaxed) {
            let key = Uuid::now_v7().to_string();
            match self.submit(&mut connection, &key).await? {
                Some(response) => _ = lock(&self.told).acknowledged.insert(key, response),
                None => lock(&self.told).abandoned.push(key),
            }
        }
        Ok(())
    }

    /// Tries until there is an answer. Returns `None` if the client gave up.
    async fn submit(&self, connection: &mut Option<Connection>, key: &str) -> Result<Option<String>> {
        let (debit, credit) = (rand::rng().random_range(0..ACCOUNTS), rand::rng().random_range(0..ACCOUNTS));
        let start = Instant::now();
        loop {
            let error = match timeout(PATIENCE, self.attempt(connection, key, debit, credit)).await {
                Ok(Ok(Answer::Response(response))) => return Ok(Some(response)),
                Ok(Ok(Answer::InProgress)) | Err(_) => None,
                Ok(Err(error)) => Some(error),
            };
            *connection = None;
            self.retries.fetch_add(1, Relaxed);
            if let Some(error) = error
                && (!may_fare_better(&error) || start.elapsed() > LIMIT)
            {
                return Err(error).with_context(|| format!("transfer {key}"));
            }
            if rand::rng().random_bool(ABANDON_RATE) {
                return Ok(None);
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt(
        &self,
        connection: &mut Option<Connection>,
        key: &str,
        debit: i32,
        credit: i32,
    ) -> Result<Answer, tokio_postgres::Error> {
        let connection = match connection {
            Some(open) => open,
            none => {
                let server = lock(&self.server).clone();
                none.insert(Connection::open(&server).await?)
            }
        };
        let begin = format!(
            "BEGIN; SELECT status, response ->> 'attempt'
               FROM idem_begin('transfers', '{key}', payload => '{{\"debit\": {debit}, \"credit\": {credit}}}')"
        );
        let ticket = connection.try_text(&begin).await?;
        match ticket.split_once('|') {
            Some(("started", _)) => {}
            Some(("succeeded", response)) => {
                connection.try_text("COMMIT").await?;
                return Ok(Answer::Response(response.to_owned()));
            }
            _ => {
                connection.try_text("ROLLBACK").await?;
                return Ok(Answer::InProgress);
            }
        }
        // The updates are in the order of the accounts, so that no two transfers block each other.
        let attempt = Uuid::new_v4();
        let work = format!(
            "UPDATE account SET balance = balance + CASE id WHEN {credit} THEN 1 ELSE 0 END
                                                  - CASE id WHEN {debit} THEN 1 ELSE 0 END
              WHERE id = LEAST({debit}, {credit});
             UPDATE account SET balance = balance + CASE id WHEN {credit} THEN 1 ELSE 0 END
                                                  - CASE id WHEN {debit} THEN 1 ELSE 0 END
              WHERE id = GREATEST({debit}, {credit}) AND {debit} <> {credit};
             INSERT INTO effect VALUES ('{key}', '{attempt}')"
        );
        connection.try_text(&work).await?;
        let record = format!("SELECT FROM idem_record('transfers', '{key}', '{{\"attempt\": \"{attempt}\"}}')");
        connection.try_text(&record).await?;
        connection.try_text("COMMIT").await?;
        Ok(Answer::Response(attempt.to_string()))
    }
}

/// Whether the next attempt may succeed: after a broken connection, if the server is not there, and after a
/// collision. Any other error is a mistake that a retry does not mend.
fn may_fare_better(error: &tokio_postgres::Error) -> bool {
    match error.code().map(|code| code.code()) {
        Some(code) => ["08", "40", "53", "57"].contains(&&code[..2]),
        None => true,
    }
}

/// Proves that the sum of the money is unchanged, that no transfer took effect twice, that each acknowledged
/// response belongs to the one effect and is replayed, and that an abandoned transfer took effect if and only
/// if it has an outcome.
async fn prove(server: &Cluster, told: &Told) -> Result<()> {
    // Attempts that a client has given up may still be at work.
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'bank' AND pid <> pg_backend_pid()";
    server.wait_for(DATABASE, busy, "0").await?;

    let connection = server.connect(DATABASE).await?;
    let money = connection.text("SELECT sum(balance) FROM account").await?;
    ensure!(money == (i64::from(ACCOUNTS) * OPENING_BALANCE).to_string(), "there is {money} in the accounts");
    let twice = connection.text("SELECT key FROM effect GROUP BY key HAVING count(*) > 1").await?;
    ensure!(twice.is_empty(), "executed more than once:\n{twice}");

    let keys: Vec<&str> = told.acknowledged.keys().chain(&told.abandoned).map(String::as_str).collect();
    let found = connection
        .text(&format!(
            "SELECT key, e.attempt, t.status, t.response ->> 'attempt'
               FROM unnest('{{{}}}'::text[]) key
               LEFT JOIN effect e USING (key)
               CROSS JOIN LATERAL idem_lookup('transfers', key) t",
            keys.join(",")
        ))
        .await?;
    let mut effects = 0;
    for line in found.lines() {
        let columns: Vec<&str> = line.split('|').collect();
        let [key, effect, status, response] = columns[..] else { anyhow::bail!("cannot read {line:?}") };
        match told.acknowledged.get(key) {
            Some(answer) => ensure!(
                (effect, status, response) == (answer.as_str(), "succeeded", answer.as_str()),
                "transfer {key} was answered with {answer}, but: {line}"
            ),
            None => ensure!(
                (status == "succeeded" && !effect.is_empty() && effect == response)
                    || (status == "unknown" && effect.is_empty()),
                "effect and outcome of the abandoned transfer {key} do not agree: {line}"
            ),
        }
        effects += usize::from(!effect.is_empty());
    }
    ensure!(found.lines().count() == keys.len(), "not each request was looked up");
    let all = connection.text("SELECT count(*) FROM effect").await?;
    ensure!(all == effects.to_string(), "{all} effects, of which {effects} were asked for");
    Ok(())
}
