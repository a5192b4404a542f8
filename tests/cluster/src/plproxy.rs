//! PL/Proxy: a server whose functions are executed on one of several shards, each of which is a server by itself.

use std::thread;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::shop::{self, DATABASE};
use crate::version::Version;

/// The name of the cluster of shards.
pub const SHARDS: &str = "shards";

/// What the proxy knows of the shards. PL/Proxy reads the version with each call, and the rest where the version is new.
const CONFIGURATION: &str = "
    CREATE EXTENSION plproxy;
    CREATE SCHEMA plproxy;
    CREATE TABLE plproxy.version (version int NOT NULL);
    CREATE TABLE plproxy.shard (number int PRIMARY KEY, place text NOT NULL);
    CREATE FUNCTION plproxy.get_cluster_version(cluster text) RETURNS int
      LANGUAGE sql AS 'SELECT version FROM plproxy.version';
    CREATE FUNCTION plproxy.get_cluster_partitions(cluster text) RETURNS SETOF text
      LANGUAGE sql AS 'SELECT place FROM plproxy.shard ORDER BY number';
    CREATE FUNCTION plproxy.get_cluster_config(cluster text, OUT key text, OUT val text) RETURNS SETOF record
      LANGUAGE sql AS $$VALUES ('connection_lifetime', '600')$$;
    INSERT INTO plproxy.version VALUES (1)";

/// The name of a shard.
pub fn node(shard: usize) -> String {
    format!("shard-{shard}")
}

/// The proxy and its shards.
pub struct Sharded {
    proxy: Cluster,
    shards: Vec<Cluster>,
}

impl Sharded {
    /// Starts a proxy and this number of shards, which is a power of 2. A shard has a database with the extension, and a
    /// [`node`] of its own.
    pub fn start(shards: usize) -> Result<Self> {
        let start = |number| {
            let node = node(number);
            let preloaded = [("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1s")];
            shop::start_with(Version::Pg15, &[&preloaded[..], &[("idempotence.node", &node)]].concat())
        };
        let shards = thread::scope(|scope| {
            let starting: Vec<_> = (0..shards).map(|number| scope.spawn(move || start(number))).collect();
            let started = starting.into_iter().map(|shard| shard.join().expect("a panic of a test ends the test"));
            started.collect::<Result<Vec<_>>>()
        })?;
        let proxy = Cluster::start(Version::Pg15)?;
        proxy.psql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        proxy
            .psql(DATABASE, CONFIGURATION)
            .context("the server of IDEM_PG15_CONFIG must have PL/Proxy (Debian: postgresql-15-plproxy)")?;
        let sharded = Self { proxy, shards };
        sharded.switch()?;
        Ok(sharded)
    }

    /// The proxy.
    pub fn proxy(&self) -> &Cluster {
        &self.proxy
    }

    /// The shards.
    pub fn shards(&self) -> &[Cluster] {
        &self.shards
    }

    /// Adds shards, which the proxy does not use before the next [`Sharded::switch`].
    pub fn add(&mut self, shards: Vec<Cluster>) {
        self.shards.extend(shards);
    }

    /// Has the proxy use all shards from now on.
    pub fn switch(&self) -> Result<()> {
        let row = |(number, shard): (usize, &Cluster)| {
            format!("({number}, '{}')", shard.connect_string(DATABASE, "postgres").replace('\'', "''"))
        };
        let rows = self.shards.iter().enumerate().map(row).collect::<Vec<_>>().join(", ");
        let switch = format!(
            "BEGIN; DELETE FROM plproxy.shard; INSERT INTO plproxy.shard VALUES {rows};
             UPDATE plproxy.version SET version = version + 1; COMMIT"
        );
        self.proxy.psql(DATABASE, &switch).map(drop)
    }
}
