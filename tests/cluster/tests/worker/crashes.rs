//! The worker on a standby, after a failover, and under random kills.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::bank::Bank;
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::ring::HURRY;
use idempotence_cluster_tests::shop::{DATABASE, start_preloaded};
use idempotence_cluster_tests::standby::start_synchronous;
use idempotence_cluster_tests::{Cluster, Version};
use rand::RngExt;
use rand::seq::IndexedRandom;
use tokio::time::timeout;

use super::watch::{LAUNCHERS, PROMPT, send};

// Goal: the worker does nothing on a standby. After the promotion it sweeps, and sessions are at work again.
// No acknowledged outcome is lost and no effect is repeated, whatever the worker was doing.
// Method: a synchronous standby of a preloaded server. The primary is killed under load. The test makes the
// ring turn on the primary, and later on the standby.
pub async fn a_standby_rests_until_it_is_promoted(version: Version) -> Result<()> {
    let primary = start_preloaded(version)?;
    let standby = start_synchronous(&primary, "remote_apply").await?;
    let connection = primary.connect(DATABASE).await?;
    let lasting = connection.register_client("lasting", "1 hour").await?;
    connection.text(&send(&lasting, 1)).await?;
    let mut bank = Bank::open(&primary, 4)?;
    for _ in 0..5 {
        primary.psql("bank", HURRY)?;
        bank.progress(100).await?;
    }
    ensure!(standby.connect(DATABASE).await?.text(LAUNCHERS).await? == "0");
    let health = "SELECT count(*) FROM idempotence.health WHERE status <> 'ok'";
    ensure!(standby.connect(DATABASE).await?.text(health).await? == "0");
    ensure!(standby.connect(DATABASE).await?.sqlstate("CALL idem_sweep()").await? == "25006");

    primary.kill9()?;
    standby.promote()?;
    bank.move_to(&standby);
    standby.wait_for(DATABASE, &at_work(&[&lasting]), "1").await?;
    ensure!(standby.connect(DATABASE).await?.text(LAUNCHERS).await? == "1");
    ensure!(standby.connect(DATABASE).await?.replay(&lasting, "1").await? == "succeeded|1");
    for _ in 0..5 {
        standby.psql("bank", HURRY)?;
        bank.progress(100).await?;
    }
    bank.close(&standby).await?;
    Ok(())
}

/// The processes to be killed: those of the worker, and the backends of clients at work.
const VICTIMS: &str = "
    SELECT pid FROM pg_stat_activity
     WHERE backend_type LIKE 'idempotence%' OR backend_type = 'client backend' AND state LIKE '%active%' AND pid <> pg_backend_pid()
     ORDER BY backend_type LIKE 'idempotence%' DESC, random()";

// Goal: whichever process is killed at whatever moment, the server and the worker come back by themselves, no
// effect is repeated, and no acknowledged outcome is lost.
// Method: clients transfer money and the test makes the ring turn. A hundred times, a random worker, launcher
// or backend or the whole server is killed.
pub async fn random_kills_under_load_leave_everything_right(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    let mut bank = Bank::open(&server, 4)?;
    let mut killed = 0;
    while killed < 100 {
        bank.progress(rand::rng().random_range(1..30)).await?;
        if rand::rng().random_ratio(1, 8) {
            server.crash()?;
            killed += 1;
            continue;
        }
        let witness = server.reconnect("bank").await?;
        // A crash may cut the connection during this query.
        let Ok(victims) = witness.try_text(VICTIMS).await else { continue };
        let _ = witness.try_text(HURRY).await;
        let victims: Vec<i32> = victims.lines().filter_map(|pid| pid.parse().ok()).collect();
        let Some(&victim) = victims.choose(&mut rand::rng()) else { continue };
        // The death of a process that was about to end anyway does not restart the server.
        if server.kill9_backend(victim) && timeout(PROMPT, witness.wait_for_end()).await.is_ok() {
            killed += 1;
        }
    }
    let connection = server.reconnect("bank").await?;
    let session = connection.register_client("at last", "2 s").await?;
    server.wait_for("bank", &at_work(&[&session]), "0").await?;
    server.wait_for("bank", LAUNCHERS, "1").await?;
    drop(connection);
    bank.progress(100).await?;
    let retries = bank.close(&server).await?;
    ensure!(retries > 0, "no client noticed any of the crashes");
    Ok(())
}
