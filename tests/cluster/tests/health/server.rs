//! Rows about the server: its launcher, its role as a standby, its settings.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::standby::start_synchronous;
use idempotence_cluster_tests::{Cluster, Connection, Version};

use super::locks::{level, row};

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
        "CREATE ROLE watch LOGIN; SELECT idem_grant('watch', 'monitor'); ALTER ROLE watch SET statement_timeout = '4s'; CALL idem_sweep()",
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

/// What the row `standby` says, without the moment.
const STANDBY: &str =
    "SELECT level, regexp_replace(detail, 'since 2.*', 'since') FROM idempotence.health WHERE name = 'standby'";

// Goal: while a synchronous standby is away, health is critical, and names it and how many wait. idem_explain and the row
// holders tell that the holder has committed, and what they tell is true: terminated, it leaves its outcome behind.
// Method: a request is recorded while the standby is down. Then its backend is terminated, and the standby comes back.
pub async fn a_synchronous_standby_that_is_away_is_told_of(version: Version) -> Result<()> {
    let primary = Cluster::start_with(version, &[("idempotence.warn_holder", "1s")])?;
    primary.create_database("shop")?;
    primary.psql("shop", "SELECT idem_create_session('payments')")?;
    let watch = primary.connect("shop").await?;
    watch.text("SET synchronous_commit = local").await?;
    let nothing = "0|synchronous_standby_names is empty: no commit waits for a standby";
    ensure!(watch.text(STANDBY).await? == nothing, "{}", watch.text(STANDBY).await?);
    let standby = start_synchronous(&primary, "on").await?;
    for names in ["*", "walreceiver", "2 (\"paris, rue 1\", walreceiver)", "any 1 (walreceiver, PARIS)"] {
        primary.conf("synchronous_standby_names", names)?;
        primary.reload()?;
        let expected = if names.starts_with('2') {
            "2|1 of 2 synchronous standbys are there, missing: paris, rue 1; 0 commits wait for them"
        } else {
            "0|1 of 1 synchronous standbys are there; 0 commits wait for them"
        };
        primary.wait_for("shop", STANDBY, expected).await?;
    }
    ensure!(standby.psql("shop", STANDBY)?.trim_end() == "0|this is a standby; the primary waits for its standbys");

    standby.stop_fast()?;
    let recorder = primary.connect("shop").await?;
    let pid = recorder.pid().await?;
    let recording = tokio::spawn(async move { recorder.execute("payments", "1", "1").await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    primary.wait_for("shop", waits, "1").await?;
    let away = "2|0 of 1 synchronous standbys are there, missing: walreceiver, PARIS; 1 commits wait for them, the first since";
    primary.wait_for("shop", STANDBY, away).await?;
    let advice = "SELECT idem_explain('payments', '1') ->> 'what_to_do_next'";
    let told = watch.text(advice).await?;
    let begins = format!(
        "Wait: process {pid} has written its commit here, and waits for a synchronous standby. pg_terminate_backend({pid}) would undo nothing"
    );
    ensure!(told.starts_with(&begins), "{told}");
    ensure!(watch.text("SELECT idem_explain('payments', '1') #>> '{now,holder,wait_event}'").await? == "IPC/SyncRep");
    // Whoever waits for it is told the same: callers of whatever function, and the log.
    let waiter = primary.connect("shop").await?;
    waiter.text("SET synchronous_commit = local; SET idempotence.wait = '200 ms'").await?;
    waiter.text("SET idempotence.log_waits = '50 ms'").await?;
    let has_written = format!("Process {pid} has it. That has written its commit, and waits for a synchronous standby");
    for call in ["run('payments', '1', 'SELECT 1')", "claim('payments', '1')", "forget('payments', '1', 'a test')"] {
        let error = waiter.error(&format!("SELECT idem_{call}")).await?;
        ensure!(error.code().code() == "55P03", "{error:?}");
        ensure!(error.detail().is_some_and(|detail| detail.starts_with(&has_written)), "{call}: {error:?}");
        ensure!(error.hint().is_some_and(|hint| hint.contains("row standby of idempotence.health")), "{error:?}");
    }
    primary.wait_for_log("has it. It has written its commit, and waits for a synchronous standby").await?;
    primary.wait_for("shop", &level("holders"), "1").await?;
    let holders = watch.text("SELECT detail, hint FROM idempotence.health WHERE name = 'holders'").await?;
    ensure!(holders.contains("active, IPC/SyncRep), since 2"), "{holders}");
    ensure!(holders.contains("It does nothing for a process in IPC/SyncRep"), "{holders}");

    watch.text(&format!("SELECT pg_terminate_backend({pid})")).await?;
    ensure!(recording.await?.is_err());
    primary.wait_for("shop", waits, "0").await?;
    ensure!(watch.replay("payments", "1").await? == "succeeded|1");
    let asks = primary.connect("shop").await?;
    asks.text("SET idempotence.wait = '200 ms'").await?;
    let error = asks.error("SELECT idem_run('payments', '1', 'SELECT 1')").await?;
    ensure!(error.code().code() == "55P03", "{error:?}");
    ensure!(error.detail().is_some_and(|detail| detail.starts_with("It is done, and committed here")), "{error:?}");
    let told = asks.text(advice).await?;
    ensure!(told.contains("it is done, and a retry executes nothing") && told.contains("row standby"), "{told}");
    standby.start()?;
    primary.wait_for("shop", &level("standby"), "0").await?;
    ensure!(primary.connect("shop").await?.replay("payments", "1").await? == "succeeded|1");
    Ok(())
}

// Goal: a name in idempotence.databases that no database has is told of at once, in each database; so is a database whose
// visits fail. Each database tells of all when they were swept.
// Method: two databases; one is broken for the worker. Then the setting is misspelt.
pub async fn which_databases_are_visited_is_told(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    for database in ["shop", "other"] {
        server.create_database(database)?;
    }
    let told = "SELECT level, regexp_replace(detail, '(at|swept at) [A-Z0-9][^:]*:[0-9]{2}:[0-9]{2}[^;,:]*', '\\1 T', 'g') FROM idempotence.health WHERE name = 'databases'";
    let both = "SELECT detail LIKE '%\"other\" swept at %' AND detail LIKE '%\"shop\" swept at %' AND level = 0 FROM idempotence.health WHERE name = 'databases'";
    server.wait_for("shop", both, "t").await?;
    server.psql(
        "other",
        "ALTER TABLE idempotence.stream RENAME TO lost; ALTER TABLE idempotence.reply RENAME TO lost_too",
    )?;
    let failed = |database: &str| {
        format!(
            "SELECT level FROM idempotence.health WHERE name = 'databases' AND detail LIKE '\"{database}\" swept at %, failed at %: %'"
        )
    };
    server.wait_for("shop", &failed("other"), "0").await?;
    server.psql(
        "other",
        "ALTER TABLE idempotence.lost RENAME TO stream; ALTER TABLE idempotence.lost_too RENAME TO reply",
    )?;
    server.wait_for("shop", &format!("SELECT count(*) FROM ({}) f", failed("other")), "0").await?;

    server.conf("idempotence.databases", "shpo,other,template1")?;
    server.reload()?;
    let watch = server.connect("shop").await?;
    server.wait_for("shop", &level("databases"), "1").await?;
    let found = watch.text(told).await?;
    let begins = "1|idempotence.databases names what cannot be visited: \"shpo\", \"template1\"; this database is not visited; \"";
    ensure!(found.starts_with(begins), "{found}");
    server.wait_for("other", &level("databases"), "1").await?;
    server.conf("idempotence.databases", "*")?;
    server.reload()?;
    server.wait_for("shop", &level("databases"), "0").await?;
    drop(server);

    let plain = Cluster::start(version)?;
    plain.create_database("shop")?;
    let found = plain.psql("shop", told)?;
    ensure!(found.trim_end() == "0|the library is not preloaded; no database of this server is visited", "{found}");
    Ok(())
}

// Goal: where nobody sweeps, CREATE EXTENSION and health say so at once, also where the worker came before. A restart alone
// alarms nobody, however long ago somebody has swept by hand.
// Method: the worker visits no template, so after the restart it does not come. Then the library is not preloaded any more.
pub async fn that_nobody_sweeps_is_told_of_at_once(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    server.create_database("shop")?;
    server.wait_for("shop", "SELECT idempotence.last_sweep() IS NOT NULL", "t").await?;
    server.psql(
        "shop",
        "CALL idem_sweep(); UPDATE idempotence.sweep SET done_at = now() - interval '3 days'; ALTER DATABASE shop IS_TEMPLATE true",
    )?;
    server.restart()?;
    server
        .wait_for("shop", "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'", "1")
        .await?;
    let told = server.psql("shop", &row("sweep"))?;
    ensure!(told.starts_with("0|swept 3 days"), "{told}");

    server.psql("shop", "ALTER DATABASE shop IS_TEMPLATE false")?;
    server.wait_for("shop", "SELECT idempotence.last_sweep() > now() - interval '1 minute'", "t").await?;
    // Whoever sweeps by hand beside the worker does not go on doing so.
    server.psql("shop", "CALL idem_sweep()")?;
    server.conf("shared_preload_libraries", "")?;
    server.restart()?;
    let told = server.psql("shop", &row("worker"))?;
    ensure!(told.trim_end() == "1|the library is not preloaded, and nobody else has swept yet", "{told}");
    server.psql("shop", "CALL idem_sweep()")?;
    ensure!(server.psql("shop", &level("worker"))?.trim_end() == "0");

    let created = |settings: &str| -> Result<String> {
        let mut psql = server.program("psql");
        psql.args(["-X", "-d", &server.connect_string("shop", "postgres")]);
        psql.args(["-c", &format!("{settings}DROP EXTENSION idempotence; CREATE EXTENSION idempotence")]);
        Ok(String::from_utf8(psql.output()?.stderr)?)
    };
    let told = created("")?;
    ensure!(told.starts_with("NOTICE:  nobody sweeps this database yet"), "{told}");
    ensure!(created("SET client_min_messages = error; ")?.is_empty());
    server.conf("shared_preload_libraries", "idempotence")?;
    server.restart()?;
    ensure!(created("")?.is_empty());
    Ok(())
}
