//! Connections that begin the same requests at the same instant.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::load::LEVELS;
use idempotence_cluster_tests::{Connection, Version};
use rand::seq::SliceRandom;
use tokio::sync::Barrier;

use super::work::{each_took_effect_once, rows, sqlstate, start, workers};

// Goal: if several connections begin one request at the same instant, exactly one of them executes it, at
// each isolation level.
// Method: rounds, each with a new key. All connections start together, try again on 40001, and compare their
// answers.
pub async fn of_those_who_begin_at_once_one_executes_and_all_get_its_answer(version: Version) -> Result<()> {
    let cluster = start(version).await?;
    for (clients, rounds) in [(2, 100), (16, 25)] {
        let connections = workers(&cluster, clients).await?;
        let together = Barrier::new(clients);
        for level in LEVELS {
            for round in 0..rounds {
                let key = format!("{clients} clients, {level}, round {round}");
                let told = try_join_all(connections.iter().enumerate().map(async |(client, connection)| {
                    together.wait().await;
                    begin_until_answered(connection, level, &key, client).await
                }))
                .await?;
                let executed: Vec<usize> = (0..clients).filter(|client| told[*client].0).collect();
                ensure!(executed.len() == 1, "{key}: executed by {executed:?}");
                ensure!(told.iter().all(|(_, answer)| *answer == executed[0].to_string()), "{key}: {told:?}");
            }
        }
    }
    each_took_effect_once(&cluster, 3 * (100 + 25)).await?;
    Ok(())
}

/// Begins until there is an answer. Returns whether this client executed the request, and the answer.
async fn begin_until_answered(
    connection: &Connection,
    level: &str,
    key: &str,
    client: usize,
) -> Result<(bool, String)> {
    loop {
        match begin_once(connection, level, key, client).await {
            Ok(told) => return Ok(told),
            Err(error) if sqlstate(&error) == Some("40001") => _ = connection.text("ROLLBACK").await?,
            Err(error) => return Err(error).with_context(|| key.to_owned()),
        }
    }
}

async fn begin_once(
    connection: &Connection,
    level: &str,
    key: &str,
    client: usize,
) -> Result<(bool, String), tokio_postgres::Error> {
    let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT status, response FROM idem_begin('work', '{key}')");
    let ticket = connection.try_text(&begin).await?;
    let executes = ticket == "started|";
    if executes {
        let execute = format!(
            "INSERT INTO effect VALUES ('{key}', {client}); SELECT FROM idem_record('work', '{key}', '{client}')"
        );
        connection.try_text(&execute).await?;
    }
    connection.try_text("COMMIT").await?;
    let answer = if executes { client.to_string() } else { ticket.replace("succeeded|", "") };
    Ok((executes, answer))
}

// Goal: four connections send overlapping batches of the largest size at once. They get no error with the
// default size of the lock table, and each key is new for exactly one of them.
// Method: three rounds of batches with 10 000 keys. Each batch has half of its keys in common with the next
// batch, and has an order of its own.
pub async fn overlapping_batches_of_an_inbox_tell_each_key_as_new_once(version: Version) -> Result<()> {
    const CLIENTS: usize = 4;
    const BATCH: usize = 10_000;
    const STEP: usize = BATCH / 2;
    let cluster = start(version).await?;
    let connections = workers(&cluster, CLIENTS).await?;
    let locks =
        connections[0].text("SELECT boot_val = setting FROM pg_settings WHERE name = 'max_locks_per_transaction'");
    ensure!(locks.await? == "t", "the lock table is not of its default size");

    let together = Barrier::new(CLIENTS);
    for round in 0..3 {
        let new = try_join_all(connections.iter().enumerate().map(async |(client, connection)| {
            let mut keys: Vec<usize> = (client * STEP..client * STEP + BATCH).collect();
            keys.shuffle(&mut rand::rng());
            let list = keys.iter().map(|key| format!("\"{round}, {key}\"")).collect::<Vec<_>>().join(",");
            together.wait().await;
            connection.text(&format!("SELECT ord, request FROM idem_once_many('inbox', '{{{list}}}')")).await
        }))
        .await?;
        let all: Vec<&str> = new.iter().flat_map(|new| rows(new)).map(|(_, key)| key).collect();
        let distinct: HashSet<&str> = all.iter().copied().collect();
        ensure!(all.len() == distinct.len(), "round {round}: {} were new twice", all.len() - distinct.len());
        let keys = (CLIENTS - 1) * STEP + BATCH;
        ensure!(distinct.len() == keys, "round {round}: {} of {keys} were new", distinct.len());
    }
    // The index has an entry for each row, in its order.
    connections[0].text("CREATE EXTENSION amcheck; SELECT bt_index_check('idempotence.outcome_0_pkey', true)").await?;
    Ok(())
}
