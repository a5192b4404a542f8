//! An executor and a settler that race for one request after another. When both are through, late copies of the
//! request and of its record arrive, which must not change the verdict.
//!
//! The verdict is written down only after the commit of the settling was answered. What the executor was told is
//! compared with it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use idempotence_cluster_tests::crashes::is_disconnected;
use idempotence_cluster_tests::limits::LIMIT;
use idempotence_cluster_tests::load::{LEVELS, count};
use idempotence_cluster_tests::{Connection, describe};
use rand::RngExt;
use tokio::time::{Instant, sleep, timeout};

use super::races::Race;

/// A request of a pair.
struct Request {
    /// The name in the table of effects.
    name: String,
    /// The first arguments of each call.
    which: String,
    /// The last argument of each call.
    stream: String,
    /// The key; `None` for a number.
    key: Option<String>,
}

/// One of the two sides.
struct Side {
    race: Arc<Race>,
    connection: Connection,
}

pub struct Pair {
    executor: Side,
    settler: Side,
    number: usize,
}

/// What the executor knows in the end.
#[derive(Default)]
struct Executed {
    /// The newest token that it was given.
    token: Option<i64>,
    /// Its record was committed for good.
    recorded: bool,
}

/// A try that an error has ended. The request may have been executed all the same.
struct Failed {
    lost: bool,
}

fn chance(share: f64) -> bool {
    rand::rng().random_bool(share)
}

/// A random time below this one.
fn at_most(time: Duration) -> Duration {
    time.mul_f64(rand::rng().random())
}

impl Side {
    async fn open(race: &Arc<Race>) -> Result<Self> {
        Ok(Self { race: Arc::clone(race), connection: race.connect().await? })
    }

    /// Runs statements. Errors that a client has to expect leave it outside of a transaction.
    async fn run(&mut self, sql: &str) -> Result<Result<String, Failed>> {
        // Now and then the client loses its connection while it commits.
        let patience = match sql == "COMMIT" && chance(0.05) {
            true => at_most(Duration::from_micros(1500)),
            false => LIMIT,
        };
        let error = match timeout(patience, self.connection.try_text(sql)).await {
            Ok(Ok(rows)) => return Ok(Ok(rows)),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let lost = error.as_ref().is_none_or(is_disconnected);
        if lost {
            count(if sql == "COMMIT" { &self.race.tally.in_doubt } else { &self.race.tally.disconnected });
            self.connection = self.race.connect().await?;
        } else if let Some(error) = error {
            let state = error.code().map_or("", |state| state.code());
            match state {
                "ID005" => count(&self.race.tally.fenced),
                "40001" => {}
                _ => return Err(describe(error)).with_context(|| sql.to_owned()),
            }
            if self.connection.try_text("ROLLBACK").await.is_err() {
                self.connection = self.race.connect().await?;
            }
        }
        Ok(Err(Failed { lost }))
    }

    /// The beginning of a transaction.
    fn begin(&self, synchronous_commit: &str) -> String {
        let level = LEVELS[rand::rng().random_range(0..LEVELS.len())];
        format!("BEGIN ISOLATION LEVEL {level}; SET LOCAL synchronous_commit = {synchronous_commit};")
    }

    /// Executes the request, or learns that it must not.
    async fn execute(&mut self, request: &Request) -> Result<Executed> {
        sleep(at_most(Duration::from_micros(3000))).await;
        let Request { name, which, stream, .. } = request;
        let mut executed = Executed::default();
        loop {
            let leased = chance(0.5);
            let lease = match (leased, chance(0.5)) {
                (false, _) => "",
                (true, true) => ", lease => '10 ms'",
                (true, false) => ", lease => '100 ms'",
            };
            let wait = if chance(0.5) { "1 ms" } else { "300 ms" };
            let surely = if chance(0.7) { "on" } else { "off" };
            let begin = format!(
                "{} SELECT status, token FROM idem_begin({which}, wait => '{wait}'{lease}{stream})",
                self.begin(surely)
            );
            let Ok(ticket) = self.run(&begin).await? else { continue };
            let token = match ticket.split_once('|') {
                Some(("started" | "taken_over", token)) if leased => Some(token.parse()?),
                Some(("started" | "taken_over", "")) => None,
                Some(("in_progress", _)) => {
                    // Both may give each other the way for ever.
                    _ = self.run("ROLLBACK").await?;
                    continue;
                }
                Some(("succeeded" | "cancelled", _)) => {
                    _ = self.run("COMMIT").await?;
                    return Ok(executed);
                }
                _ => bail!("{name} is begun with {ticket:?}"),
            };
            let (mut record, mut with_token) = (String::new(), String::new());
            if let Some(token) = token {
                executed.token = Some(token);
                if self.run("COMMIT").await?.is_err() {
                    continue;
                }
                if chance(0.2) {
                    // It dies. Somebody else has to find out.
                    return Ok(executed);
                } else if chance(0.4) {
                    sleep(at_most(Duration::from_millis(30))).await;
                }
                record += &self.begin(surely);
                with_token = format!(", token => {token}");
            } else if chance(0.3) {
                sleep(at_most(Duration::from_micros(3000))).await;
            }
            record += &format!(
                "INSERT INTO effect VALUES ('{name}'); SELECT FROM idem_record({which}, '1'{with_token}{stream})"
            );
            match self.run(&record).await? {
                Ok(_) => {}
                Err(Failed { lost: true }) if chance(0.3) => return Ok(executed),
                Err(_) => continue,
            }
            if chance(0.05) {
                _ = self.run("ROLLBACK").await?;
                continue;
            }
            match self.run("COMMIT").await? {
                Ok(_) => return Ok(Executed { recorded: surely == "on", ..executed }),
                Err(Failed { lost: true }) if chance(0.5) => return Ok(executed),
                Err(_) => continue,
            }
        }
    }

    /// Settles the request. Returns the status and the response of the verdict.
    async fn settle(&mut self, request: &Request) -> Result<(String, String)> {
        sleep(at_most(Duration::from_micros(4000))).await;
        let Request { name, which, stream, .. } = request;
        let start = Instant::now();
        loop {
            ensure!(start.elapsed() <= LIMIT, "{name} cannot be settled");
            let wait = if chance(0.5) { "1 ms" } else { "2 s" };
            let lightly = self.race.settles_lightly && chance(0.3);
            let settle = format!(
                "{} SELECT status, attempt, response
                      FROM idem_settle({which}, wait => '{wait}', response => '\"{name}\"'{stream})",
                self.begin(if lightly { "off" } else { "on" })
            );
            let Ok(ticket) = self.run(&settle).await? else { continue };
            let columns: Vec<&str> = ticket.splitn(3, '|').collect();
            let [status, attempt, response] = columns[..] else { bail!("cannot read {ticket:?}") };
            if status == "in_progress" {
                count(&self.race.tally.in_progress);
                _ = self.run("ROLLBACK").await?;
                continue;
            }
            if chance(0.1) {
                count(&self.race.tally.rolled_back);
                _ = self.run("ROLLBACK").await?;
                continue;
            }
            if self.run("COMMIT").await?.is_err() {
                continue;
            }
            if !attempt.is_empty() {
                count(&self.race.tally.superseded);
            }
            count(if status == "cancelled" { &self.race.tally.cancelled } else { &self.race.tally.succeeded });
            return Ok((status.into(), response.into()));
        }
    }

    /// Sends statements until they are answered. Returns their rows, or the SQLSTATE of their error.
    async fn insist(&mut self, sql: &str) -> Result<String> {
        loop {
            match self.connection.try_text(sql).await {
                Ok(rows) => return Ok(rows),
                Err(error) if is_disconnected(&error) => self.connection = self.race.connect().await?,
                Err(error) => {
                    let state = error.code().map_or(String::new(), |state| state.code().to_owned());
                    if self.connection.try_text("ROLLBACK").await.is_err() {
                        self.connection = self.race.connect().await?;
                    }
                    return Ok(state);
                }
            }
        }
    }
}

impl Pair {
    pub async fn start(race: Arc<Race>, number: usize) -> Result<Self> {
        Ok(Self { executor: Side::open(&race).await?, settler: Side::open(&race).await?, number })
    }

    pub async fn race(mut self, requests: usize) -> Result<()> {
        let mut last = 0;
        for turn in 0..requests {
            let name = format!("{}-{turn}", self.number);
            let request = if turn % 3 == 0 {
                last += 1;
                let which = format!("'{}', {last}", self.executor.race.client);
                Request { name, which, stream: format!(", stream => 'p{}'", self.number), key: None }
            } else {
                Request { which: format!("'jobs', '{name}'"), stream: String::new(), key: Some(name.clone()), name }
            };
            self.decide(&request).await.with_context(|| format!("request {}", request.name))?;
        }
        Ok(())
    }

    /// Lets both sides have a go at the request, and checks that the verdict stands.
    async fn decide(&mut self, request: &Request) -> Result<()> {
        let Request { name, which, stream, key } = request;
        let (executed, (status, response)) =
            tokio::try_join!(self.executor.execute(request), self.settler.settle(request))?;
        ensure!(status != "cancelled" || !executed.recorded, "what was recorded was cancelled");
        let wanted = format!("{status}|t|{response}");
        for lease in ["", ", lease => '1 min'"] {
            let begin =
                format!("SELECT status, replayed, response FROM idem_begin({which}, wait => '1 min'{lease}{stream})");
            let late = self.executor.insist(&begin).await?;
            ensure!(late == wanted, "a late begin gives {late} instead of {wanted}");
        }
        let claim = format!("SELECT idem_claim({which}, wait => '1 min'{stream})");
        let late = self.executor.insist(&claim).await?;
        ensure!(late == "ID011", "a late claim gives {late}");
        if let Some(token) = executed.token.filter(|_| status == "cancelled") {
            let record = format!(
                "INSERT INTO effect VALUES ('{name}'); SELECT FROM idem_record({which}, '2', token => {token}{stream})"
            );
            let late = self.executor.insist(&record).await?;
            ensure!(late == "ID005", "a late record gives {late:?}");
            count(&self.executor.race.tally.fenced);
        }
        let key = key.as_ref().map_or("NULL".into(), |key| format!("'{key}'"));
        let verdict = format!(
            "INSERT INTO verdict SELECT '{name}', {key}, '{status}', '{response}'
              WHERE NOT EXISTS (SELECT FROM verdict WHERE request = '{name}')"
        );
        self.settler.insist(&verdict).await?;
        self.settler.race.tally.settled.fetch_add(1, Relaxed);
        Ok(())
    }
}
