//! What the newest version of PostgreSQL brings to users of the extension, as `docs/operations.md` has it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, bail, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version, on_newest_version};

on_newest_version!(repacking_any_table_disturbs_no_request, a_standby_that_waits_for_a_commit_shows_its_outcome);

/// Executes requests with an effect, a lease and a client session each, until it is told to stop; gives how many.
async fn request(client: Connection, number: usize, stop: &AtomicBool) -> Result<usize> {
    let mut done = 0;
    while !stop.load(Relaxed) {
        let key = format!("{number}-{done}");
        client
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('payments', '{key}'); INSERT INTO effect VALUES ('{key}');
                 SELECT FROM idem_record('payments', '{key}', '1'); COMMIT"
            ))
            .await?;
        let token =
            client.text(&format!("SELECT token FROM idem_begin('payments', 'lease {key}', lease => '1 min')")).await?;
        client.text(&format!("SELECT FROM idem_record('payments', 'lease {key}', token => {token})")).await?;
        let session = client.text("SELECT session FROM idem_register()").await?;
        client
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT FROM idem_record('{session}', 1); COMMIT;
                 SELECT FROM idem_close('{session}')"
            ))
            .await?;
        done += 1;
    }
    Ok(done)
}

/// Repacks each table in both ways, three times; gives the tables that refuse to be repacked concurrently.
async fn repack_all(server: &Cluster) -> Result<Vec<String>> {
    let admin = server.connect(DATABASE).await?;
    let tables = admin
        .text(
            "SELECT relname FROM pg_class
             WHERE relnamespace = 'idempotence'::regnamespace AND relkind = 'r' ORDER BY 1",
        )
        .await?;
    let mut refused = Vec::new();
    for round in 0..3 {
        for table in tables.lines() {
            admin.text(&format!("REPACK idempotence.{table}")).await?;
            match admin.try_text(&format!("REPACK (CONCURRENTLY) idempotence.{table}")).await {
                Ok(_) => {}
                Err(error) if error.code().is_some_and(|code| code.code() == "55000") => {
                    if round == 0 {
                        refused.push(table.to_owned());
                    }
                    ensure!(refused.iter().any(|one| one == table), "{table} is refused now: {error:?}");
                }
                Err(error) => bail!("{table}: {error:?}"),
            }
        }
    }
    Ok(refused)
}

// Goal: REPACK and REPACK (CONCURRENTLY) are for the extension's tables, too, while they are in use. The tables that
// refuse to be repacked concurrently are those that docs/operations.md names.
// Method: every table is repacked in both ways, several times, while clients execute requests.
async fn repacking_any_table_disturbs_no_request(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    server.psql(DATABASE, "SELECT idem_create_session('payments'); CREATE TABLE effect (key text)")?;
    let stop = AtomicBool::new(false);
    let repack = async {
        let refused = repack_all(&server).await;
        stop.store(true, Relaxed);
        refused
    };
    let clients = [server.connect(DATABASE).await?, server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    let [first, second, third] = clients;
    let (repacked, a, b, c) =
        tokio::join!(repack, request(first, 1, &stop), request(second, 2, &stop), request(third, 3, &stop));
    let refused = repacked?;
    ensure!(refused == ["audit", "granted", "restore", "secret", "session_live", "sweep"], "{refused:?}");
    let done = a? + b? + c?;
    ensure!(done > 10, "only {done} requests were executed meanwhile");
    let found = server.psql(
        DATABASE,
        "SELECT (SELECT count(*) FROM effect), (SELECT count(DISTINCT key) FROM effect),
           (SELECT count(*) FROM idempotence.outcomes WHERE request IN (SELECT key FROM effect))",
    )?;
    ensure!(found.trim() == format!("{done}|{done}|{done}"), "{found}, and {done} were done");
    Ok(())
}

// Goal: a client that reads from a standby can wait until the standby has an outcome, and then finds it.
// Method: the standby delays each commit. A lookup at once is answered not_here, and one after WAIT FOR LSN has the
// outcome.
async fn a_standby_that_waits_for_a_commit_shows_its_outcome(version: Version) -> Result<()> {
    let primary = shop::start(version)?;
    primary.psql(DATABASE, "SELECT idem_create_session('payments')")?;
    let standby = primary.standby()?;
    standby.catch_up_with(&primary)?;
    standby.conf("recovery_min_apply_delay", "2s")?;
    standby.reload()?;
    let (writer, reader) = (primary.connect(DATABASE).await?, standby.connect(DATABASE).await?);
    writer.execute("payments", "order-1", "1").await?;
    let position = writer.text("SELECT pg_current_wal_insert_lsn()").await?;
    ensure!(reader.lookup("payments", "order-1").await? == "not_here");
    let waited = reader.text(&format!("WAIT FOR LSN '{position}' WITH (TIMEOUT '1 min', NO_THROW)")).await?;
    ensure!(waited == "success", "{waited}");
    ensure!(reader.lookup("payments", "order-1").await? == "succeeded");
    Ok(())
}
