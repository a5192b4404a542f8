//! Workers that take requests with leases, whatever happens to them and to their server in the meantime. Each
//! request has to be recorded once, by a worker whose claim nobody had superseded. A worker notes each record in
//! a table that has no constraint, in the transaction of the record.
//!
//! The workers write a journal of all that they were told. [`Workers::prove`] compares it with the tables.

mod crew;
mod journal;
mod step;
mod tally;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use rand::RngExt;
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::limits::{LIMIT, PATIENCE};
use crate::load::lock;
pub use crew::Workers;
use journal::Standing;
use step::Step;
pub use tally::Tally;

/// The application name of the workers.
pub const APPLICATION: &str = "worker";

const WORKERS: usize = 8;

/// A worker takes one of the first few requests that are not known to be done.
const CHOICE: usize = 24;

impl Workers<'_> {
    /// Works until each request is known to be done.
    pub async fn work(&self) -> Result<()> {
        try_join_all((0..WORKERS).map(|worker| self.worker(worker))).await?;
        Ok(())
    }

    /// The number of requests that are known to be done.
    pub fn done(&self) -> usize {
        self.requests - lock(&self.open).len()
    }

    /// Waits until this number of further requests is known to be done, or all are.
    pub async fn progress(&self, requests: usize) -> Result<()> {
        let wanted = (self.done() + requests).min(self.requests);
        let mut last = (self.done(), Instant::now());
        while self.done() < wanted {
            if self.done() > last.0 {
                last = (self.done(), Instant::now());
            }
            ensure!(last.1.elapsed() <= LIMIT, "the workers do not get on");
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Proves that each request was recorded once, by a worker whose claim nobody had superseded.
    pub async fn prove(&self) -> Result<()> {
        let cluster = *lock(&self.cluster);
        let connection = cluster.reconnect(self.database).await?;
        let found = connection
            .text(&format!(
                "SELECT n, e.effects, e.token, e.worker, t.status, t.response -> 'token', t.response -> 'worker'
                   FROM generate_series(0, {} - 1) n
                  CROSS JOIN LATERAL idem_lookup('jobs', n::text) t
                  CROSS JOIN LATERAL (SELECT count(*) AS effects, min(token) AS token, min(worker) AS worker
                                        FROM effect WHERE request = n) e",
                self.requests
            ))
            .await?;
        ensure!(found.lines().count() == self.requests, "not each request was looked up");
        let journal = lock(&self.journal);
        for line in found.lines() {
            let columns: Vec<&str> = line.split('|').collect();
            let [request, effects, token, worker, status, told_token, told_worker] = columns[..] else {
                bail!("cannot read {line:?}")
            };
            ensure!(status == "succeeded" && effects == "1", "request {request} was not recorded once: {line}");
            let told_token = if told_token == "null" { "" } else { told_token };
            ensure!((token, worker) == (told_token, told_worker), "the effect is not that of the record: {line}");
            let token = (!token.is_empty()).then(|| token.parse()).transpose()?;
            let standing = Standing { token, worker: worker.parse()?, keeps: !self.loses_claims.load(Relaxed) };
            journal.judge(request.parse()?, &standing)?;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Connection> {
        let start = Instant::now();
        loop {
            let cluster = *lock(&self.cluster);
            if let Ok(connection) = cluster.connect(self.database).await {
                let settings = format!("SET application_name = '{APPLICATION}'; SET idempotence.wait = '{PATIENCE}'");
                if connection.try_text(&settings).await.is_ok() {
                    return Ok(connection);
                }
            }
            ensure!(start.elapsed() <= LIMIT, "nobody lets the workers in");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn worker(&self, worker: usize) -> Result<()> {
        let mut connection = self.connect().await?;
        let start = Instant::now();
        while let Some(request) = self.choose() {
            let mut step = Step { workers: self, connection: &mut connection, request, worker };
            step.take().await.with_context(|| format!("worker {worker} with request {request}"))?;
            ensure!(start.elapsed() <= 10 * LIMIT, "the workers do not get on");
        }
        Ok(())
    }

    fn choose(&self) -> Option<usize> {
        let open = lock(&self.open);
        let which = rand::rng().random_range(0..open.len().clamp(1, CHOICE));
        open.iter().nth(which).copied()
    }
}
