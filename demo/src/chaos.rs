//! What goes wrong: a network that loses messages, and somebody who cancels queries, terminates
//! backends and kills them with `kill -9`.

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
use crate::stats::{Stats, add};

// Out of 100 000 COMMITs
const COMMIT_LOST: u32 = 700;
const COMMIT_UNHEARD: u32 = 1_500;
const COMMIT_LATE: u32 = 40;
// Out of 100 000 other messages
const MESSAGE_LOST: u32 = 30;
const REPLY_LOST: u32 = 30;

/// A late COMMIT holds its locks meanwhile: some longer than a client's patience, none for long.
const LATENESS_MS: std::ops::Range<u64> = 100..2000;

/// How long the server may take to come back.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
const STATEMENT_MAX: Duration = Duration::from_secs(5);

/// The fate of each message.
#[derive(Debug)]
pub struct Network {
    calm: AtomicBool,
    rng: Mutex<SmallRng>,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Self { calm: AtomicBool::new(false), rng: Mutex::new(SmallRng::seed_from_u64(seed)) }
    }

    /// From now on everything arrives.
    pub fn calm_down(&self) {
        self.calm.store(true, Relaxed);
    }

    pub fn fate(&self, message: Message<'_>) -> Fate {
        if self.calm.load(Relaxed) {
            return Fate::Arrives;
        }
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let (lost, unheard, late) = if message.is_commit() {
            (COMMIT_LOST, COMMIT_UNHEARD, COMMIT_LATE)
        } else {
            (MESSAGE_LOST, REPLY_LOST, 0)
        };
        match rng.random_range(0..100_000) {
            n if n < lost => Fate::Lost,
            n if n < lost + unheard => Fate::ReplyLost,
            n if n < lost + unheard + late => Fate::Late(Duration::from_millis(rng.random_range(LATENESS_MS))),
            _ => Fate::Arrives,
        }
    }
}

/// Somebody who interferes with the clients' backends.
pub struct Saboteur {
    pub server: Arc<Server>,
    pub stats: Arc<Stats>,
    pub rng: SmallRng,
    /// How often to `kill -9`, if at all.
    pub kill_every: Option<Duration>,
}

impl Saboteur {
    /// Goes on until told to stop; leaves the server up.
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

    /// Cancels or terminates a busy backend, and counts who waits for another's request.
    async fn disturb(&mut self) -> Result<()> {
        let (function, counter) = if self.rng.random_bool(0.7) {
            ("pg_cancel_backend", &self.stats.cancels)
        } else {
            ("pg_terminate_backend", &self.stats.terminations)
        };
        if self.on_a_victim(function).await? == Some(1) {
            add(counter);
        }
        let waiting =
            self.ask("SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").await?;
        add(&self.stats.looks);
        let waiting = u64::try_from(waiting.unwrap_or(0))?;
        self.stats.seen_waiting.fetch_add(waiting, Relaxed);
        Ok(())
    }

    /// Kills a busy backend; the server then throws all others out and recovers.
    async fn kill(&mut self) -> Result<()> {
        let Some(pid) = self.on_a_victim("").await? else {
            return Ok(());
        };
        if !self.server.kill9_backend(pid) {
            return Ok(());
        }
        add(&self.stats.kills);
        let start = Instant::now();
        // The first answers may still be those of before.
        sleep(Duration::from_millis(50)).await;
        while self.try_to_ask("SELECT 1").await.is_err() {
            if start.elapsed() > RECOVERY_MAX {
                bail!("the server did not come back after kill -9");
            }
            sleep(Duration::from_millis(20)).await;
        }
        let outage = u64::try_from(start.elapsed().as_millis())?;
        self.stats.outage_ms.fetch_add(outage, Relaxed);
        Ok(())
    }

    /// Applies a function, or none, to the pid of some backend that has a transaction open.
    async fn on_a_victim(&self, function: &str) -> Result<Option<i32>> {
        self.ask(&format!(
            "SELECT {function}(pid)::int FROM
                 (SELECT pid FROM pg_stat_activity
                   WHERE usename = '{ROLE}' AND xact_start IS NOT NULL
                   ORDER BY random() LIMIT 1) victim"
        ))
        .await
    }

    /// The one value of a query's first row, asked again while the server is away.
    async fn ask(&self, query: &str) -> Result<Option<i32>> {
        let start = Instant::now();
        loop {
            match self.try_to_ask(query).await {
                Err(_) if start.elapsed() < RECOVERY_MAX => {
                    sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }

    async fn try_to_ask(&self, query: &str) -> Result<Option<i32>> {
        timeout(STATEMENT_MAX, async {
            let place = self.server.connect_string(DATABASE, SUPERUSER);
            let (client, socket) = tokio_postgres::connect(&place, NoTls).await?;
            let socket = tokio::spawn(socket);
            let row = client.query_opt(query, &[]).await;
            socket.abort();
            Ok(row?.map(|row| row.get(0)))
        })
        .await
        .context("no answer")?
    }
}
