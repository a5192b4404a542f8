//! A tenant moves to another shard, with its rows and its outcomes, by the steps of docs/scaling.md.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Cluster;
use idempotence_cluster_tests::limits::LIMIT;
use idempotence_cluster_tests::plproxy::{Sharded, node};
use idempotence_cluster_tests::shop::DATABASE;
use std::time::Duration;
use tokio::time::{Instant, sleep};

use super::work::bind;

/// The columns of idem_export.
const COLUMNS: &str = "key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz, \
                       expires_at timestamptz, attempt integer, begun_at timestamptz, leased_until timestamptz, \
                       point text, state jsonb";

/// What a tenant has: outcomes and effects, as COPY gives them.
pub struct Luggage {
    outcomes: String,
    effects: String,
}

impl Luggage {
    /// Leaves the outcomes behind.
    pub fn without_outcomes(self) -> Self {
        Self { outcomes: String::new(), ..self }
    }
}

/// Binds the tenant's session to the shard that it goes to, waits for those at work, and takes what the tenant has.
pub async fn pack(from: &Cluster, tenant: usize, to: usize) -> Result<Luggage> {
    bind(from, tenant, to)?;
    let outcomes = format!("COPY (SELECT * FROM idem_export('tenant-{tenant}', 'moves')) TO STDOUT");
    let outcomes = again(|| from.psql(DATABASE, &outcomes)).await?;
    let effects = format!("COPY (SELECT * FROM effect WHERE tenant = {tenant}) TO STDOUT");
    Ok(Luggage { outcomes, effects: from.psql(DATABASE, &effects)? })
}

/// Brings all that the tenant has into another shard and opens its session there, in one transaction, which may be repeated.
pub fn unpack(luggage: &Luggage, sharded: &Sharded, tenant: usize, to: usize) -> Result<()> {
    let Luggage { outcomes, effects } = luggage;
    let script = format!(
        "BEGIN;
         CREATE TEMPORARY TABLE came ({COLUMNS}) ON COMMIT DROP;
         COPY came FROM STDIN;\n{outcomes}\\.\n
         DELETE FROM effect WHERE tenant = {tenant};
         COPY effect FROM STDIN;\n{effects}\\.\n
         SELECT imported + present FROM idem_import('tenant-{tenant}', 'TABLE came', 'moves');
         SELECT FROM idem_alter_session('tenant-{tenant}', node => '{}');
         COMMIT",
        node(to)
    );
    let told = sharded.shards()[to].psql(DATABASE, &script)?;
    let lines = outcomes.lines().count();
    ensure!(told.trim() == lines.to_string(), "{lines} outcomes were to be there, but: {told}");
    Ok(())
}

/// Sends the tenant's requests to another shard from now on, and removes its rows where it was.
pub fn resettle(sharded: &Sharded, from: &Cluster, to: usize, tenant: usize) -> Result<()> {
    let moved = format!("INSERT INTO moved VALUES ({tenant}, {to}) ON CONFLICT (tenant) DO UPDATE SET shard = {to}");
    sharded.proxy().psql(DATABASE, &moved)?;
    from.psql(DATABASE, &format!("DELETE FROM effect WHERE tenant = {tenant}")).map(drop)
}

/// Repeats a step until its server is up and it succeeds.
pub async fn again<T>(mut step: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match step() {
            Err(error) if start.elapsed() > LIMIT => return Err(error),
            Err(_) => sleep(Duration::from_millis(50)).await,
            done => return done,
        }
    }
}
