//! The row about waiting for a lease: how long after the commit of the outcome its waiter has the answer.
//!
//! One program has both connections, and one thread reads from both, so there is one clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idempotence_demo::server::{SUPERUSER, Server};
use tokio::runtime;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::finding::{Finding, Goal};
use crate::lab::Lab;
use crate::plan::Plan;
use crate::row::{ON_4, Row};
use crate::spread::{Spread, quantile};

/// The id of the row.
pub const WAKE: &str = "wake";

/// The commit comes at least so long after the waiter was sent off.
const DELAY_MIN: Duration = Duration::from_millis(30);
/// Where no one wakes it, a waiter looks once in this time. The commits are spread evenly over it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The goal for the 99th percentile where the library is preloaded, in milliseconds after the commit.
const GOAL_MS: f64 = 50.0;

pub fn row() -> Row {
    Row {
        id: WAKE,
        title: "Waiting for a lease",
        text: "One connection has a lease of a request. Another connection waits for the request with `idem_begin(…, wait => …)`. \
The first connection records the outcome and commits, and the second one is answered with the outcome. One program has both connections \
and takes the time from the moment at which it sent COMMIT, and from the moment at which COMMIT was answered. A negative time means that \
the waiter was answered first. Where the library is preloaded, the commit wakes the waiter. Elsewhere the waiter looks ten times \
a second, so the commits are spread evenly over a tenth of a second.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![ON_4],
        goal_cells: vec![ON_4],
    }
}

/// Measures with the library preloaded and without, each on a server of its own.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (where_, libraries, goal) in
        [("preloaded", "idempotence", Some(Goal::AtMost(GOAL_MS))), ("not preloaded", "", None)]
    {
        let server = lab.another_server(&[("shared_preload_libraries", libraries)])?;
        server.psql("postgres", "CREATE EXTENSION idempotence; SELECT idem_create_session('payments')")?;
        let mut rounds = Vec::new();
        for round in 0..plan.few_rounds {
            eprintln!("{WAKE}: {} waits, {where_}, round {}", plan.wakes, round + 1);
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            rounds.push(runtime.block_on(latencies(&server, round, plan.wakes))?);
        }
        let line = |what: &str, times: fn(&Latency) -> f64, share: f64| {
            let spread = Spread::of(rounds.iter().map(|round| {
                let mut times: Vec<f64> = round.iter().map(times).collect();
                times.sort_by(f64::total_cmp);
                quantile(&times, share)
            }));
            Finding::new(format!("{where_}: {what}, ms"), spread, 2)
        };
        findings.push(line("from COMMIT's answer to the waiter's, median", |latency| latency.from_answer_ms, 0.5));
        let slowest =
            line("from COMMIT's answer to the waiter's, 99th percentile", |latency| latency.from_answer_ms, 0.99);
        findings.push(Finding { goal, ..slowest });
        findings.push(line(
            "from COMMIT's being sent to the waiter's answer, median",
            |latency| latency.from_send_ms,
            0.5,
        ));
        findings.push(line(
            "from COMMIT's being sent to the waiter's answer, 99th percentile",
            |latency| latency.from_send_ms,
            0.99,
        ));
    }
    Ok(findings)
}

/// How long a waiter's answer took.
struct Latency {
    /// From the moment at which COMMIT was sent.
    from_send_ms: f64,
    /// From the moment at which COMMIT was answered; negative if the waiter had its answer before.
    from_answer_ms: f64,
}

/// Measures this number of waits, one after the other.
async fn latencies(server: &Server, round: usize, waits: usize) -> Result<Vec<Latency>> {
    let (holder, waiter) = (connect(server).await?, connect(server).await?);
    let mut latencies = Vec::new();
    for wait in 0..waits {
        // Multiples of the golden section are spread evenly, however many there are.
        let phase = (wait as f64 * 0.618_033_988_75).fract();
        let delay = DELAY_MIN + LOOK_INTERVAL.mul_f64(phase);
        latencies.push(latency(&holder, &waiter, &format!("{round}-{wait}"), delay).await?);
    }
    Ok(latencies)
}

/// Has one connection wait for a lease of the other one, which records and commits after the delay.
async fn latency(holder: &Client, waiter: &Client, key: &str, delay: Duration) -> Result<Latency> {
    const BEGIN: &str = "SELECT token FROM idem_begin('payments', $1, lease => '1 min')";
    const WAIT: &str = "SELECT status, replayed FROM idem_begin('payments', $1, wait => '20 s')";
    const RECORD: &str = "SELECT idem_record('payments', $1, '{\"status\": \"booked\"}', token => $2)::text";
    let token: i64 = holder.query_one(BEGIN, &[&key]).await?.try_get("token")?;
    let record = async {
        sleep(delay).await;
        holder.batch_execute("BEGIN").await?;
        holder.query_one(RECORD, &[&key, &token]).await?;
        let sent = Instant::now();
        holder.batch_execute("COMMIT").await?;
        anyhow::Ok((sent, Instant::now()))
    };
    let wait = async {
        let row = waiter.query_one(WAIT, &[&key]).await?;
        anyhow::Ok((Instant::now(), row))
    };
    let ((sent, answered), (woken, row)) = tokio::try_join!(record, wait)?;
    ensure!(row.try_get::<_, &str>("status")? == "succeeded" && row.try_get("replayed")?, "the waiter got no outcome");
    ensure!(woken > sent, "the waiter had its answer before COMMIT was sent");
    Ok(Latency { from_send_ms: ms_between(sent, woken), from_answer_ms: ms_between(answered, woken) })
}

/// The milliseconds from one moment to another, negative if the other one was before.
fn ms_between(from: Instant, to: Instant) -> f64 {
    let (after, before) = (to.saturating_duration_since(from), from.saturating_duration_since(to));
    (after.as_secs_f64() - before.as_secs_f64()) * 1e3
}

async fn connect(server: &Server) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&server.connect_string("postgres", SUPERUSER), NoTls)
        .await
        .context("cannot connect to the server")?;
    tokio::spawn(connection);
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_before_the_commit_counts_as_negative() {
        let commit = Instant::now();
        let answer = commit + Duration::from_micros(1500);
        assert_eq!(ms_between(commit, answer), 1.5);
        assert_eq!(ms_between(answer, commit), -1.5);
    }
}
