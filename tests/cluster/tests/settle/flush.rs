//! Verdicts, and commits that do not wait for their flush.

use anyhow::{Result, bail, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Version};

/// A server whose commits wait for no flush, and where no process flushes by itself for a while.
fn start(version: Version) -> Result<Cluster> {
    let lazy = [("wal_writer_delay", "10s"), ("synchronous_commit", "off"), ("autovacuum", "off")];
    let server = shop::start_with(version, &lazy)?;
    server.psql(
        DATABASE,
        "SELECT idem_create_session('jobs'); CREATE TABLE effect (request text NOT NULL); CHECKPOINT",
    )?;
    Ok(server)
}

const BEGIN: &str = "BEGIN; SELECT status FROM idem_begin('jobs', 'j'); INSERT INTO effect VALUES ('j')";
const RECORD: &str = "SELECT FROM idem_record('jobs', 'j', '1'); COMMIT";

// Goal: the commit of a verdict waits for its flush, even if the caller's commits do not.
// Method: a crash right after the answer. The executor's own commit, which waited for nothing, is lost in a crash.
pub async fn a_verdict_survives_a_crash_whatever_synchronous_commit_says(version: Version) -> Result<()> {
    let server = start(version)?;
    let settler = server.connect(DATABASE).await?;
    ensure!(settler.text("SELECT status FROM idem_settle('jobs', 'j', response => '7')").await? == "cancelled");
    server.crash()?;
    let executor = server.connect(DATABASE).await?;
    ensure!(executor.lookup("jobs", "j").await? == "cancelled", "the crash turned the verdict over");
    ensure!(executor.replay("jobs", "j").await? == "cancelled|7");

    // Such a crash does take a commit away that is not flushed. The log's writer flushes once when it starts, and may be
    // late on a busy machine, so that it takes some tries.
    for light in 0..10 {
        server.connect(DATABASE).await?.execute("jobs", &format!("light {light}"), "1").await?;
        server.crash()?;
        if server.connect(DATABASE).await?.lookup("jobs", &format!("light {light}")).await? == "unknown" {
            return Ok(());
        }
    }
    bail!("no crash took a commit away")
}

// Goal: a verdict that replays an outcome is durable, also if neither the executor's commit nor the settler's own would
// be flushed.
// Method: both have synchronous_commit = off. A crash right after the answer.
pub async fn a_verdict_on_a_commit_that_is_not_flushed_waits_for_the_flush(version: Version) -> Result<()> {
    let server = start(version)?;
    let (executor, settler) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    executor.text(BEGIN).await?;
    executor.text(RECORD).await?;
    let verdict = "SELECT status, replayed FROM idem_settle('jobs', 'j')";
    ensure!(settler.text(verdict).await? == "succeeded|t");
    server.crash()?;
    let after = server.connect(DATABASE).await?;
    ensure!(after.lookup("jobs", "j").await? == "succeeded", "the crash turned the verdict over");
    ensure!(after.text("SELECT count(*) FROM effect").await? == "1");
    Ok(())
}
