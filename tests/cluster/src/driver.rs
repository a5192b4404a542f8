//! Clients that send requests until each is answered, to whatever stands between them and the servers, and the proof that
//! each took effect once.
//!
//! [`Work`] says what a request does. [`Load`] runs the clients. [`Report`] is what came of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::connection::{Connection, describe};
use crate::limits::LIMIT;
use crate::load::lock;

/// The application name of the clients.
pub const APPLICATION: &str = "payer";

/// A client gives up an attempt that has no answer after this time.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// After this share of the failed attempts, the client does not try again.
const ABANDON_RATE: f64 = 0.1;

/// This share of the answered requests is sent once more.
const REPEAT_RATE: f64 = 0.2;

/// An attempt at a request.
pub struct Attempt {
    /// The key of the request.
    pub key: String,
    /// The name of this attempt. The response has to contain it, so that an answer can be held against the effects.
    pub name: String,
}

/// What a request does.
pub trait Work: Send + Sync + 'static {
    /// The way that an attempt takes, of those that the clients know. On a Citus cluster 0 is that to the coordinator.
    fn node(&self, _nodes: usize) -> usize {
        0
    }

    /// A statement that goes before the begin, by itself.
    fn opening(&self, _attempt: &Attempt) -> Option<&'static str> {
        None
    }

    /// SQL that begins the request. It returns a status and the name of the attempt that has executed the request. A
    /// status other than `started` and `succeeded` means that the client has to come again.
    fn begin(&self, attempt: &Attempt) -> String;

    /// The steps after `started`, of which the last commits.
    fn execute(&self, attempt: &Attempt) -> Vec<String>;

    /// SQL that ends the transaction in which the answer was `succeeded`.
    fn end(&self) -> &'static str {
        "COMMIT"
    }

    /// SQL that returns the key and the attempt of each effect.
    fn effects(&self) -> String;

    /// How many effects a request has.
    fn effects_each(&self) -> usize;

    /// SQL that returns key, status and attempt of the outcome of each key of `keys`, which are SQL: a text array.
    fn outcomes(&self, keys: &str) -> String;
}

/// The answers that the clients got.
#[derive(Default)]
struct Told {
    /// The attempt that each acknowledged request was executed by.
    acknowledged: HashMap<String, String>,
    /// The requests that a client gave up after a failed attempt.
    abandoned: Vec<String>,
    /// The errors that attempts met, by SQLSTATE and message, and how often.
    errors: BTreeMap<String, usize>,
}

/// What became of the requests.
#[derive(Debug)]
pub struct Report {
    /// How many were answered.
    pub answered: usize,
    /// How many further attempts it took.
    pub retries: usize,
    /// The requests that took effect more than once.
    pub doubled: Vec<String>,
    /// The requests that were answered, and whose effect is not there or not whole; or whose outcome is not there.
    pub lost: Vec<String>,
    /// The requests given up whose effect and outcome do not agree.
    pub torn: Vec<String>,
    /// The errors that attempts met, and how often.
    pub errors: BTreeMap<String, usize>,
}

impl Report {
    /// Prints how many requests were answered, and the errors on the way.
    pub fn tell(&self, what: &str) {
        println!("{what}: {} answered, {} retries", self.answered, self.retries);
        self.errors.iter().for_each(|(error, count)| println!("  {count} × {error}"));
    }

    /// Fails unless each request took effect once.
    pub fn check(&self) -> Result<()> {
        let Self { doubled, lost, torn, .. } = self;
        ensure!(doubled.is_empty() && lost.is_empty() && torn.is_empty(), "{self:#?}");
        Ok(())
    }
}

/// The clients at work.
pub struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<Result<()>>,
}

struct Shared {
    work: Box<dyn Work>,
    /// The connection strings, of the nodes or of other ways to a server.
    nodes: Vec<String>,
    told: Mutex<Told>,
    retries: AtomicUsize,
    closing: AtomicBool,
}

impl Load {
    /// Starts this number of clients, which connect by these strings. [`Work::node`] chooses among them.
    pub fn through(ways: Vec<String>, work: impl Work, clients: usize) -> Self {
        let shared = Arc::new(Shared {
            work: Box::new(work),
            nodes: ways,
            told: Mutex::default(),
            retries: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let mut running = JoinSet::new();
        for _ in 0..clients {
            running.spawn(Arc::clone(&shared).client());
        }
        Self { shared, clients: running }
    }

    /// The number of requests that have been answered.
    pub fn answered(&self) -> usize {
        lock(&self.shared.told).acknowledged.len()
    }

    /// Waits until this number of further requests has been answered.
    pub async fn progress(&mut self, requests: usize) -> Result<()> {
        let (start, wanted) = (Instant::now(), self.answered() + requests);
        while self.answered() < wanted {
            if let Some(ended) = self.clients.try_join_next() {
                ended?.context("a client gave up")?;
            }
            ensure!(start.elapsed() <= LIMIT, "the clients do not get on: {:#?}", lock(&self.shared.told).errors);
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Lets the clients finish, and compares the answers with the tables of one server, as a superuser of it.
    pub async fn close_on(mut self, server: &Connection) -> Result<Report> {
        self.end().await?;
        wait_until_idle(server).await?;
        let told = std::mem::take(&mut *lock(&self.shared.told));
        compare(server, &*self.shared.work, told, self.shared.retries.load(Relaxed)).await
    }

    /// Lets the clients finish.
    pub async fn end(&mut self) -> Result<()> {
        self.shared.closing.store(true, Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended?.context("a client gave up")?;
        }
        Ok(())
    }
}

/// Waits until no client is at work on the server: attempts that a client has given up may still be.
pub async fn wait_until_idle(server: &Connection) -> Result<()> {
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                AND pid <> pg_backend_pid() AND state <> 'idle'";
    let start = Instant::now();
    while server.text(busy).await? != "0" {
        ensure!(start.elapsed() <= LIMIT, "attempts that were given up do not end");
        sleep(PAUSE).await;
    }
    Ok(())
}

impl Shared {
    async fn client(self: Arc<Self>) -> Result<()> {
        let mut connections = self.nodes.iter().map(|_| None).collect::<Vec<Option<Connection>>>();
        while !self.closing.load(Relaxed) {
            let key = Uuid::now_v7().to_string();
            match self.submit(&mut connections, &key).await? {
                Some(attempt) => {
                    // A copy that comes late, perhaps to another node.
                    if rand::rng().random_bool(REPEAT_RATE)
                        && let Some(again) = self.submit(&mut connections, &key).await?
                    {
                        ensure!(again == attempt, "request {key} was answered by {attempt}, and then by {again}");
                    }
                    lock(&self.told).acknowledged.insert(key, attempt);
                }
                None => lock(&self.told).abandoned.push(key),
            }
        }
        Ok(())
    }

    /// Tries until there is an answer. Returns `None` if the client gave up.
    async fn submit(&self, connections: &mut [Option<Connection>], key: &str) -> Result<Option<String>> {
        let start = Instant::now();
        loop {
            let node = self.work.node(self.nodes.len());
            let answer = timeout(PATIENCE, self.attempt(&mut connections[node], node, key)).await;
            let error = match answer {
                Ok(Ok(Some(executed_by))) => return Ok(Some(executed_by)),
                Ok(Ok(None)) => None,
                Ok(Err(error)) => Some(error),
                Err(_) => {
                    self.note("no answer".into());
                    connections[node] = None;
                    None
                }
            };
            self.retries.fetch_add(1, Relaxed);
            if let Some(error) = error {
                let is_mistake = error.code().is_some_and(|code| ["22", "23", "42"].contains(&&code.code()[..2]));
                let error = describe(error);
                self.note(what(&error));
                connections[node] = None;
                ensure!(!is_mistake && start.elapsed() < LIMIT, "request {key}: {error:#}");
            }
            if rand::rng().random_bool(ABANDON_RATE) {
                return Ok(None);
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the attempt that has executed the request; `None` if the client has to come again.
    async fn attempt(
        &self,
        connection: &mut Option<Connection>,
        node: usize,
        key: &str,
    ) -> Result<Option<String>, tokio_postgres::Error> {
        let connection = match connection {
            Some(open) => open,
            none => {
                let place = format!("{} application_name={APPLICATION}", self.nodes[node]);
                none.insert(Connection::open(&place).await?)
            }
        };
        let attempt = Attempt { key: key.into(), name: Uuid::new_v4().to_string() };
        if let Some(opening) = self.work.opening(&attempt) {
            connection.try_text(opening).await?;
        }
        let ticket = connection.try_text(&self.work.begin(&attempt)).await?;
        match ticket.split_once('|') {
            Some(("started", _)) => {
                for step in self.work.execute(&attempt) {
                    connection.try_text(&step).await?;
                }
                Ok(Some(attempt.name))
            }
            Some(("succeeded", executed_by)) => {
                connection.try_text(self.work.end()).await?;
                Ok(Some(executed_by.to_owned()))
            }
            _ => {
                connection.try_text("ROLLBACK").await?;
                Ok(None)
            }
        }
    }

    fn note(&self, error: String) {
        *lock(&self.told).errors.entry(error).or_default() += 1;
    }
}

/// An error without what is different each time: names of sockets, numbers and keys.
fn what(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let first = text.lines().next().unwrap_or_default();
    let plain = |word: &str| {
        let names = word.contains('/') || word.len() > 30;
        if names { "…".to_owned() } else { word.replace(|c: char| c.is_ascii_digit(), "#") }
    };
    let (state, message) = first.split_once(' ').unwrap_or(("", first));
    format!("{state} {}", message.split(' ').map(plain).collect::<Vec<_>>().join(" "))
}

async fn compare(connection: &Connection, work: &dyn Work, told: Told, retries: usize) -> Result<Report> {
    let mut effects: HashMap<String, Vec<String>> = HashMap::new();
    for line in connection.text(&work.effects()).await?.lines() {
        let (key, attempt) = line.split_once('|').context("no key and attempt")?;
        effects.entry(key.into()).or_default().push(attempt.into());
    }
    let keys: Vec<&str> = told.acknowledged.keys().chain(&told.abandoned).map(String::as_str).collect();
    let mut outcomes: HashMap<String, String> = HashMap::new();
    for some in keys.chunks(1000) {
        for line in connection.text(&work.outcomes(&format!("'{{{}}}'::text[]", some.join(",")))).await?.lines() {
            let (key, outcome) = line.split_once('|').context("no key and outcome")?;
            outcomes.insert(key.into(), outcome.into());
        }
    }
    let mut report = Report {
        answered: told.acknowledged.len(),
        retries,
        doubled: Vec::new(),
        lost: Vec::new(),
        torn: Vec::new(),
        errors: told.errors,
    };
    for (key, attempts) in &effects {
        if attempts.len() > work.effects_each() || attempts.iter().any(|attempt| attempt != &attempts[0]) {
            report.doubled.push(format!("{key}: {attempts:?}, answer {:?}", told.acknowledged.get(key)));
        }
    }
    let of = |key: &str| {
        let attempts = effects.get(key).map(Vec::as_slice).unwrap_or_default();
        let whole = attempts.len() >= work.effects_each();
        (attempts, whole, outcomes.get(key).map_or("", String::as_str))
    };
    for (key, answer) in &told.acknowledged {
        let (attempts, whole, outcome) = of(key);
        if !whole || !attempts.contains(answer) || outcome != format!("succeeded|{answer}") {
            report.lost.push(format!("{key}: answer {answer}, effects {attempts:?}, outcome {outcome:?}"));
        }
    }
    for key in &told.abandoned {
        let (attempts, whole, outcome) = of(key);
        let agrees = match outcome.strip_prefix("succeeded|") {
            Some(executed_by) => whole && attempts.iter().all(|attempt| attempt == executed_by),
            None => attempts.is_empty() && !outcome.is_empty(),
        };
        if !agrees {
            report.torn.push(format!("{key}: effects {attempts:?}, outcome {outcome:?}"));
        }
    }
    ensure!(outcomes.len() == keys.len(), "not each request was looked up");
    Ok(report)
}
