//! Many connections at one session: each request takes effect once, and everyone gets its answer.
//!
//! The small races, step by step, are isolation specs; here the same promises are held against load,
//! with nothing between the clients and a double effect but the extension: `effect` has no constraint.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use rand::RngExt;
use rand::seq::SliceRandom;
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

on_each_version!(
    of_those_who_begin_at_once_one_executes_and_all_get_its_answer,
    a_hundred_thousand_requests_take_effect_once_through_rollbacks_cancels_and_kills,
    overlapping_batches_of_an_inbox_tell_each_key_as_new_once,
    replays_of_one_request_wait_for_nothing_and_hold_nothing,
    a_lookup_never_misses_a_request_that_was_begun,
);

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

const SCHEMA: &str = "
    SELECT idem_create_session('work');
    SELECT idem_create_session('inbox', inbox => true);
    CREATE TABLE effect (key text NOT NULL, client int NOT NULL);";

/// How a client's connection is known to whoever watches or disturbs it.
const WORKER: &str = "worker";

/// Whoever has to wait longer than this on any machine is stuck.
const PATIENCE: &str = "2 min";

async fn start(version: Version) -> Result<Cluster> {
    let cluster = Cluster::start(version)?;
    cluster.create_database("work")?;
    cluster.psql("work", SCHEMA)?;
    Ok(cluster)
}

async fn worker(cluster: &Cluster) -> Result<Connection> {
    let connection = cluster.reconnect("work").await?;
    let settings = format!("SET application_name = '{WORKER}'; SET idempotence.wait = '{PATIENCE}'");
    connection.text(&settings).await?;
    Ok(connection)
}

async fn workers(cluster: &Cluster, count: usize) -> Result<Vec<Connection>> {
    try_join_all((0..count).map(|_| worker(cluster))).await
}

/// The SQLSTATE of an error, `None` where the connection is gone.
fn sqlstate(error: &tokio_postgres::Error) -> Option<&str> {
    // 57P01: an administrator's command ended it; the server says so and closes it.
    error.code().map(tokio_postgres::error::SqlState::code).filter(|state| *state != "57P01")
}

/// The rows of a query, each made of its columns parted by `|`.
fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(|row| row.split_once('|').unwrap_or((row, "")))
}

// Goal: of connections that begin one request at the same instant exactly one executes, at each level.
// Method: rounds of a fresh key; all start together, try again on 40001, and compare what they were told.
async fn of_those_who_begin_at_once_one_executes_and_all_get_its_answer(version: Version) -> Result<()> {
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

/// Whether this client executed, and the answer.
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

/// Effects and outcomes belong together, one and one, in both directions; gives who executed what.
async fn each_took_effect_once(cluster: &Cluster, keys: usize) -> Result<HashMap<String, String>> {
    let connection = cluster.connect("work").await?;
    let twice = connection.text("SELECT key FROM effect GROUP BY key HAVING count(*) > 1").await?;
    ensure!(twice.is_empty(), "executed more than once:\n{twice}");
    let effects = "SELECT key, client FROM effect";
    let outcomes = "SELECT request, (response #>> '{}')::int FROM idempotence.outcomes WHERE session = 'work'";
    let lost = connection.text(&format!("{effects} EXCEPT {outcomes}")).await?;
    ensure!(lost.is_empty(), "effects without their outcome:\n{lost}");
    let empty = connection.text(&format!("{outcomes} EXCEPT {effects}")).await?;
    ensure!(empty.is_empty(), "outcomes without their effect:\n{empty}");
    let executed = connection.text(effects).await?;
    let executed: HashMap<String, String> = rows(&executed).map(|(key, by)| (key.into(), by.into())).collect();
    ensure!(executed.len() == keys, "{} of {keys} requests took effect", executed.len());
    Ok(executed)
}

// Goal: no double execution in 100 000 requests, each sent by two clients, whatever ends their attempts.
// Method: eight pairs of clients, each pair with the same keys; by batches in one call, by batches that
// give up key by key, by single requests with round trips; at all levels, in opposite orders now and then;
// rolled back at random, cancelled and killed from outside. Each client goes on until it has every answer.
async fn a_hundred_thousand_requests_take_effect_once_through_rollbacks_cancels_and_kills(
    version: Version,
) -> Result<()> {
    const PAIRS: usize = 8;
    let cluster = start(version).await?;
    // So that those who block each other are told at once.
    cluster.psql("work", &format!("ALTER DATABASE work SET deadlock_timeout = '10 ms'; {BATCHES}"))?;

    let tally = Tally::default();
    let finished = AtomicBool::new(false);
    let load = async {
        let clients = (0..2 * PAIRS).map(|client| go_through(&cluster, client / 2, client, &tally));
        let told = try_join_all(clients).await;
        finished.store(true, Relaxed);
        told
    };
    let (told, ()) = timeout(5 * LIMIT, async { tokio::try_join!(load, disturb(&cluster, &finished)) })
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
    // What was to be survived has happened.
    for (what, count) in [
        ("rollback", &tally.rolled_back),
        ("cancel", &tally.cancelled),
        ("lost connection", &tally.disconnected),
        ("serialization failure", &tally.unserializable),
        ("second attempt at a request", &tally.left_over),
    ] {
        ensure!(count.load(Relaxed) > 0, "there was no {what}");
    }
    Ok(())
}

/// Keys in a chunk, which is what a client does in a batch; chunks of each pair of clients.
const CHUNK: usize = 50;
const CHUNKS: usize = 250;

/// Two ways to do a batch in one call, both giving the keys that have an answer, with that. The second puts
/// the effect before the begin, so that an attempt given up has to be undone, and gives up easily.
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

/// What clients met with.
#[derive(Debug, Default)]
struct Tally {
    rolled_back: AtomicUsize,
    cancelled: AtomicUsize,
    disconnected: AtomicUsize,
    unserializable: AtomicUsize,
    deadlocks: AtomicUsize,
    left_over: AtomicUsize,
}

/// The answers to all requests of the pair, as this client was told them.
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
                    // A rollback fails where the connection is gone, or a late cancel hits it.
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

fn count(what: &AtomicUsize) {
    what.fetch_add(1, Relaxed);
}

/// Tries again what may be disturbed from outside.
async fn patiently<T>(work: impl AsyncFn() -> Result<T>) -> Result<T> {
    const TRIES_MAX: usize = 100;
    for _ in 1..TRIES_MAX {
        if let Ok(done) = work().await {
            return Ok(done);
        }
    }
    work().await
}

/// One transaction: the answers that it was told, once they are committed; `None` when it rolled back.
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

/// The same by round trips; gives the key and its answer.
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

/// Kills clients' backends at random, and cancels what they do, until all is done. Every other cancel is for
/// one that waits for a lock, if there is one.
async fn disturb(cluster: &Cluster, finished: &AtomicBool) -> Result<()> {
    let connection = cluster.connect("work").await?;
    while !finished.load(Relaxed) {
        let kills = rand::rng().random_bool(0.1);
        let (function, state) =
            if kills { ("pg_terminate_backend", "idle in transaction") } else { ("pg_cancel_backend", "active") };
        let waits = !kills && rand::rng().random_bool(0.5);
        let disturb = format!(
            "SELECT {function}(pid) FROM (SELECT pid FROM pg_stat_activity
             WHERE application_name = '{WORKER}' AND state IN ('active', '{state}')
             ORDER BY {waits} AND wait_event_type = 'Lock' DESC NULLS LAST, random() LIMIT 1) a"
        );
        connection.text(&disturb).await?;
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

// Goal: batches as large as may be, from four connections at once, overlapping: no error at the default
// size of the lock table, and each key is new for exactly one.
// Method: windows of 10 000 keys, each with half of its neighbour's, in an order of their own; three rounds.
async fn overlapping_batches_of_an_inbox_tell_each_key_as_new_once(version: Version) -> Result<()> {
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
    Ok(())
}

// Goal: replays of one request do not wait for each other, nor for transactions that replayed it before.
// Method: sixteen connections at one key, in transactions that stay open for a while; all the time another
// looks for anyone who waits for a lock. At the end, with all of them open, for what they hold.
async fn replays_of_one_request_wait_for_nothing_and_hold_nothing(version: Version) -> Result<()> {
    const CLIENTS: usize = 16;
    const TRANSACTIONS: usize = 100;
    let cluster = start(version).await?;
    let connections = workers(&cluster, CLIENTS).await?;
    connections[0].execute("work", "k", "42").await?;

    let running = AtomicUsize::new(CLIENTS);
    let together = Barrier::new(CLIENTS);
    let replays = try_join_all(connections.iter().map(async |connection| {
        together.wait().await;
        for _ in 0..TRANSACTIONS {
            connection.text("BEGIN").await?;
            for _ in 0..10 {
                let answer = connection.replay("work", "k").await?;
                ensure!(answer == "succeeded|42", "{answer}");
            }
            connection.text("COMMIT").await?;
        }
        connection.text("BEGIN").await?;
        connection.replay("work", "k").await?;
        running.fetch_sub(1, SeqCst);
        Ok(())
    }));
    let watch = async {
        let watcher = cluster.connect("work").await?;
        let mut looks = 0;
        while running.load(SeqCst) > 0 {
            let waiting = format!(
                "SELECT a.pid, a.wait_event, l.locktype, l.mode
                 FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted
                 WHERE application_name = '{WORKER}' AND (wait_event_type = 'Lock' OR l.pid IS NOT NULL)"
            );
            let waiting = watcher.text(&waiting).await?;
            ensure!(waiting.is_empty(), "waits for a lock: {waiting}");
            looks += 1;
        }
        ensure!(looks > 0, "nobody looked");
        let held = format!(
            "SELECT pid, locktype, mode, relation::regclass FROM pg_stat_activity JOIN pg_locks USING (pid)
             WHERE application_name = '{WORKER}' AND locktype <> 'virtualxid'"
        );
        let held = watcher.text(&held).await?;
        ensure!(held.is_empty(), "holds in an open transaction: {held}");
        let open = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{WORKER}' AND xact_start IS NOT NULL"
        );
        ensure!(watcher.text(&open).await? == CLIENTS.to_string(), "their transactions are not open");
        Ok(())
    };
    tokio::try_join!(replays, watch)?;
    Ok(())
}

// Goal: a lookup that meets the commit of a request finds it in progress or done, never unknown.
// Method: one connection begins and commits request after request; others look up the newest one begun.
async fn a_lookup_never_misses_a_request_that_was_begun(version: Version) -> Result<()> {
    const REQUESTS: usize = 2000;
    const READERS: usize = 3;
    let cluster = start(version).await?;
    let connections = workers(&cluster, 1 + READERS).await?;
    let (writer, readers) = connections.split_first().context("no connections")?;
    // The number of the newest request begun, and counts of what was seen of them.
    let newest = AtomicUsize::new(0);
    let (in_progress, done) = (AtomicUsize::new(0), AtomicUsize::new(0));

    let write = async {
        for n in 1..=REQUESTS {
            writer.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{n}')")).await?;
            newest.store(n, SeqCst);
            writer.text(&format!("SELECT FROM idem_record('work', '{n}'); COMMIT")).await?;
        }
        newest.store(usize::MAX, SeqCst);
        Ok(())
    };
    let read = try_join_all(readers.iter().map(async |reader| {
        loop {
            match newest.load(SeqCst) {
                0 => tokio::task::yield_now().await,
                usize::MAX => return Ok(()),
                n => match reader.lookup("work", &n.to_string()).await?.as_str() {
                    "in_progress" => count(&in_progress),
                    "succeeded" => count(&done),
                    other => bail!("request {n} is {other}"),
                },
            }
        }
    }));
    tokio::try_join!(write, read)?;
    ensure!(in_progress.load(Relaxed) > 0 && done.load(Relaxed) > 0, "nobody looked before and after a commit");
    Ok(())
}
