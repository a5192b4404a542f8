//! What is left of requests after backends or the whole server have been killed.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::bank::Bank;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version, on_all_versions};
use rand::RngExt;

use Kept::{Here, InJournal};

on_all_versions!(
    a_killed_backend_leaves_nothing_of_an_unrecorded_request,
    a_crash_leaves_nothing_of_an_unrecorded_request,
    a_committed_outcome_survives_a_crash,
    a_prepared_transaction_keeps_its_claim_through_a_crash,
    a_prepared_inbox_entry_keeps_its_place_through_a_crash,
    crashes_at_random_lose_no_acknowledged_outcome_and_repeat_no_effect,
);

/// Where a session's requests are kept.
#[derive(Clone, Copy)]
enum Kept {
    /// In the tables of the extension.
    Here,
    /// In a journal.
    InJournal,
}

fn start(version: Version, kept: Kept) -> Result<Cluster> {
    let server = shop::start(version)?;
    let payments = match kept {
        Here => "SELECT idem_create_session('payments')",
        InJournal => {
            "SELECT idem_create_journal('payment'); SELECT idem_create_session('payments', journal => 'payment')"
        }
    };
    server.psql(
        DATABASE,
        &format!(
            "{payments}; SELECT idem_create_session('mails', inbox => true); CREATE TABLE effect (key text NOT NULL)"
        ),
    )?;
    Ok(server)
}

/// Begins a request and makes its effect. The transaction stays open.
async fn begin_and_work(connection: &Connection, key: &str) -> Result<()> {
    let sql = format!("BEGIN; SELECT status FROM idem_begin('payments', '{key}'); INSERT INTO effect VALUES ('{key}')");
    ensure!(connection.text(&sql).await? == "started");
    Ok(())
}

fn record(key: &str) -> String {
    format!("SELECT FROM idem_record('payments', '{key}', '\"done\"')")
}

/// Checks that the request was not executed, and that a retry executes it once.
async fn executes_once(server: &Cluster, key: &str) -> Result<()> {
    let connection = server.reconnect(DATABASE).await?;
    ensure!(connection.lookup("payments", key).await? == "unknown");
    begin_and_work(&connection, key).await?;
    connection.text(&format!("{}; COMMIT", record(key))).await?;
    is_done_once(server, key).await
}

async fn is_done_once(server: &Cluster, key: &str) -> Result<()> {
    let connection = server.reconnect(DATABASE).await?;
    ensure!(connection.replay("payments", key).await? == "succeeded|\"done\"");
    let effects = connection.text(&format!("SELECT count(*) FROM effect WHERE key = '{key}'")).await?;
    ensure!(effects == "1", "{effects} effects of request {key}");
    Ok(())
}

/// A batch that is large enough to be inserted directly, on several pages. It gives how many of its keys are new.
const BATCH: &str =
    "SELECT count(*) FROM idem_once_many('mails', (SELECT array_agg('batch ' || n) FROM generate_series(1, 500) n))";

// Goal: the claims of a backend that dies are gone, recorded or not, as long as nothing was committed.
// Method: kill -9 between the work and the COMMIT. The server restarts by itself, and the retry executes the
// request.
async fn a_killed_backend_leaves_nothing_of_an_unrecorded_request(version: Version) -> Result<()> {
    for kept in [Here, InJournal] {
        let server = start(version, kept)?;
        for (key, recorded) in [("begun", false), ("recorded", true)] {
            let doomed = server.reconnect(DATABASE).await?;
            begin_and_work(&doomed, key).await?;
            if recorded {
                doomed.text(&record(key)).await?;
            }
            let witness = server.reconnect(DATABASE).await?;
            ensure!(server.kill9_backend(doomed.pid().await?), "there is no such backend");
            ensure!(doomed.try_text("COMMIT").await.is_err(), "a killed backend committed");
            // Until the server has noticed the death, it accepts clients, and the dead backend's locks are still
            // held.
            witness.wait_for_end().await?;
            executes_once(&server, key).await?;
        }
    }
    Ok(())
}

// Goal: the same if the whole server dies.
// Method: all processes are killed at once between the work and the COMMIT, and the server is started again.
async fn a_crash_leaves_nothing_of_an_unrecorded_request(version: Version) -> Result<()> {
    for kept in [Here, InJournal] {
        let server = start(version, kept)?;
        let (begun, recorded) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
        begin_and_work(&begun, "begun").await?;
        begin_and_work(&recorded, "recorded").await?;
        recorded.text(&record("recorded")).await?;
        recorded.text("SELECT idem_once('mails', 'm')").await?;
        let batch = server.connect(DATABASE).await?;
        ensure!(batch.text(&format!("BEGIN; {BATCH}")).await? == "500");
        // So that the pages of the batch are on disk, and the crash finds them there.
        server.connect(DATABASE).await?.text("CHECKPOINT").await?;
        server.crash()?;
        executes_once(&server, "begun").await?;
        executes_once(&server, "recorded").await?;
        let mails = server.connect(DATABASE).await?;
        ensure!(mails.text("SELECT idem_once('mails', 'm')").await? == "t");
        ensure!(mails.text(BATCH).await? == "500");
        ensure!(mails.text(BATCH).await? == "0");
    }
    Ok(())
}

// Goal: an outcome whose COMMIT was answered is replayed after a crash, with all that belongs to it.
// Method: outcomes, a checkpoint, an inbox entry and a change of a session are committed just before the
// crash.
async fn a_committed_outcome_survives_a_crash(version: Version) -> Result<()> {
    for kept in [Here, InJournal] {
        let server = start(version, kept)?;
        let connection = server.connect(DATABASE).await?;
        connection.text("CHECKPOINT").await?;
        begin_and_work(&connection, "done").await?;
        connection.text(&format!("{}; COMMIT", record("done"))).await?;
        connection
            .text(
                "SELECT idem_once('mails', 'm'), idem_create_session('late', ttl => '90 days');
                 BEGIN; SELECT FROM idem_begin('payments', 'half', payload => '1'); SELECT idem_checkpoint('payments', 'half', 'p', '2'); COMMIT",
            )
            .await?;
        connection.execute("late", "k", "1").await?;
        ensure!(connection.text(BATCH).await? == "500");
        server.crash()?;

        is_done_once(&server, "done").await?;
        let connection = server.connect(DATABASE).await?;
        ensure!(connection.replay("late", "k").await? == "succeeded|1");
        ensure!(connection.text("SELECT idem_once('mails', 'm')").await? == "f");
        ensure!(connection.text(BATCH).await? == "0");
        let ticket = "BEGIN; SELECT status, point, state FROM idem_begin('payments', 'half'); ROLLBACK";
        ensure!(connection.text(ticket).await? == "started|p|2");
        ensure!(connection.sqlstate("SELECT FROM idem_begin('payments', 'half', payload => '3')").await? == "ID001");
    }
    Ok(())
}

// Goal: a prepared transaction holds its claim through a crash. Nobody executes the request beside it.
// Method: two prepared transactions, a crash, and begins by others. Then one transaction is committed, and
// the other is rolled back.
async fn a_prepared_transaction_keeps_its_claim_through_a_crash(version: Version) -> Result<()> {
    for kept in [Here, InJournal] {
        let server = start(version, kept)?;
        let connection = server.connect(DATABASE).await?;
        for key in ["kept", "undone"] {
            begin_and_work(&connection, key).await?;
            connection.text(&format!("{}; PREPARE TRANSACTION '{key}'", record(key))).await?;
        }
        begin_and_work(&connection, "open").await?;
        ensure!(connection.sqlstate("PREPARE TRANSACTION 'open'").await? == "ID008");

        for crashed in [false, true] {
            if crashed {
                server.crash()?;
            }
            let other = server.connect(DATABASE).await?;
            for key in ["kept", "undone"] {
                let begin = format!("SELECT status FROM idem_begin('payments', '{key}', wait => '10 ms')");
                ensure!(other.text(&begin).await? == "in_progress", "request {key} is prepared");
                ensure!(other.lookup("payments", key).await? == "in_progress");
            }
        }
        let other = server.connect(DATABASE).await?;
        other.text("COMMIT PREPARED 'kept'").await?;
        other.text("ROLLBACK PREPARED 'undone'").await?;
        is_done_once(&server, "kept").await?;
        executes_once(&server, "undone").await?;
        executes_once(&server, "open").await?;
    }
    Ok(())
}

// Goal: for others, a prepared inbox entry is neither new nor known, but in progress.
// Method: a crash while two entries are prepared. The unique index, not a lock, holds them through the crash.
async fn a_prepared_inbox_entry_keeps_its_place_through_a_crash(version: Version) -> Result<()> {
    let server = start(version, Here)?;
    let connection = server.connect(DATABASE).await?;
    for key in ["kept", "undone"] {
        let sql = format!("BEGIN; SELECT idem_once('mails', '{key}'); PREPARE TRANSACTION '{key}'");
        ensure!(connection.text(&sql).await? == "t");
    }
    server.crash()?;
    let other = server.connect(DATABASE).await?;
    other.text("SET idempotence.wait = '50 ms'").await?;
    for key in ["kept", "undone"] {
        ensure!(other.sqlstate(&format!("SELECT idem_once('mails', '{key}')")).await? == "55P03");
    }
    other.text("COMMIT PREPARED 'kept'").await?;
    other.text("ROLLBACK PREPARED 'undone'").await?;
    ensure!(other.text("SELECT idem_once('mails', 'kept'), idem_once('mails', 'undone')").await? == "f|t");
    Ok(())
}

// Goal: no acknowledged outcome is lost and no effect is repeated, whenever the server dies.
// Method: clients transfer money with keys, in a session without a journal and in one with a journal. The server is killed
// ten times, each time after a random number of transfers. Then the answers that the clients got are compared with the tables.
async fn crashes_at_random_lose_no_acknowledged_outcome_and_repeat_no_effect(version: Version) -> Result<()> {
    for open in [Bank::open, Bank::open_with_journal] {
        let server = Cluster::start(version)?;
        let mut bank = open(&server, 6)?;
        for _ in 0..10 {
            let transfers = rand::rng().random_range(1..300);
            bank.progress(transfers).await?;
            server.crash()?;
        }
        bank.progress(100).await?;
        let retries = bank.close(&server).await?;
        ensure!(retries > 0, "no client noticed any of the crashes");
    }
    Ok(())
}
