//! Those who wait for a lease: what wakes them, what they hold, and how often they look.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::limits::LIMIT;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

/// A waiter must know of the record within this time.
const SOON: Duration = Duration::from_secs(2);

/// How long the looks of a waiter are counted.
const WATCHED: Duration = Duration::from_secs(3);

async fn start(version: Version, preloaded: bool) -> Result<(Cluster, Connection, i64)> {
    let server = if preloaded { shop::start_preloaded(version)? } else { shop::start(version)? };
    let worker = server.connect(DATABASE).await?;
    worker.text("SELECT idem_create_session('jobs')").await?;
    let token = worker.text("SELECT token FROM idem_begin('jobs', 'j', lease => '10 min')").await?.parse()?;
    Ok((server, worker, token))
}

/// A begin that waits.
struct Waiter {
    pid: i32,
    answer: JoinHandle<Result<String>>,
}

impl Waiter {
    /// Begins, and waits until the server waits for the lease.
    async fn begin(server: &Cluster) -> Result<Self> {
        Self::begin_and_wait_for(server, "Extension").await
    }

    /// The same, until it waits for this kind of thing.
    async fn begin_and_wait_for(server: &Cluster, event: &str) -> Result<Self> {
        let connection = server.connect(DATABASE).await?;
        let pid = connection.pid().await?;
        let answer = tokio::spawn(async move {
            connection.text("SELECT status, replayed, response FROM idem_begin('jobs', 'j', wait => '2 min')").await
        });
        let waits = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid}");
        server.wait_for(DATABASE, &waits, event).await?;
        Ok(Self { pid, answer })
    }

    /// The answer, which must come soon.
    async fn answer_soon(self) -> Result<String> {
        timeout(SOON, self.answer).await.context("the waiter was not woken")??
    }

    /// How often the server's process went to sleep so far.
    fn sleeps(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(line.context("the system does not tell")?.trim().parse()?)
    }

    /// How often it goes to sleep in a second. This measures, so it takes a fixed time.
    async fn sleeps_a_second(&self) -> Result<f64> {
        let (before, start) = (self.sleeps()?, Instant::now());
        sleep(WATCHED).await;
        Ok((self.sleeps()? - before) as f64 / start.elapsed().as_secs_f64())
    }
}

async fn waiters_learn_of_a_prepared_record(version: Version, preloaded: bool) -> Result<()> {
    let (server, worker, mut token) = start(version, preloaded).await?;
    let commits = server.connect(DATABASE).await?;
    for round in 0..3 {
        let early = Waiter::begin(&server).await?;
        let record = format!(
            "BEGIN; SELECT FROM idem_record('jobs', 'j', '{round}', token => {token}); PREPARE TRANSACTION 'done'"
        );
        worker.text(&record).await?;
        // The first waiter may still sleep. The second one waits for the prepared transaction.
        let late = if round > 0 { Some(Waiter::begin_and_wait_for(&server, "Lock").await?) } else { None };
        commits.text("COMMIT PREPARED 'done'").await?;
        for waiter in late.into_iter().chain([early]) {
            let answer = waiter.answer_soon().await?;
            ensure!(answer == format!("succeeded|t|{round}"), "a waiter is told {answer}");
        }
        worker.text("SELECT idem_forget('jobs', 'j', 'a test')").await?;
        token = worker.text("SELECT token FROM idem_begin('jobs', 'j', lease => '10 min')").await?.parse()?;
    }
    Ok(())
}

// Goal: COMMIT PREPARED of a record lets waiters go on within two seconds. It wakes nobody, so they have to look.
// Method: waiters from before the PREPARE and from after it.
pub async fn a_waiter_learns_of_a_prepared_record_where_the_library_is_preloaded(version: Version) -> Result<()> {
    waiters_learn_of_a_prepared_record(version, true).await
}

// Goal: the same where the library is not preloaded.
// Method: the same.
pub async fn a_waiter_learns_of_a_prepared_record_where_it_is_not(version: Version) -> Result<()> {
    waiters_learn_of_a_prepared_record(version, false).await
}

// Goal: who waits for a lease has no transaction id and no lock of the request, and looks at most ten times a second.
// Method: the server's own views, many times, since a look takes the lock for a moment. The process's sleeps.
pub async fn a_waiter_holds_nothing_and_looks_seldom(version: Version) -> Result<()> {
    for preloaded in [true, false] {
        let (server, worker, token) = start(version, preloaded).await?;
        let waiter = Waiter::begin(&server).await?;
        let held = format!(
            "SELECT a.backend_xid, (SELECT count(*) FROM pg_locks l
                                     WHERE l.pid = a.pid AND l.locktype IN ('advisory', 'transactionid'))
               FROM pg_stat_activity a WHERE a.pid = {}",
            waiter.pid
        );
        let mut free = 0;
        for _ in 0..100 {
            free += usize::from(worker.text(&held).await? == "|0");
        }
        ensure!(free > 90, "preloaded {preloaded}: the waiter held something in {} looks of 100", 100 - free);
        // The holder is not held up either.
        worker.text(&format!("SET lock_timeout = '1 s'; SELECT idem_extend('jobs', 'j', {token}, '20 min')")).await?;

        let sleeps = waiter.sleeps_a_second().await?;
        println!("preloaded {preloaded}: {sleeps:.1} sleeps a second");
        ensure!(sleeps <= 12.0, "preloaded {preloaded}: a waiter sleeps {sleeps:.1} times a second");
        worker.text(&format!("SELECT FROM idem_record('jobs', 'j', '1', token => {token})")).await?;
        ensure!(waiter.answer_soon().await? == "succeeded|t|1");
    }
    Ok(())
}

// Goal: a waiter that is woken all the time still looks at most ten times a second.
// Method: in a loop, the holder releases the request and begins it again in one transaction, which wakes all who
// wait for the lease.
pub async fn a_waiter_looks_seldom_however_often_it_is_woken(version: Version) -> Result<()> {
    let (server, worker, mut token) = start(version, true).await?;
    let waiter = Waiter::begin(&server).await?;
    let finished = AtomicBool::new(false);
    let mut wakes = 0;
    let wake = async {
        let start = Instant::now();
        while !finished.load(Relaxed) {
            let turn = format!(
                "BEGIN; SELECT FROM idem_release('jobs', 'j', token => {token});
                 SELECT token FROM idem_begin('jobs', 'j', lease => '10 min'); COMMIT"
            );
            token = worker.text(&turn).await?.parse()?;
            wakes += 1;
            ensure!(start.elapsed() < LIMIT, "the waiter is not watched");
            yield_now().await;
        }
        Ok(())
    };
    let watch = async {
        let sleeps = waiter.sleeps_a_second().await;
        finished.store(true, Relaxed);
        sleeps
    };
    let ((), sleeps) = tokio::try_join!(wake, watch)?;
    println!("{wakes} wakes, {sleeps:.1} sleeps a second");
    ensure!(wakes > 300, "there were only {wakes} wakes");
    // It looks ten times a second. In each look it may also have to sleep until it gets the request's lock, and on a busy
    // machine for a lock of the server. If each wake had it look, it would sleep hundreds of times.
    ensure!(sleeps <= 50.0, "a waiter sleeps {sleeps:.1} times a second");
    worker.text(&format!("SELECT FROM idem_record('jobs', 'j', '1', token => {token})")).await?;
    ensure!(waiter.answer_soon().await? == "succeeded|t|1");
    Ok(())
}
