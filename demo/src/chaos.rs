//! What goes wrong: a network that loses messages, and a saboteur who cancels queries, terminates backends
//! and kills them with `kill -9`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;

use crate::bank::{DATABASE, ROLE};
use crate::proxy::{Fate, Message};
use crate::server::{SUPERUSER, Server};
use crate::stats::{Stats, increment};

// Faults out of 100 000 COMMITs
const COMMIT_LOST: u32 = 700;
const COMMIT_REPLY_LOST: u32 = 1_500;
const COMMIT_LATE: u32 = 40;
// Faults out of 100 000 other messages
const MESSAGE_LOST: u32 = 30;
const REPLY_LOST: u32 = 30;

/// The delay of a late COMMIT, which holds its locks meanwhile. Some of these delays are longer than an
/// attempt of a client may take.
const DELAY_MS: std::ops::Range<u64> = 100..2000;

/// The longest time that the server may take to recover.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
const STATEMENT_MAX: Duration = Duration::from_secs(5);

/// A network that decides the fate of each message at random.
#[derive(Debug)]
pub struct Network {
    calm: AtomicBool,
    rng: Mutex<SmallRng>,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Self { calm: AtomicBool::new(false), rng: Mutex::new(SmallRng::seed_from_u64(seed)) }
    }

    /// Stops losing messages: from now on every message arrives.
    pub fn calm_down(&self) {
        self.calm.store(true, Relaxed);
    }

    pub fn fate(&self, message: Message<'_>) -> Fate {
        if self.calm.load(Relaxed) {
            return Fate::Arrives;
        }
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let (lost, reply_lost, late) = if message.is_commit() {
            (COMMIT_LOST, COMMIT_REPLY_LOST, COMMIT_LATE)
        } else {
            (MESSAGE_LOST, REPLY_LOST, 0)
        };
        match rng.random_range(0..100_000) {
            n if n < lost => Fate::Lost,
            n if n < lost + reply_lost => Fate::ReplyLost,
            n if n < lost + reply_lost + late => Fate::Late(Duration::from_millis(rng.random_range(DELAY_MS))),
            _ => Fate::Arrives,
        }
    }
}

/// Interferes with the backends of the clients.
pub struct Saboteur {
    pub server: Arc<Server>,
    pub stats: Arc<Stats>,
    pub rng: SmallRng,
    /// The average time between two kills, or `None` for no kills.
    pub kill_every: Option<Duration>,
}

impl Saboteur {
    /// Interferes until told to stop. When it returns, the server is up.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let mut next_kill = Instant::now() + self.kill_every.unwrap_or_default() / 2;
        while !*stop.borrow_and_update() {
            let pause = Duration::from_millis(self.rng.random_range(100..300));
            tokio::select! {
                () = sleep(pause) => {}
                _ = stop.changed() => continue,
            }
            match self.kill_every {
                Some(every) if next_kill <= Instant::now() => {
                    self.kill().await?;
                    next_kill = Instant::now() + every.mul_f64(self.rng.random_range(0.7..1.3));
                }
                _ => self.disturb().await?,
            }
        }
        Ok(())
    }

    /// Cancels or terminates a busy backend, and counts the attempts that wait for another attempt.
    async fn disturb(&mut self) -> Result<()> {
        let (function, counter) = if self.rng.random_bool(0.7) {
            ("pg_cancel_backend", &self.stats.cancels)
        } else {
            ("pg_terminate_backend", &self.stats.terminations)
        };
        if self.apply_to_victim(function).await? == Some(1) {
            increment(counter);
        }
        let waiting =
            self.query("SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").await?;
        increment(&self.stats.looks);
        let waiting = u64::try_from(waiting.unwrap_or(0))?;
        self.stats.seen_waiting.fetch_add(waiting, Relaxed);
        Ok(())
    }

    /// Kills a busy backend. The server then ends all other backends and recovers.
    async fn kill(&mut self) -> Result<()> {
        let Some(pid) = self.apply_to_victim("").await? else {
            return Ok(());
        };
        if !self.server.kill9_backend(pid) {
            return Ok(());
        }
        increment(&self.stats.kills);
        let start = Instant::now();
        // At first, the server may still answer as before the kill.
        sleep(Duration::from_millis(50)).await;
        while self.try_query("SELECT 1").await.is_err() {
            if start.elapsed() > RECOVERY_MAX {
                bail!("the server did not come back after kill -9");
            }
            sleep(Duration::from_millis(20)).await;
        }
        let outage = u64::try_from(start.elapsed().as_millis())?;
        self.stats.outage_ms.fetch_add(outage, Relaxed);
        Ok(())
    }

    /// Picks a random backend that has a transaction open, and gives what `function` returns for its pid. An
    /// empty `function` gives the pid.
    async fn apply_to_victim(&self, function: &str) -> Result<Option<i32>> {
        self.query(&format!(
            "SELECT {function}(pid)::int FROM
                 (SELECT pid FROM pg_stat_activity
                   WHERE usename = '{ROLE}' AND xact_start IS NOT NULL
                   ORDER BY random() LIMIT 1) victim"
        ))
        .await
    }

    /// The value that a query gives, or `None` if it gives no row. Retries while the server is down.
    async fn query(&self, sql: &str) -> Result<Option<i32>> {
        let start = Instant::now();
        loop {
            match self.try_query(sql).await {
                Err(_) if start.elapsed() < RECOVERY_MAX => {
                    sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }

    async fn try_query(&self, sql: &str) -> Result<Option<i32>> {
        timeout(STATEMENT_MAX, async {
            let connect_string = self.server.connect_string(DATABASE, SUPERUSER);
            let (client, socket) = tokio_postgres::connect(&connect_string, NoTls).await?;
            let socket = tokio::spawn(socket);
            let row = client.query_opt(sql, &[]).await;
            socket.abort();
            Ok(row?.map(|row| row.get(0)))
        })
        .await
        .context("no answer")?
    }
}
