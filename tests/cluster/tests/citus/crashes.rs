//! Load on the coordinator, and kills of all nodes.

use anyhow::Result;
use idempotence_cluster_tests::citus::{Citus, kills};

use super::work::Payment;

// Goal: whatever is killed, each request that was answered has taken effect once, and each that was given up once or
// not at all, as its outcome says.
// Method: clients send requests to the coordinator. The coordinator, a worker or a backend is killed at random moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn effects_on_one_worker_and_on_two_happen_once() -> Result<()> {
    let citus = Citus::start(2)?;
    Payment::create(&citus)?;
    for workers in [&[0][..], &[0, 1]] {
        kills::survives(&citus, Payment::on(&citus, workers).await?, &format!("workers {workers:?}")).await?;
    }
    Ok(())
}
