//! Which databases the worker visits.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::shop::{DATABASE, start_preloaded};
use idempotence_cluster_tests::{Cluster, Version};

use super::watch::{LAUNCHERS, SWEPT};

// Goal: the worker finds new databases and extensions, and gets no error from dropped databases and extensions.
// Method: the extension is created in a database that the worker visited before without it, is dropped, and
// is created again. Databases are created and dropped. None of this may be an error.
pub async fn databases_and_extensions_come_and_go(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    server.psql("postgres", "CREATE DATABASE later")?;
    // The worker has visited `later`, without the extension, and visits it again in half a minute.
    server.create_database(DATABASE)?;
    server.wait_for(DATABASE, SWEPT, "t").await?;
    let connection = server.connect("later").await?;
    for _ in 0..2 {
        connection.text("CREATE EXTENSION idempotence").await?;
        let start = Instant::now();
        connection.register_client("first", "2 s").await?;
        server.wait_for("later", "SELECT count(*) FROM idempotence.session_live", "0").await?;
        ensure!(start.elapsed() < Duration::from_secs(15), "found after {:?}", start.elapsed());
        connection.text("DROP EXTENSION idempotence").await?;
        server.wait_for("postgres", LAUNCHERS, "1").await?;
    }
    ensure!(!server.log().contains("ERROR:"), "the log has errors");
    Ok(())
}

// Goal: a visit that meets DROP EXTENSION is no failed sweep, even if the extension is created again at once.
// Method: the extension comes and goes, and each drop is open for as long as a visit waits for a lock.
pub async fn an_extension_dropped_during_a_visit_is_no_failure(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.psql("postgres", "CREATE DATABASE later")?;
    let connection = server.connect("later").await?;
    for _ in 0..60 {
        connection
            .text("CREATE EXTENSION idempotence; SELECT FROM idem_create_session('s'); SELECT pg_sleep(0.05)")
            .await?;
        connection.text("BEGIN; DROP EXTENSION idempotence; SELECT pg_sleep(0.15); COMMIT").await?;
    }
    let log = server.log();
    let failed: Vec<_> = log.lines().filter(|line| line.contains("could not sweep")).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

// Goal: the setting idempotence.databases says which databases the worker visits, from the next reload on.
// Method: two databases. The database that is not named keeps its silent session. The log has a name without
// a database only once.
pub async fn only_the_databases_named_are_visited(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.create_database("other")?;
    for database in [DATABASE, "other"] {
        server.wait_for(database, SWEPT, "t").await?;
    }
    server.conf("idempotence.databases", &format!("{DATABASE}, missing"))?;
    server.reload()?;
    server.wait_for_log("finds no database \"missing\"").await?;
    let (named, other) = (server.connect(DATABASE).await?, server.connect("other").await?);
    let (ends, stays) = (named.register_client("c", "2 s").await?, other.register_client("c", "2 s").await?);
    server.wait_for(DATABASE, &at_work(&[&ends]), "0").await?;
    ensure!(other.text(&at_work(&[&stays])).await? == "1");
    server.conf("idempotence.databases", "*")?;
    server.reload()?;
    server.wait_for("other", &at_work(&[&stays]), "0").await?;
    ensure!(server.log().matches("finds no database").count() == 1);
    Ok(())
}

// Goal: if the setting leaves a database out, somebody else sweeps it. The view health accepts one sweep a
// day, and names the setting if there was none.
// Method: the time of the last sweep by hand is set back.
pub async fn a_database_left_out_may_be_swept_once_a_day(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.wait_for(DATABASE, SWEPT, "t").await?;
    ensure!(server.connect(DATABASE).await?.text("SELECT idempotence.is_visited()").await? == "t");
    server.create_database("another")?;
    server.conf("idempotence.databases", "another")?;
    // The restart forgets the visits of the worker.
    server.restart()?;
    let health = "SELECT string_agg(name || ' ' || status, ', ') FROM idempotence.health WHERE status <> 'ok'";
    server.wait_for(DATABASE, LAUNCHERS, "1").await?;
    let dba = server.connect(DATABASE).await?;
    ensure!(dba.text("SELECT idempotence.is_visited()").await? == "f");
    dba.text("CALL idem_sweep()").await?;
    for (age, told) in [("20 hours", ""), ("26 hours", "sweep warning")] {
        dba.text(&format!("UPDATE idempotence.sweep SET done_at = now() - interval '{age}'")).await?;
        server.wait_for(DATABASE, health, told).await?;
    }
    let named = "SELECT hint LIKE '%idempotence.databases%' FROM idempotence.health WHERE name = 'sweep'";
    ensure!(dba.text(named).await? == "t");
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(health).await?.is_empty());
    Ok(())
}

// Goal: an error in one database is logged once, with a hint, while the worker goes on in other databases.
// When the database is mended, the worker sweeps it too. A database that nobody can enter does not stop the
// worker either.
// Method: a ring without a current segment, and sessions in another database; then the ring is mended. Then
// an open transaction renames the database for a while.
pub async fn an_error_in_one_database_is_logged_once_and_stops_no_other(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.create_database("broken")?;
    server.psql("broken", "UPDATE idempotence.segment SET current = false")?;
    let words = "could not sweep database \"broken\": table \"idempotence.segment\" has no current segment";
    server.wait_for_log(words).await?;
    let connection = server.connect(DATABASE).await?;
    for round in 0..4 {
        let session = connection.register_client(&format!("client {round}"), "2 s").await?;
        server.wait_for(DATABASE, &at_work(&[&session]), "0").await?;
    }
    ensure!(server.log().matches(words).count() == 1, "it is logged again and again");
    ensure!(server.log().contains("HINT:"));
    server.psql("broken", "UPDATE idempotence.segment SET current = true WHERE number = 0")?;
    server.wait_for_log("sweeps database \"broken\" again").await?;

    // At the moment nobody can enter this database, and the worker cannot be told to leave it alone.
    let dba = server.connect("postgres").await?;
    server.wait_for("postgres", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'broken'", "0").await?;
    dba.text("BEGIN; ALTER DATABASE broken RENAME TO mended").await?;
    for round in 0..4 {
        let session = connection.register_client(&format!("other {round}"), "2 s").await?;
        server.wait_for(DATABASE, &at_work(&[&session]), "0").await?;
    }
    dba.text("COMMIT").await?;
    let session = server.connect("mended").await?.register_client("mended", "2 s").await?;
    server.wait_for("mended", &at_work(&[&session]), "0").await
}
