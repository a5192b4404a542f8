//! The ring turns while clients execute requests, and while restores are at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::ring::CURRENT;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, Version, describe};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};
use tokio_postgres::error::SqlState;

/// The number of turns of the ring in the stress test. The outcomes live for a second, and so does each
/// segment.
const TURNS: usize = 45;

/// Makes segments old at once. The ring is due to turn, and a closed segment is kept for the ttl alone, without the usual
/// six minutes on top. So the ring turns as fast as it ever can. At some times the current segment's end is so near that
/// new outcomes outlive it.
const HURRY: &str = "
    UPDATE idempotence.segment SET opened_at = opened_at - interval '1 hour',
           ends_at = CASE WHEN random() < 0.5 THEN clock_timestamp() + interval '1 s' ELSE ends_at END WHERE current;
    UPDATE idempotence.segment SET ends_at = closed_at + interval '1 s' - interval '1 minute' WHERE closed_at IS NOT NULL;
    ALTER TABLE idempotence.segment RESET (fillfactor)";

/// Table `effect` has the executions, with the latest time at which the execution was begun and the time
/// until which its outcome lived.
const SETUP: &str = "
    SELECT idem_create_session('s', ttl => '1 s'), idem_create_session('in', ttl => '1 s', inbox => true);
    CREATE TABLE effect (session text, key text, begun_at timestamptz, expires_at timestamptz);
    -- The segments are kept as briefly as such outcomes allow.
    UPDATE idempotence.segment SET keep_us = 361000000";

/// The executions that were begun while the outcome of an earlier execution of the same request lived.
const DOUBLED: &str = "
    SELECT * FROM (SELECT *, lag(expires_at) OVER w AS earlier FROM effect
                   WINDOW w AS (PARTITION BY session, key ORDER BY begun_at)) e
     WHERE begun_at < earlier";

// Goal: no outcome is lost before its time and none is there twice, however the ring turns and however
// segments are closed and emptied.
// Method: clients execute the same few requests again and again, in transactions of random length, some of
// which are rolled back or prepared. Messages come in batches that overlap. In the meantime the test makes
// segments old.
pub async fn outcomes_live_for_their_time_while_the_ring_turns(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[("max_prepared_transactions", "20")])?;
    server.psql(DATABASE, SETUP)?;
    let (closing, replays) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for number in 0..6 {
        let connection = server.connect(DATABASE).await?;
        connection.text("SET idempotence.wait = '20 s'").await?;
        let (closing, replays) = (Arc::clone(&closing), Arc::clone(&replays));
        clients.spawn(async move {
            while !closing.load(Relaxed) {
                if number < 4 {
                    replays.fetch_add(usize::from(request(&connection, number).await?), Relaxed);
                } else {
                    messages(&connection).await?;
                }
            }
            anyhow::Ok(())
        });
    }

    let dba = server.connect(DATABASE).await?;
    let (mut turns, mut current) = (0, dba.text(CURRENT).await?);
    while turns < TURNS {
        dba.text(HURRY).await?;
        dba.text("CALL idem_sweep()").await?;
        let now = dba.text(CURRENT).await?;
        turns += usize::from(now != current);
        current = now;
        if let Some(ended) = clients.try_join_next() {
            ended?.context("a client gave up")?;
        }
        // This sets the pace. It is not a wait for anything.
        sleep(Duration::from_millis(100)).await;
    }
    closing.store(true, Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended?.context("a client gave up")?;
    }

    let doubled = dba.text(DOUBLED).await?;
    ensure!(doubled.is_empty(), "executed while the outcome lived:\n{doubled}");
    ensure!(dba.text("SELECT count(*) > 0 FROM idempotence.outcome_long").await? == "t", "nothing outlived a segment");
    let kinds = "SELECT count(*) > 100, count(*) FILTER (WHERE session = 'in') > 100 FROM effect";
    ensure!(dba.text(kinds).await? == "t|t", "there was hardly any load");
    ensure!(replays.load(Relaxed) > 100, "hardly anything was replayed");
    Ok(())
}

/// Executes one of a few requests, or gets the answer of an earlier execution. Returns whether it was a
/// replay.
async fn request(connection: &Connection, number: usize) -> Result<bool> {
    let key = format!("k{}", rand::rng().random_range(0..40));
    let (nap_ms, fate) = (rand::rng().random_range(0..60), rand::rng().random_range(0..20));
    let begin = format!("BEGIN; SELECT status, replayed, response FROM idem_begin('s', '{key}')");
    let ticket = connection.text(&begin).await?;
    if ticket.contains("|t|") {
        connection.text("COMMIT").await?;
        ensure!(ticket.starts_with("succeeded|t|"), "{key}: {ticket}");
        return Ok(true);
    }
    ensure!(ticket.starts_with("started|f|"), "{key}: {ticket}");
    let long = if fate == 0 { 700 } else { nap_ms };
    let work = format!(
        "INSERT INTO effect SELECT 's', '{key}', clock_timestamp(); SELECT FROM pg_sleep({long} / 1000.0);
         UPDATE effect SET expires_at = idem_record('s', '{key}', '{number}')
          WHERE session = 's' AND key = '{key}' AND expires_at IS NULL"
    );
    connection.text(&work).await?;
    match fate {
        1 | 2 => _ = connection.text("ROLLBACK").await?,
        3 | 4 => {
            connection.text(&format!("PREPARE TRANSACTION 'client {number}'")).await?;
            connection.text(&format!("SELECT FROM pg_sleep({nap_ms} / 100.0)")).await?;
            let end = if fate == 3 { "COMMIT" } else { "ROLLBACK" };
            connection.text(&format!("{end} PREPARED 'client {number}'")).await?;
        }
        _ => _ = connection.text("COMMIT").await?,
    }
    Ok(false)
}

/// Sends a batch of messages. The new messages take effect. Their outcomes live from some moment of the call
/// on, so at least from the moment before the call.
async fn messages(connection: &Connection) -> Result<()> {
    let first = rand::rng().random_range(0..60);
    let (nap_ms, fate) = (rand::rng().random_range(0..50), rand::rng().random_range(0..10));
    let batch = format!(
        "BEGIN; CREATE TEMP TABLE before ON COMMIT DROP AS SELECT clock_timestamp() AS at;
         INSERT INTO effect
         SELECT 'in', request, clock_timestamp(), (SELECT at FROM before) + interval '1 s'
           FROM idem_once_many('in', ARRAY(SELECT 'm' || n FROM generate_series({first}, {first} + 9) n));
         SELECT FROM pg_sleep({nap_ms} / 1000.0); {}",
        if fate == 0 { "ROLLBACK" } else { "COMMIT" }
    );
    match connection.try_text(&batch).await {
        // Two batches that overlap may wait for each other if the ring turned between them.
        Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {
            connection.text("ROLLBACK").await.map(drop)
        }
        result => result.map(drop).map_err(describe),
    }
}

// Goal: restores, the creation of sessions and sweeps at the same time only make each other wait.
// Method: in loops, transactions that insert into each table by SQL, connections that create sessions, and
// sweeps.
pub async fn restores_and_sweeps_do_not_meet(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 s')").await?;
    let closing = Arc::new(AtomicBool::new(false));
    let mut others = JoinSet::new();
    for (number, table) in ["outcome_0", "outcome_1", "outcome_long", "session"].into_iter().enumerate() {
        let (closing, restorer) = (Arc::clone(&closing), server.connect(DATABASE).await?);
        let maker = server.connect(DATABASE).await?;
        let of = Arc::clone(&closing);
        others.spawn(async move {
            while !closing.load(Relaxed) {
                let restore = format!("INSERT INTO idempotence.{table} SELECT * FROM idempotence.{table} WHERE false");
                restorer.text(&format!("BEGIN; {restore}; SELECT FROM pg_sleep(0.01); COMMIT")).await?;
                sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        });
        others.spawn(async move {
            for turn in 0.. {
                if of.load(Relaxed) {
                    break;
                }
                let make = format!("SELECT idem_create_session('{number} {turn}', ttl => '{} days')", turn % 3000 + 1);
                maker.text(&format!("BEGIN; {make}; SELECT FROM pg_sleep(0.01); COMMIT")).await?;
            }
            anyhow::Ok(())
        });
    }
    for turn in 0..200 {
        connection.execute("s", &turn.to_string(), "1").await?;
        connection.text("CALL idem_sweep()").await?;
        if let Some(ended) = others.try_join_next() {
            ended?.context("a connection gave up")?;
        }
    }
    closing.store(true, Relaxed);
    while let Some(ended) = others.join_next().await {
        ended?.context("a connection gave up")?;
    }
    Ok(())
}
