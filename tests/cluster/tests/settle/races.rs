//! Executors and settlers that race for the same requests, while the server crashes or fails over.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::crashes::Crash;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::limits::{LIMIT, PATIENCE};
use idempotence_cluster_tests::load::{check_happened, lock};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::start_synchronous;
use idempotence_cluster_tests::{Cluster, Connection, Version};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::pair::Pair;

const PAIRS: usize = 6;
pub const APPLICATION: &str = "racer";

/// The tables have no constraint. The indexes are for the long form.
const SETUP: &str = "
    SELECT idem_create_session('jobs', ttl => '30 days');
    CREATE TABLE effect (request text NOT NULL);
    CREATE TABLE verdict (request text NOT NULL, key text, status text NOT NULL, response jsonb);
    CREATE INDEX ON effect (request);
    CREATE INDEX ON verdict (request)";

/// What all pairs share.
pub struct Race {
    /// The connection string of the server.
    server: Mutex<String>,
    /// The client session of the numbered requests.
    pub client: String,
    /// Whether transactions may lower `synchronous_commit` in the settler, too.
    pub settles_lightly: bool,
    pub tally: Tally,
}

/// What the pairs met with.
#[derive(Debug, Default)]
pub struct Tally {
    pub settled: AtomicUsize,
    pub cancelled: AtomicUsize,
    pub succeeded: AtomicUsize,
    /// A settler found a request in flight.
    pub in_progress: AtomicUsize,
    /// A settler superseded a lease that had run out.
    pub superseded: AtomicUsize,
    /// A late record was refused.
    pub fenced: AtomicUsize,
    pub in_doubt: AtomicUsize,
    pub disconnected: AtomicUsize,
    pub rolled_back: AtomicUsize,
}

impl Race {
    async fn new(server: &Cluster, settles_lightly: bool) -> Result<Arc<Self>> {
        server.psql(DATABASE, SETUP)?;
        let connection = server.connect(DATABASE).await?;
        let client = connection.register("window_size => 4, timeout => '1 day'").await?;
        // This saves the session, so that it outlives a crash.
        connection.text(&format!("SELECT idem_ack('{client}', 1, 'another stream')")).await?;
        let server = Mutex::new(server.connect_string(DATABASE, "postgres"));
        Ok(Arc::new(Self { server, client, settles_lightly, tally: Tally::default() }))
    }

    pub async fn connect(&self) -> Result<Connection> {
        let start = Instant::now();
        loop {
            let server = lock(&self.server).clone();
            if let Ok(connection) = Connection::open(&server).await {
                let settings = format!("SET application_name = '{APPLICATION}'; SET idempotence.wait = '{PATIENCE}'");
                if connection.try_text(&settings).await.is_ok() {
                    return Ok(connection);
                }
            }
            ensure!(start.elapsed() <= LIMIT, "nobody lets the clients in");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs the pairs beside `disturb`.
    async fn run(self: &Arc<Self>, requests: usize, disturb: impl Future<Output = Result<()>>) -> Result<()> {
        let mut pairs = JoinSet::new();
        for number in 0..PAIRS {
            let race = Arc::clone(self);
            pairs.spawn(async move { Pair::start(race, number).await?.race(requests / PAIRS).await });
        }
        let pairs = async {
            while let Some(ended) = pairs.join_next().await {
                ended?.context("a pair gave up")?;
            }
            Ok(())
        };
        tokio::try_join!(disturb, pairs).map(drop)
    }

    /// Waits until this number of further requests is settled.
    async fn progress(&self, requests: usize) -> Result<()> {
        let settled = || self.tally.settled.load(Relaxed);
        let (mut last, wanted) = ((settled(), Instant::now()), settled() + requests);
        while settled() < wanted {
            if settled() > last.0 {
                last = (settled(), Instant::now());
            }
            ensure!(last.1.elapsed() <= LIMIT, "the pairs do not get on");
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Compares all verdicts with the effects, and with what the server still says of the requests with a key.
    async fn prove(&self, server: &Cluster, requests: usize) -> Result<()> {
        let connection = server.reconnect(DATABASE).await?;
        let wrong = connection
            .text(
                "SELECT v.*, e.effects FROM verdict v
                  CROSS JOIN LATERAL (SELECT count(*) AS effects FROM effect e WHERE e.request = v.request) e
                  WHERE e.effects <> CASE v.status WHEN 'cancelled' THEN 0 ELSE 1 END",
            )
            .await?;
        ensure!(wrong.is_empty(), "verdicts and effects differ:\n{wrong}");
        let wrong = connection
            .text(
                "SELECT v.*, t.status, t.response FROM verdict v, idem_lookup('jobs', v.key) t
                  WHERE v.key IS NOT NULL AND (v.status, v.response) IS DISTINCT FROM (t.status, t.response)",
            )
            .await?;
        ensure!(wrong.is_empty(), "verdicts were turned over:\n{wrong}");
        let count = "SELECT count(*), count(DISTINCT request), (SELECT count(*) FROM effect e WHERE NOT EXISTS
                                                             (SELECT FROM verdict v WHERE v.request = e.request))
                       FROM verdict";
        let all = requests / PAIRS * PAIRS;
        ensure!(connection.text(count).await? == format!("{all}|{all}|0"), "not each request has one verdict");
        println!("{:?}", self.tally);
        let tally = &self.tally;
        check_happened(&[
            ("cancelled request", &tally.cancelled),
            ("request that succeeded", &tally.succeeded),
            ("request in flight", &tally.in_progress),
            ("lease that was superseded", &tally.superseded),
            ("late record", &tally.fenced),
            ("lost connection", &tally.disconnected),
            ("settling that was rolled back", &tally.rolled_back),
        ])
    }
}

// Goal: after a committed `cancelled` no effect ever appears, and after `succeeded` it is always there, whenever
// the server crashes.
// Method: see `pair`. The crashes are of each kind. Executors also commit without waiting for the flush.
pub async fn a_verdict_stands_whatever_crashes(version: Version) -> Result<()> {
    const CRASHES: usize = 6;
    let (server, requests) = (shop::start_preloaded(version)?, requests(5_000, 100_000));
    let race = Race::new(&server, true).await?;
    let crashes = async {
        for round in 0..CRASHES {
            race.progress(rand::rng().random_range(1..requests / CRASHES)).await?;
            Crash::ALL[round % Crash::ALL.len()].of(&server, DATABASE, APPLICATION).await?;
        }
        Ok(())
    };
    race.run(requests, crashes).await?;
    race.prove(&server, requests).await
}

// Goal: the same through a failover, with a synchronous standby.
// Method: the same pairs. The primary is killed, the standby is promoted, and the pairs go to it.
pub async fn a_verdict_stands_through_a_failover(version: Version) -> Result<()> {
    let (primary, requests) = (shop::start(version)?, requests(1_500, 30_000));
    let standby = start_synchronous(&primary, "on").await?;
    let race = Race::new(&primary, false).await?;
    let failover = async {
        race.progress(rand::rng().random_range(requests / 4..requests / 2)).await?;
        primary.kill9()?;
        standby.promote()?;
        *lock(&race.server) = standby.connect_string(DATABASE, "postgres");
        Ok(())
    };
    race.run(requests, failover).await?;
    race.prove(&standby, requests).await
}
