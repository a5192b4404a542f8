//! Replays and lookups beside the requests that they ask for.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::{try_join, try_join_all};
use idempotence_cluster_tests::load::count;
use idempotence_cluster_tests::{Connection, Version};
use idempotence_demo::host;
use rand::RngExt;
use tokio::sync::Barrier;
use tokio::task::yield_now;
use tokio::time::{Duration, sleep};

use super::work::{WORKER, start, workers};

// Goal: replays of one request do not wait for each other, nor for transactions that replayed it before.
// Method: sixteen connections replay one key, in transactions that stay open for a while. All the time
// another connection looks for waits for a lock. At the end, while all transactions are open, it looks for
// the locks that they hold.
pub async fn replays_of_one_request_wait_for_nothing_and_hold_nothing(version: Version) -> Result<()> {
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

// Goal: a lookup that meets the commit of a request finds the request in progress or done, never unknown.
// Method: one connection begins and commits request after request; other connections look up the newest begun
// request.
pub async fn a_lookup_never_misses_a_request_that_was_begun(version: Version) -> Result<()> {
    const REQUESTS: usize = 2000;
    const READERS: usize = 3;
    let cluster = start(version).await?;
    let connections = workers(&cluster, 1 + READERS).await?;
    let (writer, readers) = connections.split_first().context("no connections")?;
    // The number of the newest begun request, and how often each status was found.
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
                0 => yield_now().await,
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

// Goal: whoever cancels a call gets it cancelled, also where the call bounds its own waits by cancelling them.
// Method: lookups wait for a request of a session with a journal, and are cancelled at any moment. One who fences a client
// waits in short turns, and the process is stopped while a turn runs out and the cancel comes, so that it finds both.
pub async fn a_cancel_is_never_taken_for_the_end_of_a_wait(version: Version) -> Result<()> {
    let cluster = start(version).await?;
    let (holder, canceller) = (cluster.connect("work").await?, cluster.connect("work").await?);
    holder.text("SELECT idem_create_journal('kept'); SELECT idem_create_session('kept', journal => 'kept')").await?;
    holder.text("BEGIN; SELECT idem_begin('kept', 'k')").await?;
    let waiter = cluster.connect("work").await?;
    let pid = waiter.pid().await?;
    for _ in 0..400 {
        let look = waiter.sqlstate("SELECT idem_lookup('kept', 'k', wait => '3 s')");
        let cancel = async {
            is_at_work(&canceller, pid).await?;
            sleep(Duration::from_micros(rand::rng().random_range(17_000..25_000))).await;
            canceller.text(&format!("SELECT pg_cancel_backend({pid})")).await
        };
        let (state, _) = try_join(look, cancel).await?;
        ensure!(state == "57014", "{state}");
    }

    holder.text("ROLLBACK; SELECT idem_register(client => 'c')").await?;
    holder.text("BEGIN; SELECT idem_heartbeat(session) FROM idempotence.sessions WHERE client = 'c'").await?;
    waiter.text("SET idempotence.wait = '3 s'").await?;
    for _ in 0..20 {
        let fence = waiter.sqlstate("SELECT idem_register(client => 'c')");
        let cancel = async {
            is_at_work(&canceller, pid).await?;
            sleep(Duration::from_millis(rand::rng().random_range(1..60))).await;
            host::freeze(pid);
            sleep(Duration::from_millis(200)).await;
            let cancelled = canceller.text(&format!("SELECT pg_cancel_backend({pid})")).await;
            host::thaw(pid);
            cancelled
        };
        let (state, _) = try_join(fence, cancel).await?;
        ensure!(state == "57014", "{state}");
    }
    Ok(())
}

/// Waits until a statement has come to the process: a cancel that comes before it is for nothing.
async fn is_at_work(watch: &Connection, pid: i32) -> Result<()> {
    while watch.text(&format!("SELECT state FROM pg_stat_activity WHERE pid = {pid}")).await? != "active" {}
    Ok(())
}
