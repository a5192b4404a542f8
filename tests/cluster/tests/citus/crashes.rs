//! Load on the coordinator, and kills of all nodes.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::citus::Citus;
use idempotence_cluster_tests::citus::kills::Victim;
use idempotence_cluster_tests::citus::load::Load;
use idempotence_cluster_tests::effort::requests;
use rand::RngExt;

use crate::work::Payment;

const KILLS: usize = 6;

// Goal: whatever is killed, each request that was answered has taken effect once, and each that was given up once or
// not at all, as its outcome says.
// Method: clients send requests to the coordinator. The coordinator, a worker or a backend is killed at random moments,
// until there were enough kills and enough requests.
async fn killed_under_load(citus: &Citus, workers: &[usize]) -> Result<()> {
    let mut load = Load::start(citus, Payment::on(citus, workers).await?, 8);
    let (wanted, kills) = (requests(3000, 12_000), requests(KILLS, 24));
    for turn in 0..kills {
        load.progress(rand::rng().random_range(1..=2 * wanted / kills - 1)).await?;
        Victim::of_turn(turn, citus).kill(citus).await?;
    }
    load.progress(wanted.saturating_sub(load.answered()).max(100)).await?;
    let report = load.close(citus).await?;
    println!("workers {workers:?}: {} answered, {} retries, {kills} kills", report.answered, report.retries);
    report.errors.iter().for_each(|(error, count)| println!("  {count} × {error}"));
    ensure!(report.retries > 0, "no client noticed any of the kills");
    report.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn effects_on_one_worker_and_on_two_happen_once() -> Result<()> {
    let citus = Citus::start(2)?;
    Payment::create(&citus)?;
    for workers in [&[0][..], &[0, 1]] {
        killed_under_load(&citus, workers).await?;
    }
    Ok(())
}
