//! The worker delays nobody, and it names whoever delays it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE, start_preloaded};
use idempotence_cluster_tests::{Cluster, Version};
use rand::RngExt;
use tokio::time::sleep;

use super::watch::{PROMPT, SWEPT};

// Goal: the worker holds up none of these: DROP DATABASE, CREATE DATABASE … TEMPLATE, DROP, ALTER and CREATE
// EXTENSION, and a fast stop.
// Method: each of them many times, while the worker visits every database every second, and now and then the same on a server
// without the worker, which a busy machine slows down too. The slowest of each are compared.
pub async fn nobody_is_held_up(version: Version) -> Result<()> {
    let (server, without) = (start_preloaded(version)?, shop::start(version)?);
    let (mut slowest, mut slowest_without) = (Vec::new(), Vec::new());
    for round in 0..8 {
        if round % 3 == 0 {
            take_times(&without, round, &mut slowest_without).await?;
        }
        take_times(&server, round, &mut slowest).await?;
    }
    let (took, what) = slowest.iter().max().context("nothing was measured")?;
    let (took_without, _) = slowest_without.iter().max().context("nothing was measured")?;
    ensure!(
        *took < *took_without + PROMPT,
        "{what} took {took:?}, and nothing without the worker over {took_without:?}"
    );
    Ok(())
}

async fn take_times(server: &Cluster, round: usize, times: &mut Vec<(Duration, String)>) -> Result<()> {
    // In each round, the visits are at another point.
    let connection = server.connect(DATABASE).await?;
    connection.register_client(&format!("client {round}"), "2 s").await?;
    drop(connection);
    let idle = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{DATABASE}' AND backend_type = 'client backend'"
    );
    server.wait_for("postgres", &idle, "0").await?;
    sleep(Duration::from_millis(rand::rng().random_range(0..1000))).await;
    for (database, sql) in [
        ("postgres", format!("CREATE DATABASE copy TEMPLATE {DATABASE}")),
        ("copy", "CALL idem_sweep()".into()),
        // The script of an update does this too.
        ("copy", "BEGIN; LOCK TABLE ONLY idempotence.session, idempotence.session_live, idempotence.segment, idempotence.sweep; COMMIT".into()),
        ("copy", "ALTER EXTENSION idempotence UPDATE".into()),
        ("copy", "DROP EXTENSION idempotence".into()),
        ("copy", "CREATE EXTENSION idempotence".into()),
        ("postgres", "ALTER DATABASE copy RENAME TO other".into()),
        ("postgres", "DROP DATABASE other".into()),
    ] {
        let start = Instant::now();
        server.psql(database, &sql)?;
        times.push((start.elapsed(), sql));
    }
    let start = Instant::now();
    server.stop_fast()?;
    times.push((start.elapsed(), "a fast stop".into()));
    server.start()
}

// Goal: the launcher ends with the server, even if the stop comes while the launcher waits for a visit.
// Method: a naptime that is longer than the test. A new database is announced and visited, and the server is
// stopped at that moment.
pub async fn a_stop_is_heeded_at_once(version: Version) -> Result<()> {
    let server =
        Cluster::start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1h")])?;
    for number in 0..8 {
        server.create_database(&format!("stopped_{number}"))?;
        server.stop_fast()?;
        server.start()?;
    }
    Ok(())
}

// Goal: a transaction, a prepared transaction and a dump that delay the ring are named in the log and in the
// view health, and break nothing.
// Method: each of them holds the old segment past its time. After its end the ring goes on.
pub async fn what_delays_the_ring_is_named(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    let (holder, dba) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    let age = "UPDATE idempotence.segment SET opened_at = opened_at - interval '3 hours', closed_at = closed_at - interval '3 hours', ends_at = ends_at - interval '3 hours'";
    let health = "SELECT status <> 'ok' AND hint IS NOT NULL FROM idempotence.health WHERE name = 'ring'";
    dba.text("SELECT idem_create_session('s', ttl => '1 hour')").await?;
    dba.execute("s", "first", "1").await?;
    server.wait_for(DATABASE, SWEPT, "t").await?;

    let record = "SELECT FROM idem_begin('s', 'k'); SELECT FROM idem_record('s', 'k', '1')";
    holder.text(&format!("BEGIN; {record}")).await?;
    dba.text(age).await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "closing").await?;
    dba.text(age).await?;
    let name = format!("held by process {}", holder.pid().await?);
    server.wait_for(DATABASE, health, "t").await?;
    ensure!(dba.text("SELECT detail FROM idempotence.health WHERE name = 'ring'").await?.contains(&name));
    server.wait_for_log(&name).await?;
    // Other requests are executed, and the ring has turned.
    dba.execute("s", "meanwhile", "1").await?;
    holder.text("PREPARE TRANSACTION 'held'").await?;
    let named = "SELECT held_by LIKE '%prepared transaction \"held\"%' FROM idempotence.segments WHERE segment = 0";
    server.wait_for(DATABASE, named, "t").await?;
    holder.text("COMMIT PREPARED 'held'").await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "closed").await?;
    server.wait_for_log("nothing delays the sweep any more").await?;
    ensure!(dba.replay("s", "k").await? == "succeeded|1");

    // pg_dump takes the same lock.
    holder.text("BEGIN; LOCK idempotence.outcome_0 IN ACCESS SHARE MODE").await?;
    dba.text("UPDATE idempotence.outcome_0 SET expires_at = expires_at - interval '6 hours'").await?;
    dba.text(age).await?;
    server.wait_for(DATABASE, health, "t").await?;
    server.wait_for_log("segment 0 cannot be emptied yet: held by process").await?;
    holder.text("ROLLBACK").await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "empty").await?;
    server.wait_for(DATABASE, health, "f").await
}
