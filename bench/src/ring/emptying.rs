//! The emptying of a segment: what it costs, and how it slows down the clients meanwhile.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::finding::{Finding, Goal};
use crate::lab::{DATABASE, Lab};
use crate::ring::load::{self, script};
use crate::ring::segments::{fill, fill_by_hand, fill_table};
use crate::script::Keygen;
use crate::spread::Spread;

/// What removes outcomes that have expired, by hand.
const BY_HAND: [&str; 2] = ["DELETE FROM request WHERE expires_at < now()", "VACUUM request"];

/// The time and the write-ahead log that it takes to empty a segment, compared with `TRUNCATE` of a table that has as many
/// rows and the same indexes, with `DELETE` and `VACUUM`, and with ten times as many rows.
pub fn cost(lab: &Lab, rows: u64, rounds: usize, findings: &mut Vec<Finding>) -> Result<()> {
    let few = beside_truncate(lab, rows, rounds, findings)?;
    let (mut by_hand, mut by_hand_kb) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        lab.psql(DATABASE, &fill_by_hand(rows))?;
        let bytes = lab.wal_bytes(|| {
            by_hand.push(timed(lab, &BY_HAND)?.iter().sum());
            Ok(())
        })?;
        by_hand_kb.push(bytes / 1024.0);
    }
    let many = beside_truncate(lab, 10 * rows, rounds, findings)?;
    for (what, few, many, goal) in [
        ("emptying", &few.emptying, &many.emptying, Some(Goal::AtMost(1.5))),
        ("`TRUNCATE`", &few.bare, &many.bare, None),
    ] {
        let ratio = Spread::of(many.iter().zip(few).map(|(many, few)| many / few));
        findings.push(Finding { goal, ..Finding::new(format!("{what}, {} outcomes / {rows}", 10 * rows), ratio, 1) });
    }
    let ratios = Spread::of(few.emptying.iter().zip(&by_hand).map(|(emptying, by_hand)| by_hand / emptying));
    findings.push(Finding::new(format!("`DELETE` and `VACUUM` of {rows}, ms"), Spread::of(by_hand), 0));
    findings.push(Finding::new("time by hand / emptying", ratios, 0));
    findings.push(Finding::new("log of `DELETE` and `VACUUM`, kB", Spread::of(by_hand_kb), 0));
    Ok(())
}

/// The milliseconds that it takes in each round to empty a segment, and to truncate a table like it.
struct Times {
    emptying: Vec<f64>,
    bare: Vec<f64>,
}

fn beside_truncate(lab: &Lab, rows: u64, rounds: usize, findings: &mut Vec<Finding>) -> Result<Times> {
    let (mut emptying, mut bare, mut emptying_kb) = (Vec::new(), Vec::new(), Vec::new());
    lab.psql(DATABASE, "CREATE TABLE bare (LIKE idempotence.outcome_1 INCLUDING ALL)")?;
    for round in 0..rounds {
        eprintln!("ring: emptying {rows} outcomes, round {} of {rounds}", round + 1);
        lab.psql(DATABASE, &fill(1, rows, true))?;
        // The commit releases the locks first and then removes the files.
        let bytes = lab.wal_bytes(|| {
            emptying.push(emptied(lab, "SELECT idempotence.sweep_step('empty')")?);
            Ok(())
        })?;
        emptying_kb.push(bytes / 1024.0);
        if lab.psql(DATABASE, "SELECT pg_relation_size('idempotence.outcome_1')")? != "0" {
            bail!("the segment is not empty");
        }
        lab.psql(DATABASE, &format!("{}; CHECKPOINT", fill_table("bare", rows, "now() - interval '1 day'")))?;
        bare.push(emptied(lab, "TRUNCATE bare")?);
    }
    lab.psql(DATABASE, "DROP TABLE bare")?;
    let to_bare = Spread::of(emptying.iter().zip(&bare).map(|(emptying, bare)| emptying / bare));
    let times = Times { emptying, bare };
    findings.push(Finding::new(format!("emptying {rows} outcomes, ms"), Spread::of(times.emptying.clone()), 1));
    findings.push(Finding::new(
        format!("`TRUNCATE` of a table like it, {rows} rows, ms"),
        Spread::of(times.bare.clone()),
        1,
    ));
    findings.push(Finding::new(format!("emptying / `TRUNCATE`, {rows}"), to_bare, 2).with_goal(Goal::AtMost(1.5)));
    findings.push(Finding::new(format!("log of emptying {rows}, kB"), Spread::of(emptying_kb), 0));
    Ok(times)
}

/// The milliseconds that a statement takes which empties a table, with its commit, which removes the files.
fn emptied(lab: &Lab, statement: &str) -> Result<f64> {
    // The first statement also loads the library, so its time does not count.
    let times = timed(lab, &["SELECT idempotence.sweep_step('close')", "BEGIN", statement, "COMMIT"])?;
    Ok(times[1..].iter().sum())
}

/// The milliseconds that each statement takes, as psql measures them.
fn timed(lab: &Lab, statements: &[&str]) -> Result<Vec<f64>> {
    // The background worker sweeps without JIT compilation too.
    let script = format!("SET jit = off;\n\\timing on\n{};\n", statements.join(";\n"));
    let output = lab.psql(DATABASE, &script)?;
    let times: Vec<f64> =
        output.lines().filter_map(|line| line.strip_prefix("Time: ")?.split(' ').next()?.parse().ok()).collect();
    if times.len() != statements.len() {
        bail!("psql measured {} of {} statements:\n{output}", times.len(), statements.len());
    }
    Ok(times)
}

/// The latency of clients in the second in which as many outcomes are removed, compared with the second before.
pub fn under_load(lab: &Lab, outcomes: u64, rounds: usize, findings: &mut Vec<Finding>) -> Result<()> {
    let emptying = latencies_beside(lab, &fill(1, outcomes, true), "CALL idem_sweep()", rounds)?;
    let by_hand = latencies_beside(lab, &fill_by_hand(outcomes), &BY_HAND.join("; "), rounds)?;
    findings.push(
        Finding::new("begin and record, 99th percentile while it happens / before", emptying, 2)
            .with_goal(Goal::AtMost(1.5)),
    );
    let beside = "begin and record, 99th percentile in the first second of `DELETE` and `VACUUM` / before";
    findings.push(Finding::new(beside, by_hand, 2));
    Ok(())
}

/// The 99th percentile of the clients' latencies in the second after these statements begin, as a multiple of that in the
/// second before.
fn latencies_beside(lab: &Lab, fill: &str, statements: &str, rounds: usize) -> Result<Spread> {
    let mut ratios = Vec::new();
    for round in 0..rounds.max(3) {
        eprintln!("ring: {statements} under load, round {} of {}", round + 1, rounds.max(3));
        lab.psql(DATABASE, fill)?;
        let child = load::start(
            lab,
            100 + round as u64,
            ["-T", "6"],
            &script(Keygen::Ascending),
            &["-l", "--log-prefix=ring"],
        )?;
        std::thread::sleep(Duration::from_secs(3));
        let at: f64 = lab
            .psql(
                DATABASE,
                &format!("SELECT extract(epoch FROM clock_timestamp()) AS at \\gset\n{statements};\nSELECT :at"),
            )?
            .lines()
            .last()
            .and_then(|line| line.parse().ok())
            .context("no time")?;
        load::finish(child)?;
        let transactions = read_log(lab)?;
        let p99 = |from: f64| {
            let inside = transactions.iter().filter(|(ended, _)| (from..from + 1.0).contains(ended));
            let mut latencies: Vec<f64> = inside.map(|(_, us)| *us).collect();
            latencies.sort_by(f64::total_cmp);
            latencies.get(latencies.len() * 99 / 100).copied().context("no transaction in that second")
        };
        ratios.push(p99(at)? / p99(at - 1.0)?);
    }
    Ok(Spread::of(ratios))
}

/// Reads and removes pgbench's logs. Returns the time at which each transaction ended, and its latency in
/// microseconds.
fn read_log(lab: &Lab) -> Result<Vec<(f64, f64)>> {
    let mut transactions = Vec::new();
    for entry in fs::read_dir(lab.data_dir())? {
        let path = entry?.path();
        let is_log = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ring."));
        if !is_log {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let words: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            if let [_, _, latency_us, _, seconds, us] = words[..] {
                transactions.push((seconds + us / 1e6, latency_us));
            }
        }
        fs::remove_file(&path)?;
    }
    Ok(transactions)
}
