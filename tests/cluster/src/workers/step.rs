//! One turn of a worker.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rand::RngExt;
use tokio::time::{sleep, timeout};

use crate::connection::{Connection, describe};
use crate::crashes::is_disconnected;
use crate::limits::LIMIT;
use crate::load::{LEVELS, count, lock};
use crate::workers::crew::Workers;

const LEASE: &str = "300 ms";

/// What is known of a commit.
enum Committed {
    Yes,
    No,
    InDoubt,
}

/// One turn of a worker: it begins a request, and does something with the claim.
pub struct Step<'a, 'w> {
    /// All workers.
    pub workers: &'a Workers<'w>,
    /// The connection of this worker.
    pub connection: &'a mut Connection,
    /// The number of the request, which is its key too.
    pub request: usize,
    /// The number of this worker.
    pub worker: usize,
}

impl Step<'_, '_> {
    /// Takes the turn.
    pub async fn take(&mut self) -> Result<()> {
        let chance = rand::rng().random_range(0..100);
        if chance < 8 {
            return self.execute_at_once().await;
        }
        let Some(token) = self.begin().await? else { return Ok(()) };
        let tally = &self.workers.tally;
        match rand::rng().random_range(0..100) {
            0..50 => self.record(token, "").await,
            50..58 => {
                let point =
                    format!("SELECT FROM idem_checkpoint('jobs', '{}', 'half', token => {token})", self.request);
                match self.with_token(token, &point).await? {
                    true => self.record(token, "").await,
                    false => Ok(()),
                }
            }
            58..66 => {
                let extend = self.extend(token);
                match self.with_token(token, &extend).await? {
                    true => self.record(token, "").await,
                    false => Ok(()),
                }
            }
            66..74 => self.release(token).await,
            74..82 => {
                count(&tally.killed);
                self.reconnect().await
            }
            82..88 => {
                count(&tally.killed);
                let record = format!("BEGIN; {}", self.work_and_record(token));
                // The worker never learns what becomes of that.
                let _ = self.connection.try_text(&record).await;
                self.reconnect().await
            }
            _ => {
                count(&tally.stopped);
                sleep(Duration::from_millis(rand::rng().random_range(100..700))).await;
                self.wake_up(token).await
            }
        }
    }

    /// What a worker does who was stopped while it had a claim.
    async fn wake_up(&mut self, token: i64) -> Result<()> {
        let request = self.request;
        match rand::rng().random_range(0..4) {
            0 => self.record(token, "").await,
            1 => self.release(token).await,
            2 => self.with_token(token, &self.extend(token)).await.map(drop),
            _ => {
                let point = format!("SELECT FROM idem_checkpoint('jobs', '{request}', 'late', token => {token})");
                self.with_token(token, &point).await.map(drop)
            }
        }
    }

    /// Begins the request with a lease. Returns the token that the worker goes on with.
    async fn begin(&mut self) -> Result<Option<i64>> {
        let Self { workers, request, worker, .. } = *self;
        let (level, wait) = (self.level(), if rand::rng().random_bool(0.3) { "500 ms" } else { "1 ms" });
        let begin = format!(
            "BEGIN ISOLATION LEVEL {level};
             SELECT status, token, attempt, response
               FROM idem_begin('jobs', '{request}', wait => '{wait}', lease => '{LEASE}')"
        );
        // As long as the begin has no answer, nobody knows whether it has taken over.
        lock(&workers.journal).ask(request);
        let ticket = match self.connection.try_text(&begin).await {
            Ok(ticket) => ticket,
            Err(error) => {
                if !self.failed(error).await? {
                    lock(&workers.journal).answer(request);
                }
                return Ok(None);
            }
        };
        let columns: Vec<&str> = ticket.splitn(4, '|').collect();
        let [status, token, attempt, _] = columns[..] else { bail!("cannot read {ticket:?}") };
        let token = match status {
            "started" | "taken_over" => {
                let (token, attempt) = (token.parse()?, attempt.parse()?);
                ensure!((status == "started") == (attempt == 1), "attempt {attempt} is {status}");
                lock(&workers.journal).hand_out(request, token, worker, attempt)?;
                if status == "taken_over" {
                    count(&workers.tally.taken_over);
                }
                Some(token)
            }
            _ => {
                lock(&workers.journal).answer(request);
                self.not_started(status)?;
                None
            }
        };
        match (self.commit().await?, token) {
            (Committed::Yes, Some(token)) => lock(&workers.journal).commit(request, token)?,
            // Whether it counts is in doubt, or it does not count. The worker may try.
            (_, Some(_)) if rand::rng().random_bool(0.5) => {}
            _ => return Ok(None),
        }
        Ok(token)
    }

    /// Executes the request in one transaction, without a lease.
    async fn execute_at_once(&mut self) -> Result<()> {
        let Self { request, worker, .. } = *self;
        let begin = format!("BEGIN; SELECT status FROM idem_begin('jobs', '{request}', wait => '1 ms')");
        let done = async {
            let status = self.connection.try_text(&begin).await?;
            if status == "started" || status == "taken_over" {
                let record = format!(
                    "INSERT INTO effect VALUES ({request}, NULL, {worker});
                     SELECT FROM idem_record('jobs', '{request}', '{{\"token\": null, \"worker\": {worker}}}')"
                );
                self.connection.try_text(&record).await?;
            }
            self.connection.try_text("COMMIT").await?;
            Ok(status)
        };
        match done.await {
            Ok(status) if status == "started" || status == "taken_over" => self.is_done(None),
            Ok(status) => self.not_started(&status),
            Err(error) => self.failed(error).await.map(drop),
        }
    }

    /// The answer to a begin that gave no claim.
    fn not_started(&self, status: &str) -> Result<()> {
        match status {
            "succeeded" => _ = lock(&self.workers.open).remove(&self.request),
            "in_progress" => count(&self.workers.tally.in_progress),
            _ => bail!("a begin is answered {status}"),
        }
        Ok(())
    }

    /// Works and records in one transaction. `guard` comes before the work.
    async fn record(&mut self, token: i64, guard: &str) -> Result<()> {
        let Self { workers, request, .. } = *self;
        let superseded = lock(&workers.journal).is_superseded(request, token);
        let record = format!("BEGIN ISOLATION LEVEL {}; {guard} {}", self.level(), self.work_and_record(token));
        match self.connection.try_text(&record).await {
            Ok(_) => {}
            Err(error) if state_of(&error) == "ID005" => return self.fenced(token).await,
            Err(error) => return self.failed(error).await.map(drop),
        }
        match self.commit().await? {
            Committed::Yes => {}
            Committed::InDoubt if rand::rng().random_bool(0.5) => {
                // To extend is refused once the request is recorded, and keeps others from it until the end.
                let guard = format!("{};", self.extend(token));
                return Box::pin(self.record(token, &guard)).await;
            }
            _ => return Ok(()),
        }
        ensure!(!superseded, "token {token} recorded although it was superseded");
        self.is_done(Some(token))?;
        // The same token gets the same answer, and nothing is recorded anew.
        if rand::rng().random_bool(0.2) {
            let again = format!(
                "SELECT t.expires_at = idem_record('jobs', '{request}', '0', token => {token})
                   FROM idem_lookup('jobs', '{request}') t"
            );
            match self.connection.try_text(&again).await {
                Ok(same) => ensure!(same == "t", "the same token got another answer"),
                Err(error) => _ = self.failed(error).await?,
            }
        }
        Ok(())
    }

    /// Commits. Now and then the connection is lost meanwhile.
    async fn commit(&mut self) -> Result<Committed> {
        let patience = match rand::rng().random_bool(0.05) {
            true => Duration::from_micros(rand::rng().random_range(0..1500)),
            false => LIMIT,
        };
        match timeout(patience, self.connection.try_text("COMMIT")).await {
            Ok(Ok(_)) => return Ok(Committed::Yes),
            Ok(Err(error)) => {
                if !self.failed(error).await? {
                    return Ok(Committed::No);
                }
            }
            Err(_) => self.reconnect().await?,
        }
        count(&self.workers.tally.in_doubt);
        Ok(Committed::InDoubt)
    }

    fn is_done(&self, token: Option<i64>) -> Result<()> {
        lock(&self.workers.open).remove(&self.request);
        lock(&self.workers.journal).record(self.request, token)
    }

    async fn release(&mut self, token: i64) -> Result<()> {
        let release = format!("SELECT FROM idem_release('jobs', '{}', token => {token})", self.request);
        // Even if no answer comes, it may have been released.
        lock(&self.workers.journal).try_release(self.request, token);
        self.with_token(token, &release).await.map(drop)
    }

    /// Calls a function with a token, in a transaction of its own. Returns whether it was accepted.
    async fn with_token(&mut self, token: i64, call: &str) -> Result<bool> {
        let workers = self.workers;
        let superseded = lock(&workers.journal).is_superseded(self.request, token);
        match self.connection.try_text(call).await {
            Ok(_) => {
                ensure!(!superseded, "{call} was accepted although the token was superseded");
                Ok(true)
            }
            Err(error) if state_of(&error) == "ID005" => self.fenced(token).await.map(|()| false),
            Err(error) => self.failed(error).await.map(|_| false),
        }
    }

    async fn fenced(&mut self, token: i64) -> Result<()> {
        count(&self.workers.tally.fenced);
        lock(&self.workers.journal).fence(self.request, token);
        match self.connection.try_text("ROLLBACK").await {
            Ok(_) => Ok(()),
            Err(error) => self.failed(error).await.map(drop),
        }
    }

    /// Rolls back or connects again. Returns whether the connection was lost. Any other error than those that a
    /// worker has to expect is passed on.
    async fn failed(&mut self, error: tokio_postgres::Error) -> Result<bool> {
        let tally = &self.workers.tally;
        if is_disconnected(&error) {
            count(&tally.disconnected);
            return self.reconnect().await.map(|()| true);
        }
        match state_of(&error) {
            "40001" => count(&tally.unserializable),
            _ => return Err(describe(error)),
        }
        if self.connection.try_text("ROLLBACK").await.is_err() {
            self.reconnect().await?;
        }
        Ok(false)
    }

    async fn reconnect(&mut self) -> Result<()> {
        *self.connection = self.workers.connect().await?;
        Ok(())
    }

    fn extend(&self, token: i64) -> String {
        format!("SELECT idem_extend('jobs', '{}', {token}, '{LEASE}') IS NULL", self.request)
    }

    fn work_and_record(&self, token: i64) -> String {
        let Self { request, worker, .. } = *self;
        format!(
            "INSERT INTO effect VALUES ({request}, {token}, {worker});
             SELECT FROM idem_record('jobs', '{request}', '{{\"token\": {token}, \"worker\": {worker}}}',
                                     token => {token})"
        )
    }

    fn level(&self) -> &'static str {
        LEVELS[rand::rng().random_range(0..LEVELS.len())]
    }
}

fn state_of(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |state| state.code())
}
