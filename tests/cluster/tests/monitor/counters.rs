//! The counters against what clients count themselves.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::effort::minutes;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};
use tokio::time::{Duration, Instant, sleep};

use super::books::{Books, EXACT};
use super::client::{Client, SESSIONS};

/// The number of clients. Each has two connections.
const CLIENTS: usize = 16;

/// In the suite the clients work for so long, and on until each counter has counted something, but not for ever.
const SHORT: Duration = Duration::from_secs(5);
const AT_MOST: Duration = Duration::from_secs(90);

/// The backend of a connection that only does calls may grow by so much, once it has done each of them.
const GROWTH_KB: u64 = 2 << 10;

fn start(version: Version) -> Result<Cluster> {
    let settings = [
        ("shared_preload_libraries", "idempotence"),
        ("deadlock_timeout", "50ms"),
        ("max_prepared_transactions", "30"),
        ("log_min_messages", "fatal"),
    ];
    shop::start_with(version, &settings)
}

// Goal: each counter has exactly what was answered, whatever becomes of the calls and of their transactions.
// Method: clients do all kinds of calls in random order, with rollbacks, cancels, deadlocks and killed backends, and count
// their own answers. Meanwhile somebody reads the counters all the time, and finds that none falls.
pub async fn counters_equal_what_the_clients_have_counted(version: Version) -> Result<()> {
    let server = start(version)?;
    let watcher = server.connect(DATABASE).await?;
    watcher.text(SESSIONS).await?;
    let before = watcher.text(FREE).await?;
    let mut clients = try_join_all((0..CLIENTS).map(|number| Client::new(&server, number))).await?;
    let (start, finished, all_moved) = (Instant::now(), AtomicBool::new(false), AtomicBool::new(false));
    let work = async {
        let goes_on = || {
            let since = start.elapsed();
            since < minutes(SHORT) || since < AT_MOST && !all_moved.load(Relaxed)
        };
        let work = clients.iter_mut().map(|client| async move {
            while goes_on() {
                client.step().await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        let done = try_join_all(work).await;
        finished.store(true, Relaxed);
        done
    };
    let (_, (), mut books) =
        tokio::try_join!(work, watch(&watcher, &finished, &all_moved), check_memory(&server, &finished))?;

    clients.iter().for_each(|client| books.merge(&client.books));
    books.check(&watcher).await?;
    for counter in EXACT {
        println!("{counter}: {}", books.sum(counter));
        ensure!(books.sum(counter) > 0, "nothing was counted as {counter}");
    }
    let left = watcher.text("SELECT count(*) FROM idempotence.in_flight").await?;
    ensure!(left == "0", "{left} requests are in flight, and nobody is at work");
    let after = watcher.text(FREE).await?;
    let (before, after) = (before.parse::<i64>()?, after.parse::<i64>()?);
    println!("{before} bytes of shared memory were free, and {after} are");
    ensure!(before - after < 100_000, "{before} bytes of shared memory were free, and {after} are");
    Ok(())
}

/// What is left of the server's shared memory. Its lock table takes a few pages of it under load, once.
const FREE: &str = "SELECT allocated_size FROM pg_shmem_allocations WHERE name IS NULL";

/// Reads the counters until all is done. No sum ever falls. Notes when each has counted something.
async fn watch(connection: &Connection, finished: &AtomicBool, all_moved: &AtomicBool) -> Result<()> {
    let moved = EXACT.map(|counter| format!("sum({counter}) > 0")).join(" AND ");
    let moved = format!("SELECT {moved} FROM idempotence.stats");
    let sums = "SELECT sum(started), sum(recorded), sum(replayed), sum(waits), sum(wait_ms) FROM idempotence.stats";
    let mut last = vec![0; 5];
    while !finished.load(Relaxed) {
        let found = connection.text(sums).await?;
        let found: Vec<u64> = found.split('|').map(|sum| sum.parse().unwrap_or(0)).collect();
        ensure!(found.iter().zip(&last).all(|(now, before)| now >= before), "{last:?} became {found:?}");
        last = found;
        all_moved.store(connection.text(&moved).await? == "t", Relaxed);
        sleep(Duration::from_millis(3)).await;
    }
    Ok(())
}

/// Does calls on one connection whose process must not grow. Gives what they count.
async fn check_memory(server: &Cluster, finished: &AtomicBool) -> Result<Books> {
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('alone')").await?;
    let pid = connection.pid().await?;
    let (mut looks, mut first, mut books) = (0, None, Books::default());
    while !finished.load(Relaxed) {
        for _ in 0..5 {
            let calls =
                "BEGIN; SELECT FROM idem_begin('alone', 'k'); SAVEPOINT s; SELECT FROM idem_begin('alone', 'l');
                         ROLLBACK TO s; SELECT count(*) FROM idempotence.in_flight, idempotence.stats; ROLLBACK";
            connection.text(calls).await?;
            books.add("alone", "started", 2);
        }
        looks += 1;
        if looks == 5 {
            first = Some(private_kb(pid)?);
        }
    }
    let (first, last) = (first.context("the time was too short to see growth")?, private_kb(pid)?);
    println!("a backend had {first} kB and has {last} kB after {looks} looks");
    ensure!(last <= first + GROWTH_KB, "a backend has grown from {first} kB to {last} kB");
    Ok(books)
}

/// The memory of a process that is its own.
fn private_kb(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("the system does not tell")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
