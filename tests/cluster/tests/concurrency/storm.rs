//! Clients whose attempts are rolled back, cancelled and killed all the time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::load::{LEVELS, check_happened, count, disturb};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version};
use rand::RngExt;
use rand::seq::SliceRandom;
use tokio::time::timeout;

use super::work::{WORKER, each_took_effect_once, rows, sqlstate, start, worker};

/// The number of keys in a chunk. A client does a chunk in one batch.
const CHUNK: usize = 50;

/// The number of chunks that each pair of clients sends.
const CHUNKS: usize = 250;

/// Two functions that do a batch in one call. Both return the keys that have an answer, with the answers. The
/// second function makes the effect before it begins the request, so that it must undo the effect of an
/// attempt that it gives up. And it gives up easily.
const BATCHES: &str = "
    CREATE FUNCTION batch(keys text[], client int) RETURNS TABLE (done text, answer int) LANGUAGE plpgsql AS $$
    DECLARE
      ticket idem_ticket;
    BEGIN
      FOREACH done IN ARRAY keys LOOP
        ticket := idem_begin('work', done);
        IF ticket.status = 'started' THEN
          INSERT INTO effect VALUES (done, client);
          PERFORM idem_record('work', done, to_jsonb(client));
          answer := client;
          RETURN NEXT;
        ELSIF ticket.replayed THEN
          answer := ticket.response;
          RETURN NEXT;
        END IF;
      END LOOP;
    END $$;

    CREATE FUNCTION hasty_batch(keys text[], client int) RETURNS TABLE (done text, answer int) LANGUAGE plpgsql AS $$
    DECLARE
      ticket idem_ticket;
    BEGIN
      FOREACH done IN ARRAY keys LOOP
        BEGIN
          INSERT INTO effect VALUES (done, client);
          ticket := idem_begin('work', done, wait => CASE WHEN random() < 0.5 THEN '2 ms' ELSE '10 s' END::interval);
          IF ticket.status <> 'started' THEN
            RAISE EXCEPTION 'not to be executed' USING ERRCODE = 'P0099';
          END IF;
          PERFORM idem_record('work', done, to_jsonb(client));
          answer := client;
          RETURN NEXT;
        EXCEPTION
          WHEN SQLSTATE 'P0099' THEN
            IF ticket.replayed THEN
              answer := ticket.response;
              RETURN NEXT;
            END IF;
          WHEN query_canceled OR serialization_failure OR deadlock_detected THEN
            NULL;
        END;
      END LOOP;
    END $$;";

/// How often the clients met each kind of disturbance.
#[derive(Debug, Default)]
struct Tally {
    rolled_back: AtomicUsize,
    cancelled: AtomicUsize,
    disconnected: AtomicUsize,
    unserializable: AtomicUsize,
    deadlocks: AtomicUsize,
    left_over: AtomicUsize,
}

// Goal: no double execution in 100 000 requests, each sent by two clients, whatever ends their attempts.
// Method: eight pairs of clients; both clients of a pair send the same keys. They send batches in one call,
// batches that give up key by key, and single requests with round trips, at all isolation levels, and now and
// then in opposite orders. They roll back at random, and are cancelled and killed from outside. Each client
// goes on until it has every answer.
pub async fn a_hundred_thousand_requests_take_effect_once_through_rollbacks_cancels_and_kills(
    version: Version,
) -> Result<()> {
    const PAIRS: usize = 8;
    let cluster = start(version).await?;
    // Transactions that block each other get their error soon.
    cluster.psql("work", &format!("ALTER DATABASE work SET deadlock_timeout = '10 ms'; {BATCHES}"))?;

    let tally = Tally::default();
    let finished = AtomicBool::new(false);
    let load = async {
        let clients = (0..2 * PAIRS).map(|client| go_through(&cluster, client / 2, client, &tally));
        let told = try_join_all(clients).await;
        finished.store(true, Relaxed);
        told
    };
    let (told, ()) = timeout(5 * LIMIT, async { tokio::try_join!(load, disturb(&cluster, "work", WORKER, &finished)) })
        .await
        .context("the clients do not come to an end")??;

    let executed = each_took_effect_once(&cluster, PAIRS * CHUNKS * CHUNK).await?;
    for (client, answers) in told.iter().enumerate() {
        ensure!(answers.len() == CHUNKS * CHUNK, "client {client} has {} answers", answers.len());
        for (key, answer) in answers {
            ensure!(executed.get(key) == Some(answer), "client {client} was told {answer} of {key}");
        }
    }
    println!("{tally:?}");
    // Each kind of disturbance has happened.
    check_happened(&[
        ("rollback", &tally.rolled_back),
        ("cancel", &tally.cancelled),
        ("lost connection", &tally.disconnected),
        ("serialization failure", &tally.unserializable),
        ("second attempt at a request", &tally.left_over),
    ])
}

/// Sends all requests of the pair. Returns the answers that this client got.
async fn go_through(cluster: &Cluster, pair: usize, client: usize, tally: &Tally) -> Result<HashMap<String, String>> {
    let mut told = HashMap::with_capacity(CHUNKS * CHUNK);
    let mut connection = worker(cluster).await?;
    for chunk in 0..CHUNKS {
        let mut keys: Vec<String> = (0..CHUNK).map(|n| format!("pair {pair}, chunk {chunk}, {n}")).collect();
        if rand::rng().random_bool(0.1) {
            keys.shuffle(&mut rand::rng());
        }
        while !keys.is_empty() {
            let size = if rand::rng().random_bool(0.3) { 1 } else { keys.len() };
            match attempt(&connection, &keys[..size], client).await {
                Ok(Some(answers)) => told.extend(answers),
                Ok(None) => count(&tally.rolled_back),
                Err(error) => {
                    match sqlstate(&error) {
                        Some("57014") => count(&tally.cancelled),
                        Some("40001") => count(&tally.unserializable),
                        Some("40P01") => count(&tally.deadlocks),
                        None => count(&tally.disconnected),
                        Some(_) => return Err(error).with_context(|| keys[0].clone()),
                    }
                    // A rollback fails if the connection is gone, or if a late cancel hits it.
                    if connection.text("ROLLBACK").await.is_err() {
                        connection = patiently(|| worker(cluster)).await?;
                    }
                }
            }
            keys.retain(|key| !told.contains_key(key));
            if !keys.is_empty() {
                count(&tally.left_over);
            }
        }
    }
    Ok(told)
}

/// Repeats work that a disturbance from outside may end.
async fn patiently<T>(work: impl AsyncFn() -> Result<T>) -> Result<T> {
    const TRIES_MAX: usize = 100;
    for _ in 1..TRIES_MAX {
        if let Ok(done) = work().await {
            return Ok(done);
        }
    }
    work().await
}

/// Sends requests in one transaction. Returns their answers if it was committed, and `None` if it was rolled
/// back.
async fn attempt(
    connection: &Connection,
    keys: &[String],
    client: usize,
) -> Result<Option<Vec<(String, String)>>, tokio_postgres::Error> {
    let level = LEVELS[rand::rng().random_range(0..LEVELS.len())];
    connection.try_text(&format!("BEGIN ISOLATION LEVEL {level}")).await?;
    let answers = match keys {
        [key] => execute_one(connection, key, client).await?,
        _ => {
            let function = if rand::rng().random_bool(0.4) { "hasty_batch" } else { "batch" };
            let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(", ");
            connection.try_text(&format!("SELECT * FROM {function}(ARRAY[{list}], {client})")).await?
        }
    };
    let answers = rows(&answers).map(|(key, answer)| (key.into(), answer.into())).collect();
    let commits = rand::rng().random_bool(0.95);
    connection.try_text(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
    Ok(commits.then_some(answers))
}

/// Executes one request by round trips. Returns the key and its answer.
async fn execute_one(connection: &Connection, key: &str, client: usize) -> Result<String, tokio_postgres::Error> {
    let begin = format!("SELECT status, response FROM idem_begin('work', '{key}')");
    let ticket = connection.try_text(&begin).await?;
    if let Some(answer) = ticket.strip_prefix("succeeded|") {
        return Ok(format!("{key}|{answer}"));
    }
    connection.try_text(&format!("INSERT INTO effect VALUES ('{key}', {client})")).await?;
    connection.try_text(&format!("SELECT FROM idem_record('work', '{key}', '{client}')")).await?;
    Ok(format!("{key}|{client}"))
}
