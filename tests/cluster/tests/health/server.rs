//! Rows about the server: its launcher, its role as a standby, its settings.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version};

use crate::locks::{level, row};

const LAUNCHER: &str = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'";
const BAD: &str = "SELECT name, detail FROM idempotence.health WHERE level > 0";

// Goal: a launcher that ends again and again is told of. Its first start, also that after a crash of the server, does
// not count.
// Method: the launcher is ended four times within an hour.
pub async fn a_launcher_that_ends_again_and_again_is_told_of(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    server.create_database("shop")?;
    let told = |times: u32| {
        format!("since the server came up the launcher was started anew {times} times, {times} times in the last hour")
    };
    let watch = server.connect("shop").await?;
    server
        .wait_for("shop", "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'", "1")
        .await?;
    ensure!(watch.text(&row("restarts")).await? == format!("0|{}", told(0)));
    for times in 1..=4 {
        let former = watch.text(LAUNCHER).await?;
        watch.text(&format!("SELECT pg_terminate_backend({former})")).await?;
        server.wait_for("shop", &format!("SELECT count(*) FROM ({LAUNCHER}) l WHERE pid <> {former}"), "1").await?;
        let expected = format!("{}|{}", i32::from(times > 3), told(times));
        server.wait_for("shop", &row("restarts"), &expected).await?;
    }
    server.crash()?;
    let again = server.reconnect("shop").await?;
    server
        .wait_for("shop", "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'", "1")
        .await?;
    ensure!(again.text(&row("restarts")).await? == format!("0|{}", told(0)));
    Ok(())
}

// Goal: a standby has no bad row because it is one, and no request can be begun there until it is promoted.
// Method: leases and sessions unlogged and logged, since a standby cannot read unlogged tables.
pub async fn a_standby_is_well_and_not_ready(version: Version) -> Result<()> {
    let primary = Cluster::start_preloaded(version)?;
    primary.create_database("shop")?;
    primary.psql(
        "shop",
        "SELECT idem_create_session('payments'); SELECT idem_set_persistence('claims', 'unlogged'); CALL idem_sweep()",
    )?;
    primary.connect("shop").await?.execute("payments", "1", "1").await?;
    let standby = primary.standby()?;
    standby.catch_up_with(&primary)?;
    let on_standby = standby.connect("shop").await?;
    ensure!(on_standby.text(BAD).await?.is_empty(), "{}", on_standby.text(BAD).await?);
    ensure!(on_standby.text("SELECT idem_ready()").await? == "f");
    ensure!(primary.psql("shop", "SELECT idem_ready()")?.trim_end() == "t");
    primary.stop_fast()?;
    standby.promote()?;
    standby.wait_for("shop", "SELECT idem_ready()", "t").await?;
    standby.wait_for("shop", "SELECT count(*) FROM idempotence.health WHERE level > 0", "0").await?;
    Ok(())
}

// Goal: settings that contradict each other are found where they are set for the server. What is set for the role that
// monitors, or for its connection, is no setting of others.
// Method: a monitor with a short statement_timeout of its own, by ALTER ROLE and by its connection; then the same for the
// server. A lock table that is too small for a window.
pub async fn settings_of_the_server_are_told_from_those_of_the_monitor(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database("shop")?;
    server.psql(
        "shop",
        "CREATE ROLE watch LOGIN; SELECT idem_grant('watch', 'monitor'); ALTER ROLE watch SET statement_timeout = '4s'",
    )?;
    let watch = server.connect_as("shop", "watch").await?;
    ensure!(watch.text("SHOW statement_timeout").await? == "4s");
    ensure!(watch.text(&level("settings")).await? == "0", "{}", watch.text(&row("settings")).await?);
    let own = format!("{} options='-c lock_timeout=3s'", server.connect_string("shop", "postgres"));
    let own = Connection::open(&own).await?;
    ensure!(own.text("SHOW lock_timeout").await? == "3s");
    ensure!(own.text(&level("settings")).await? == "0", "{}", own.text(&row("settings")).await?);

    server.conf("lock_timeout", "2s")?;
    server.conf("idempotence.unrecorded", "off")?;
    server.conf("idempotence.window_size", "400")?;
    server.conf("max_locks_per_transaction", "10")?;
    server.conf("max_connections", "20")?;
    server.restart()?;
    let watch = server.connect_as("shop", "watch").await?;
    let told = watch.text(&row("settings")).await?;
    let timeout = "a call waits for up to 00:00:05 (idempotence.wait for the server), but lock_timeout is 00:00:02 (for the server)";
    ensure!(
        told.starts_with("1|") && told.contains(timeout) && told.contains("idempotence.window_size"),
        "health says {told}"
    );
    ensure!(watch.text(&row("unrecorded")).await? == "1|idempotence.unrecorded is off for the server");
    for (name, value) in [("lock_timeout", "6s"), ("idempotence.unrecorded", "error"), ("idempotence.window_size", "5")]
    {
        server.conf(name, value)?;
    }
    server.restart()?;
    let watch = server.connect_as("shop", "watch").await?;
    ensure!(watch.text(BAD).await?.is_empty(), "{}", watch.text(BAD).await?);
    Ok(())
}
