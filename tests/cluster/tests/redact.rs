//! Redactions beside replays and beside the sweep, under load.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::load::{check_happened, count};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, describe, on_each_version};
use rand::RngExt;
use tokio::time::{Duration, Instant, sleep};

on_each_version!(a_redacted_request_is_done_at_every_moment);

const DATABASE: &str = "shop";
const READERS: usize = 6;

/// How a reader asks. The last one keeps its snapshot, and so may be told to try again (40001).
const WAYS: [&str; 4] = [
    "BEGIN; SELECT status, response FROM idem_begin('payments', '{key}', wait => '0'); ROLLBACK",
    "SELECT status, response FROM idem_lookup('payments', '{key}')",
    "BEGIN READ ONLY; SELECT status, response FROM idem_begin('payments', '{key}'); ROLLBACK",
    "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_database; SELECT pg_sleep(0.001) IS NULL;
     SELECT status, response FROM idem_begin('payments', '{key}', wait => '0'); ROLLBACK",
];

/// Outcomes that are redacted one after the other.
struct Outcomes {
    /// For each, how far its redaction is: 0, begun (1), committed (2).
    redacted: Vec<AtomicUsize>,
    full: AtomicUsize,
    empty: AtomicUsize,
    again: AtomicUsize,
    finished: AtomicBool,
}

impl Outcomes {
    /// Asks for outcomes until the end, mostly for those that are just being redacted.
    async fn read(&self, connection: &Connection, newest: &AtomicUsize) -> Result<()> {
        let all = self.redacted.len();
        while !self.finished.load(Relaxed) {
            let (number, way) = {
                let mut rng = rand::rng();
                let near = (newest.load(Relaxed) + rng.random_range(0..3)).min(all - 1);
                let number = if rng.random_bool(0.9) { near } else { rng.random_range(0..all) };
                (number, WAYS[rng.random_range(0..WAYS.len())])
            };
            let before = self.redacted[number].load(Relaxed);
            let asked = connection.try_text(&way.replace("{key}", &format!("key {number}."))).await;
            let after = self.redacted[number].load(Relaxed);
            let told = match asked {
                Ok(told) => told,
                Err(error) if way == WAYS[3] && error.code().is_some_and(|state| state.code() == "40001") => {
                    count(&self.again);
                    connection.text("ROLLBACK").await?;
                    continue;
                }
                Err(error) => return Err(describe(error)).with_context(|| way.to_owned()),
            };
            // A query before it gives a row, too.
            match told.lines().last().unwrap_or_default() {
                "succeeded|" if after > 0 => count(&self.empty),
                full if full == format!("succeeded|{number}") && before < 2 => count(&self.full),
                other => bail!("key {number}, redacted {before} and then {after}, is answered {other:?} to {way}"),
            }
        }
        Ok(())
    }

    async fn redact(&self, connection: &Connection, newest: &AtomicUsize) -> Result<()> {
        for (number, redacted) in self.redacted.iter().enumerate() {
            newest.store(number, Relaxed);
            redacted.store(1, Relaxed);
            let redact = match number % 2 {
                0 => format!("SELECT idem_redact('payments', 'key {number}.', 'a test')"),
                _ => format!("SELECT idem_redact_prefix('payments', 'key {number}.', 'a test', 1) = 1"),
            };
            let start = Instant::now();
            // The sweep may be moving it, and is not waited for where requests are taken by a prefix.
            while connection.text(&redact).await? != "t" {
                ensure!(start.elapsed() < LIMIT, "{redact} finds nothing");
            }
            redacted.store(2, Relaxed);
        }
        self.finished.store(true, Relaxed);
        Ok(())
    }

    /// Turns the ring again and again, so that outcomes are redacted in former segments, and segments are emptied.
    async fn sweep(&self, connection: &Connection) -> Result<()> {
        while !self.finished.load(Relaxed) {
            connection
                .text(
                    "UPDATE idempotence.segment SET opened_at = opened_at - interval '1 year' WHERE current;
                     UPDATE idempotence.segment SET looked_to = 0 WHERE NOT current",
                )
                .await?;
            // The ring turns away from a segment only if something is in it.
            connection.text("SELECT FROM idem_run('brief', gen_random_uuid()::text, 'SELECT 1')").await?;
            connection.text("CALL idem_sweep()").await?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

// Goal: while an outcome is redacted, everybody finds it, with its response or without; after that, without. It is never
// executed again and never unknown, wherever the sweep has put it meanwhile.
// Method: readers ask in each way for the outcomes that are just being redacted. The ring turns all the time. At the end no
// response is left in any table, and each outcome is there once.
async fn a_redacted_request_is_done_at_every_moment(version: Version) -> Result<()> {
    // So many living outcomes count as few, so that a segment with them is emptied at once.
    let server = Cluster::start_with(version, &[("idempotence.sweep_batch", "100000")])?;
    server.create_database(DATABASE)?;
    let dba = server.connect(DATABASE).await?;
    let keys = requests(1_000, 10_000);
    dba.text(&format!(
        "SELECT idem_create_session('payments', ttl => '30 days'), idem_create_session('brief', ttl => '1 second');
         SELECT FROM idem_import('payments', 'SELECT ''key '' || n || ''.'' AS key, to_jsonb(n) AS response FROM generate_series(0, {}) n', 'a test')",
        keys - 1
    ))
    .await?;
    let outcomes = Outcomes {
        redacted: (0..keys).map(|_| AtomicUsize::new(0)).collect(),
        full: AtomicUsize::new(0),
        empty: AtomicUsize::new(0),
        again: AtomicUsize::new(0),
        finished: AtomicBool::new(false),
    };
    let newest = AtomicUsize::new(0);
    let readers = try_join_all((0..READERS).map(async |_| {
        let connection = server.connect(DATABASE).await?;
        outcomes.read(&connection, &newest).await
    }));
    let redactor = async {
        let has_moved = "SELECT count(*) > 0 FROM idempotence.outcome_long";
        server.wait_for(DATABASE, has_moved, "t").await?;
        let done = outcomes.redact(&dba, &newest).await;
        outcomes.finished.store(true, Relaxed);
        done
    };
    let sweeper = async { outcomes.sweep(&server.connect(DATABASE).await?).await };
    tokio::try_join!(readers, redactor, sweeper)?;

    let left = "SELECT count(*), count(DISTINCT key), count(response) FROM (SELECT key, response FROM idempotence.outcome_0
        UNION ALL SELECT key, response FROM idempotence.outcome_1 UNION ALL SELECT key, response FROM idempotence.outcome_2
        UNION ALL SELECT key, response FROM idempotence.outcome_long) o WHERE key LIKE 'key %'";
    ensure!(dba.text(left).await? == format!("{keys}|{keys}|0"));
    println!("{:?} full, {:?} empty, {:?} told to try again", outcomes.full, outcomes.empty, outcomes.again);
    check_happened(&[("full answer", &outcomes.full), ("empty answer", &outcomes.empty), ("40001", &outcomes.again)])
}
