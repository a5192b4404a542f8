//! The tables of the extension are ordinary tables: a DBA may rebuild, move and rewrite them at any time.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::bank::Bank;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(
    a_warm_backend_follows_maintenance,
    an_open_transaction_meets_maintenance,
    maintenance_under_load_loses_nothing,
);

const TABLES: [&str; 13] = [
    "session",
    "session_live",
    "reply",
    "stream",
    "outcome_0",
    "outcome_1",
    "outcome_2",
    "outcome_long",
    "segment",
    "checkpoint",
    "secret",
    "audit",
    "sweep",
];

/// The current segment.
const SEGMENT: &str = "outcome_0";

/// What a DBA does to a table. `moved` is a tablespace.
const WORKS: [&str; 7] = [
    "REINDEX TABLE idempotence.{table}",
    "REINDEX TABLE CONCURRENTLY idempotence.{table}",
    "VACUUM FULL idempotence.{table}",
    "ALTER TABLE idempotence.{table} SET TABLESPACE moved",
    "ALTER TABLE idempotence.{table} SET TABLESPACE pg_default",
    "VACUUM (FREEZE, ANALYZE) idempotence.{table}",
    "ALTER TABLE idempotence.{table} SET (fillfactor = 90)",
];

fn start(version: Version, database: &str) -> Result<Cluster> {
    // The worker sweeps at the same time.
    let server = Cluster::start_preloaded(version)?;
    server.psql("postgres", "CREATE TABLESPACE moved LOCATION ''")?;
    server.create_database(database)?;
    Ok(server)
}

/// Checks that what the connection remembers still counts, and that the connection goes on.
async fn check(warm: &Connection, round: &str) -> Result<()> {
    ensure!(warm.replay("payments", "old").await? == "succeeded|1");
    ensure!(warm.replay("payments", "of segment 1").await? == "succeeded|2");
    ensure!(warm.sqlstate("SELECT FROM idem_begin('payments', 'old', payload => '2')").await? == "ID001");
    let half = "BEGIN; SELECT status, point FROM idem_begin('payments', 'half');
                SELECT idem_checkpoint('payments', 'half', 'p'); COMMIT";
    ensure!(warm.text(half).await? == "started|p");
    warm.execute("payments", round, "3").await?;
    ensure!(warm.replay("payments", round).await? == "succeeded|3");
    ensure!(
        warm.text(&format!(
            "SELECT idem_once('mails', '{round}'), idem_once('mails', '{round}'), idem_once('mails', 'm')"
        ))
        .await?
            == "t|f|f"
    );
    ensure!(warm.text(&format!("SELECT idem_forget('payments', '{round}', 'a test')")).await? == "t");
    Ok(())
}

async fn fill(warm: &Connection) -> Result<()> {
    warm.text(
        "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true); SELECT idem_once('mails', 'm');
         BEGIN; SELECT FROM idem_begin('payments', 'old', payload => '1'); SELECT FROM idem_record('payments', 'old', '1'); COMMIT;
         BEGIN; SELECT FROM idem_begin('payments', 'half'); SELECT idem_checkpoint('payments', 'half', 'p'); COMMIT",
    )
    .await?;
    warm.execute("payments", "of segment 1", "2").await?;
    // After the ring has turned, the outcome is in this table.
    warm.text(
        "WITH moved AS (DELETE FROM idempotence.outcome_0 WHERE key = 'of segment 1' RETURNING *)
         INSERT INTO idempotence.outcome_1 SELECT * FROM moved",
    )
    .await?;
    Ok(())
}

// Goal: a backend that remembers tables and indexes goes on after each of them has got another file, or after
// an index was replaced.
// Method: one connection remembers everything and checks everything, after it or another connection has done
// each kind of work on each table.
async fn a_warm_backend_follows_maintenance(version: Version) -> Result<()> {
    let server = start(version, "shop")?;
    let warm = server.connect("shop").await?;
    fill(&warm).await?;
    let other = server.connect("shop").await?;
    for (number, work) in WORKS.iter().enumerate() {
        for table in TABLES {
            let work = work.replace("{table}", table);
            other.text(&work).await?;
            check(&warm, &format!("{number} on {table} by another")).await?;
            warm.text(&work).await?;
            check(&warm, &format!("{number} on {table} by itself")).await?;
        }
    }
    for work in ["REINDEX SCHEMA CONCURRENTLY idempotence", "REINDEX DATABASE shop", "VACUUM FULL"] {
        other.text(work).await?;
        check(&warm, work).await?;
    }
    Ok(())
}

// Goal: a transaction that has begun a request records it in the rebuilt table. A reply takes the place of its slot's former
// one, wherever that stands by then, and of no other reply.
// Method: between begin and record, another backend rebuilds each table, but the segment only after the record: the begin
// has locked it. Two client sessions of two slots each take turns, so that their replies leave dead rows, and rows change
// their places.
async fn an_open_transaction_meets_maintenance(version: Version) -> Result<()> {
    let server = start(version, "shop")?;
    let warm = server.connect("shop").await?;
    fill(&warm).await?;
    let other = server.connect("shop").await?;
    other.text("SET lock_timeout = '1 min'").await?;
    let mut clients = Vec::new();
    for client in ["a", "b"] {
        let session = warm.text(&format!("SELECT session FROM idem_register('{client}', window_size => 2)")).await?;
        for number in ["1", "2"] {
            warm.execute(&session, number, number).await?;
        }
        clients.push(session);
    }
    // Without the statements that wait for every older transaction.
    for (number, work) in (3..).zip(WORKS.iter().filter(|work| !work.contains("CONCURRENTLY"))) {
        warm.text("BEGIN; SELECT FROM idem_begin('payments', 'open')").await?;
        for session in &clients {
            warm.text(&format!("SELECT FROM idem_begin('{session}', {number})")).await?;
        }
        for table in TABLES.iter().filter(|table| **table != SEGMENT) {
            other.text(&work.replace("{table}", table)).await?;
        }
        for session in &clients {
            warm.text(&format!("SELECT FROM idem_record('{session}', {number}, '{number}')")).await?;
        }
        warm.text("SELECT FROM idem_record('payments', 'open', '4'); COMMIT").await?;
        other.text(&work.replace("{table}", SEGMENT)).await?;
        ensure!(warm.replay("payments", "open").await? == "succeeded|4");
        let kept = "SELECT string_agg(first::text, ',' ORDER BY client, first)
                    FROM idempotence.reply JOIN idempotence.session s ON s.id = session";
        let of_one = format!("{},{number}", number - 1);
        ensure!(warm.text(kept).await? == format!("{of_one},{of_one}"), "{work}");
        ensure!(warm.text("SELECT idem_forget('payments', 'open', 'a test')").await? == "t");
    }
    Ok(())
}

// Goal: nothing is lost or repeated while tables are rebuilt under load.
// Method: clients transfer money with keys, while each kind of work is done on each table, several times.
async fn maintenance_under_load_loses_nothing(version: Version) -> Result<()> {
    let server = start(version, "dba")?;
    let mut bank = Bank::open(&server, 4)?;
    let dba = server.connect("bank").await?;
    for _ in 0..3 {
        for work in WORKS {
            for table in TABLES {
                dba.text(&work.replace("{table}", table)).await?;
            }
            bank.progress(20).await?;
        }
    }
    drop(dba);
    bank.close(&server).await?;
    Ok(())
}
