//! The servers of a Citus cluster.

use std::thread;

use anyhow::{Context, Result, ensure};
use tokio::time::{Duration, Instant, sleep};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::driver::{Load, Report, Work, wait_until_idle};
use crate::limits::LIMIT;
use crate::version::Version;

/// The database on all nodes.
pub const DATABASE: &str = "shop";

/// The libraries that a node preloads. Citus refuses any other order.
pub const PRELOADED: &str = "citus,idempotence";

/// The servers of a Citus cluster.
#[derive(Debug)]
pub struct Citus {
    /// All nodes. The first is the coordinator.
    nodes: Vec<Cluster>,
}

impl Citus {
    /// Starts a coordinator and this number of workers.
    pub fn start(workers: usize) -> Result<Self> {
        Self::start_with(workers, PRELOADED, &[])
    }

    /// Starts nodes that preload these libraries, with these settings.
    pub fn start_with(workers: usize, preloaded: &str, settings: &[(&str, &str)]) -> Result<Self> {
        let mut all = vec![
            ("shared_preload_libraries", preloaded),
            ("max_prepared_transactions", "200"),
            ("max_connections", "200"),
            ("wal_level", "logical"),
            ("idempotence.naptime", "1s"),
            ("citus.shard_count", "8"),
            // What a crash leaves prepared on a worker blocks others until Citus finishes it.
            ("citus.recover_2pc_interval", "500ms"),
            ("citus.enable_statistics_collection", "off"),
        ];
        all.extend_from_slice(settings);
        let nodes = thread::scope(|scope| {
            let starting: Vec<_> = (0..=workers).map(|_| scope.spawn(|| start_node(&all))).collect();
            let started = starting.into_iter().map(|node| node.join().expect("a panic of a test ends the test"));
            started.collect::<Result<Vec<_>>>()
        })?;
        let cluster = Self { nodes };
        // Nodes meet through their Unix sockets, which need no password.
        let place = |node: &Cluster| format!("'{}', {}", node.home().display(), node.addr().port());
        // A node that moves a shard also connects to itself.
        for node in cluster.nodes() {
            let to_itself = format!("ALTER SYSTEM SET citus.local_hostname = '{}'", node.home().display());
            node.psql(DATABASE, &to_itself)?;
            node.psql(DATABASE, "SELECT pg_reload_conf()")?;
        }
        let coordinator = cluster.coordinator();
        coordinator.psql(DATABASE, &format!("SELECT citus_set_coordinator_host({})", place(coordinator)))?;
        for worker in cluster.workers() {
            coordinator.psql(DATABASE, &format!("SELECT citus_add_node({})", place(worker)))?;
        }
        Ok(cluster)
    }

    /// The coordinator.
    pub fn coordinator(&self) -> &Cluster {
        &self.nodes[0]
    }

    /// The workers.
    pub fn workers(&self) -> &[Cluster] {
        &self.nodes[1..]
    }

    /// The coordinator and the workers.
    pub fn nodes(&self) -> &[Cluster] {
        &self.nodes
    }

    /// A value of the distribution column of `table` whose shard is on this worker, other than those of `taken`.
    pub async fn tenant_on(&self, table: &str, worker: usize, taken: &[i32]) -> Result<i32> {
        let (taken, port) = (format!("{taken:?}").replace(['[', ']'], ""), self.workers()[worker].addr().port());
        let not_taken = if taken.is_empty() { String::new() } else { format!("AND tenant NOT IN ({taken})") };
        let find = format!(
            "SELECT tenant FROM generate_series(1, 1000) tenant
               JOIN citus_shards s ON s.shardid = get_shard_id_for_distribution_column('{table}', tenant)
              WHERE s.nodeport = {port} {not_taken} LIMIT 1"
        );
        let found = self.coordinator().connect(DATABASE).await?.text(&find).await?;
        found.parse().with_context(|| format!("no shard of {table} is on worker {worker}"))
    }

    /// Starts this number of clients, who know the way to each node.
    pub fn start_load(&self, work: impl Work, clients: usize) -> Load {
        let way = |node: &Cluster| node.connect_string(DATABASE, "postgres");
        Load::through(self.nodes.iter().map(way).collect(), work, clients)
    }

    /// Lets the clients finish, waits until Citus has finished what was left prepared, and compares the answers with the
    /// tables.
    pub async fn close(&self, mut load: Load) -> Result<Report> {
        load.end().await?;
        for node in &self.nodes {
            wait_until_idle(&node.connect(DATABASE).await?).await?;
        }
        self.settle().await?;
        load.close_on(&self.coordinator().connect(DATABASE).await?).await
    }

    /// Waits until nothing is prepared any more: Citus has finished what crashes had left.
    pub async fn settle(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let coordinator = self.coordinator().reconnect(DATABASE).await?;
            // A node that has just come up may not be reached yet.
            let _ = coordinator.try_text("SELECT recover_prepared_transactions()").await;
            let mut prepared = 0;
            for node in &self.nodes {
                prepared += Self::prepared(&node.reconnect(DATABASE).await?).await?;
            }
            if prepared == 0 {
                return Ok(());
            }
            ensure!(start.elapsed() < LIMIT, "{prepared} transactions stay prepared");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many transactions are prepared on a node.
    pub async fn prepared(node: &Connection) -> Result<usize> {
        Ok(node.text("SELECT count(*) FROM pg_prepared_xacts").await?.parse()?)
    }
}

/// Starts a node that knows no other yet.
fn start_node(settings: &[(&str, &str)]) -> Result<Cluster> {
    let node = Cluster::start_with(Version::Pg18, settings)
        .context("the server of IDEM_PG18_CONFIG must have Citus: use `make test-citus`")?;
    node.psql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
    node.psql(DATABASE, "CREATE EXTENSION citus; CREATE EXTENSION idempotence")?;
    Ok(node)
}
