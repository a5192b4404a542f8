//! Every use of the extension at the same time and without a pause: keys, numbers, checkpoints, inboxes and
//! fencing. A test disturbs the server in the meantime. At the end the load proves that nothing was done
//! twice, that nothing was lost, and that no client got an error that the reference does not name.
//!
//! Only the extension keeps an effect from happening twice, because the tables of effects have no constraint.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::bank::Bank;
use crate::cluster::Cluster;
use crate::connection::{Connection, describe};
use crate::limits::LIMIT;
use crate::load::lock;
use crate::senders::Senders;

/// The database of the numbers, checkpoints, messages and fences. The keys are in the bank's database.
pub const DATABASE: &str = "work";

/// The number of messages in a batch. Half of them are in the next batch too.
const BATCH: i64 = 20;

/// The errors after which a client should try again, as the reference says.
const RETRIED: [&str; 6] = ["40001", "40P01", "55P03", "57014", "57P01", "25006"];

/// The load and its results.
pub struct Workload<'a> {
    bank: Bank,
    senders: Senders<'a>,
    shared: Arc<Shared>,
    workers: JoinSet<Result<()>>,
}

#[derive(Default)]
struct Shared {
    server: String,
    closing: AtomicBool,
    /// The number of requests whose two steps are both done.
    steps: AtomicUsize,
    /// The number of batches of messages that were sent.
    messages: AtomicUsize,
    /// The number of sessions that were fenced and then refused.
    fenced: AtomicUsize,
    /// The SQLSTATEs after which a client tried again.
    retried: Mutex<Vec<String>>,
}

impl<'a> Workload<'a> {
    /// Starts clients of each kind.
    pub async fn open(server: &'a Cluster) -> Result<Self> {
        let bank = Bank::open(server, 2)?;
        server.create_database(DATABASE)?;
        server.psql(
            DATABASE,
            "SELECT idem_create_session('steps'), idem_create_session('mail', inbox => true);
             CREATE TABLE step (request text NOT NULL, step int NOT NULL);
             CREATE TABLE message (id text NOT NULL);
             CREATE TABLE fence (session text NOT NULL, number bigint NOT NULL)",
        )?;
        let mut senders = Senders::register(server, DATABASE, 2, 3, 1).await?;
        senders.beside_rewrites = true;
        let shared = Arc::new(Shared { server: server.connect_string(DATABASE, "postgres"), ..Shared::default() });
        let mut workers = JoinSet::new();
        for number in 0..2 {
            workers.spawn(Arc::clone(&shared).take_steps(number));
            workers.spawn(Arc::clone(&shared).deduplicate());
            workers.spawn(Arc::clone(&shared).fence(number));
        }
        Ok(Self { bank, senders, shared, workers })
    }

    /// Runs `disturb` beside the clients. Then waits until each kind of client has done some more work.
    pub async fn beside(&mut self, disturb: impl Future<Output = Result<()>>) -> Result<()> {
        let disturbed = async {
            disturb.await?;
            self.bank.progress(10).await?;
            for count in [&self.shared.steps, &self.shared.messages, &self.shared.fenced] {
                let (start, wanted) = (Instant::now(), count.load(Relaxed) + 3);
                while count.load(Relaxed) < wanted {
                    if let Some(ended) = self.workers.try_join_next() {
                        ended?.context("a client gave up")?;
                    }
                    ensure!(start.elapsed() <= LIMIT, "the clients do not get on");
                    sleep(Duration::from_millis(5)).await;
                }
            }
            Ok(())
        };
        let done = AtomicBool::new(false);
        let send = async {
            while !done.load(Relaxed) {
                self.senders.send(5).await?;
            }
            Ok(())
        };
        let disturb = async {
            let disturbed = disturbed.await;
            done.store(true, Relaxed);
            disturbed
        };
        let (disturbed, sent) = tokio::join!(disturb, send);
        sent.and(disturbed)
    }

    /// Ends the load and proves its results.
    pub async fn close(mut self, server: &Cluster) -> Result<()> {
        self.shared.closing.store(true, Relaxed);
        while let Some(ended) = self.workers.join_next().await {
            ended?.context("a client gave up")?;
        }
        self.bank.close(server).await?;
        self.senders.prove().await?;
        let connection = server.connect(DATABASE).await?;
        let is = async |query: &str, wanted: &str| -> Result<()> {
            let found = connection.text(query).await?;
            ensure!(found == wanted, "{query} gives {found} instead of {wanted}");
            Ok(())
        };
        is("SELECT request FROM step GROUP BY request HAVING array_agg(step ORDER BY step) <> '{1,2}'", "").await?;
        let steps = self.shared.steps.load(Relaxed).to_string();
        is("SELECT count(DISTINCT request) FROM step", &steps).await?;
        is("SELECT id FROM message GROUP BY id HAVING count(*) > 1", "").await?;
        is("SELECT count(*) FROM fence GROUP BY session, number HAVING count(*) > 1", "").await?;
        is("SELECT count(*) FROM fence WHERE number > 1", "0").await?;
        println!("tried again on {:?}", lock(&self.shared.retried));
        Ok(())
    }
}

impl Shared {
    async fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(&self.server).await?;
        connection.text("SET idempotence.wait = '1 min'").await?;
        Ok(connection)
    }

    /// Runs statements, in one transaction or several, until they succeed. Returns their rows.
    async fn until_done(&self, connection: &Connection, sql: &str) -> Result<String> {
        let start = Instant::now();
        loop {
            let error = match connection.try_text(sql).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            let state = state_of(&error);
            if !RETRIED.contains(&state) || start.elapsed() > LIMIT {
                return Err(describe(error)).with_context(|| sql.to_owned());
            }
            lock(&self.retried).push(state.to_owned());
            connection.text("ROLLBACK").await?;
        }
    }

    /// Executes requests that have two steps, with a commit between the steps.
    async fn take_steps(self: Arc<Self>, worker: usize) -> Result<()> {
        let connection = self.connect().await?;
        for number in 0.. {
            if self.closing.load(Relaxed) {
                break;
            }
            let request = format!("{worker}-{number}");
            let begin = format!("SELECT status, point FROM idem_begin('steps', '{request}', payload => '{number}')");
            let first = format!(
                "BEGIN; {begin}; INSERT INTO step VALUES ('{request}', 1);
                 SELECT FROM idem_checkpoint('steps', '{request}', 'half', '{{\"n\": {number}}}'); COMMIT"
            );
            let ticket = self.until_done(&connection, &first).await?;
            ensure!(ticket == "started|", "a new request is {ticket}");
            let second = format!(
                "BEGIN; {begin}; INSERT INTO step VALUES ('{request}', 2);
                 SELECT FROM idem_record('steps', '{request}', '{number}'); COMMIT"
            );
            let ticket = self.until_done(&connection, &second).await?;
            ensure!(ticket == "started|half", "a request with a checkpoint is {ticket}");
            let replay = format!("SELECT status, point, response FROM idem_begin('steps', '{request}')");
            let ticket = self.until_done(&connection, &replay).await?;
            ensure!(ticket == format!("succeeded||{number}"), "what was recorded is {ticket}");
            self.steps.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Sends batches of messages. Each batch overlaps with the next, which may be the other worker's.
    async fn deduplicate(self: Arc<Self>) -> Result<()> {
        let connection = self.connect().await?;
        while !self.closing.load(Relaxed) {
            let from = self.messages.fetch_add(1, Relaxed) as i64 * BATCH / 2;
            let keys = format!("(SELECT array_agg('m' || n) FROM generate_series({from}, {from} + {BATCH} - 1) n)");
            let first = format!("INSERT INTO message SELECT request FROM idem_once_many('mail', {keys})");
            self.until_done(&connection, &first).await?;
            let again = format!("SELECT count(*) FROM idem_once_many('mail', {keys})");
            let seen = self.until_done(&connection, &again).await?;
            ensure!(seen == "0", "{seen} messages from {from} on are new again");
        }
        Ok(())
    }

    /// Registers one session of a client after another. Each session fences the one before it.
    async fn fence(self: Arc<Self>, worker: usize) -> Result<()> {
        let connection = self.connect().await?;
        let register = format!("SELECT session FROM idem_register('client {worker}')");
        let send = |session: &str, number: i64| {
            format!(
                "BEGIN; SELECT status FROM idem_begin('{session}', {number}); INSERT INTO fence VALUES ('{session}', {number});
                 SELECT FROM idem_record('{session}', {number}); COMMIT"
            )
        };
        let mut session = self.until_done(&connection, &register).await?;
        while !self.closing.load(Relaxed) {
            if rand::rng().random_bool(0.7) {
                self.until_done(&connection, &send(&session, 1)).await?;
            }
            let newer = self.until_done(&connection, &register).await?;
            loop {
                match connection.try_text(&send(&session, 2)).await {
                    Err(error) if state_of(&error) == "ID005" => break,
                    Err(error) if RETRIED.contains(&state_of(&error)) => connection.text("ROLLBACK").await?,
                    Err(error) => return Err(describe(error)).context("a fenced session"),
                    Ok(_) => bail!("the fenced session {session} executed"),
                };
            }
            connection.text("ROLLBACK").await?;
            self.fenced.fetch_add(1, Relaxed);
            session = newer;
        }
        Ok(())
    }
}

fn state_of(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |state| state.code())
}
