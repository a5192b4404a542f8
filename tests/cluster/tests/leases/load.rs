//! Workers under load, while they and the server are killed.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};
use idempotence_cluster_tests::crashes::Crash;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::start_synchronous;
use idempotence_cluster_tests::workers::{APPLICATION, Workers};
use idempotence_cluster_tests::{Cluster, Version};
use rand::RngExt;

const CRASHES: usize = 6;

/// Lets the workers do all requests, and crashes the server in the meantime.
async fn work_through_crashes(server: &Cluster, workers: &Workers<'_>, requests: usize) -> Result<()> {
    let crashes = async {
        for round in 0..CRASHES {
            workers.progress(rand::rng().random_range(1..requests / CRASHES)).await?;
            Crash::ALL[round % Crash::ALL.len()].of(server, DATABASE, APPLICATION).await?;
        }
        Ok(())
    };
    tokio::try_join!(workers.work(), crashes)?;
    workers.prove().await
}

// Goal: each request is recorded once, and never by a worker whose claim was superseded.
// Method: see `workers`. Eight workers have leases of 300 ms. They are killed, or stopped for longer than their
// lease, and the server crashes in each way.
pub async fn each_request_is_recorded_once_whatever_workers_and_servers_do(version: Version) -> Result<()> {
    let (server, requests) = (shop::start_preloaded(version)?, requests(1_500, 10_000));
    let workers = Workers::new(&server, DATABASE, requests)?;
    work_through_crashes(&server, &workers, requests).await?;
    workers.tally.check()
}

// Goal: the same where claims are unlogged: a worker whose claim a crash took away does not record.
// Method: the same with unlogged claims, without the worker in the server.
pub async fn unlogged_claims_that_a_crash_takes_away_never_record(version: Version) -> Result<()> {
    let (server, requests) = (shop::start(version)?, requests(500, 5_000));
    ensure!(server.psql(DATABASE, "SELECT idem_set_persistence('claims', 'unlogged')")? == "t\n");
    let workers = Workers::new(&server, DATABASE, requests)?;
    workers.loses_claims.store(true, Relaxed);
    work_through_crashes(&server, &workers, requests).await?;
    workers.tally.check()
}

// Goal: with synchronous replication, a failover loses no claim, and lets no superseded claim record.
// Method: the same workers. The primary is killed, the standby is promoted, and the workers go to it.
pub async fn a_failover_under_load_revives_no_claim(version: Version) -> Result<()> {
    let (primary, requests) = (shop::start_preloaded(version)?, requests(500, 5_000));
    let standby = start_synchronous(&primary, "on").await?;
    let workers = Workers::new(&primary, DATABASE, requests)?;
    let failover = async {
        workers.progress(rand::rng().random_range(requests / 4..requests / 2)).await?;
        primary.kill9()?;
        standby.promote()?;
        workers.move_to(&standby);
        Ok(())
    };
    tokio::try_join!(workers.work(), failover)?;
    workers.prove().await?;
    workers.tally.check()
}
