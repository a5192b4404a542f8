//! The row about old snapshots: what a request of a client session costs while somebody holds an old
//! snapshot, as pg_dump does.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::finding::{Finding, Goal};
use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::row::{OFF_4, Row};
use crate::spread::Spread;

/// The id of the row.
pub const HELD: &str = "held";

/// The number of requests whose time is measured at the beginning and at the end.
const MEASURED_REQUESTS: u64 = 1000;

pub fn row() -> Row {
    Row {
        id: HELD,
        title: "Sessions under an old snapshot",
        text: "One connection sends the requests of one session with a window of 5, one after the other, each in a transaction. \
Another connection holds a snapshot that was taken before the first request, so nothing that was written over can be removed. The \
time of the last thousand requests is compared with that of the first thousand.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Measures each ordering of sessions in rounds.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Finding>> {
    let requests = plan.held_requests.max(2 * MEASURED_REQUESTS);
    let mut findings = Vec::new();
    for ordering in ["any", "strict"] {
        let (mut firsts, mut lasts, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..plan.few_rounds {
            eprintln!("held: {requests} requests of a session of ordering {ordering}, round {}", round + 1);
            lab.fresh_copy()?;
            let (first, last) = first_and_last(lab, ordering, requests)?;
            firsts.push(first);
            lasts.push(last);
            ratios.push(last / first);
        }
        let line = |what: &str, values| Finding::new(format!("`{ordering}`: {what}"), Spread::of(values), 1);
        findings.push(line("µs a request, the first thousand", firsts));
        findings.push(line(&format!("µs a request, the last thousand of {requests}"), lasts));
        findings.push(line("the last against the first", ratios).with_goal(Goal::AtMost(2.0)));
    }
    Ok(findings)
}

/// The microseconds per request of the first and of the last measured requests, while a connection holds a
/// snapshot.
fn first_and_last(lab: &Lab, ordering: &str, requests: u64) -> Result<(f64, f64)> {
    lab.psql(
        DATABASE,
        &format!(
            "INSERT INTO bench_session (number, session)
             SELECT 1, r.session FROM idem_register('held', window_size => 5, ordering => '{ordering}', timeout => '1 day') r"
        ),
    )?;
    let mut holder = lab
        .program("psql")
        .args(["-X", "-q", "-d", &format!("{} application_name=holder", lab.connect_string())])
        .args(["-c", "BEGIN ISOLATION LEVEL REPEATABLE READ", "-c", "SELECT count(*) FROM bench_session"])
        .args(["-c", "SELECT pg_sleep(3600)"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run psql")?;
    let times = under_snapshot(lab, requests);
    // Otherwise the backend would go on sleeping.
    lab.psql(DATABASE, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holder'")?;
    holder.wait()?;
    times
}

/// The same times, measured once the snapshot is held.
fn under_snapshot(lab: &Lab, requests: u64) -> Result<(f64, f64)> {
    const HOLDS: &str =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holder' AND wait_event = 'PgSleep'";
    let mut attempts = 0;
    while lab.psql(DATABASE, HOLDS)? != "1" {
        attempts += 1;
        if attempts > 1000 {
            bail!("the snapshot is not held");
        }
    }
    let time = |from: u64, to: u64| -> Result<f64> {
        // Each step is a statement of its own, because the procedure commits.
        let timed = format!(
            "SET synchronous_commit = off;
             SELECT clock_timestamp() AS began \\gset
             CALL run_laps(1, 1, {from}, {to});
             SELECT extract(epoch FROM clock_timestamp() - :'began') * 1e6 / {}",
            to + 1 - from
        );
        Ok(lab.psql(DATABASE, &timed)?.lines().last().unwrap_or_default().parse()?)
    };
    let first = time(1, MEASURED_REQUESTS)?;
    time(MEASURED_REQUESTS + 1, requests - MEASURED_REQUESTS)?;
    let last = time(requests - MEASURED_REQUESTS + 1, requests)?;
    let pages: f64 = lab.psql(DATABASE, "SELECT pg_relation_size('idempotence.reply') / 8192")?.parse()?;
    // A page has room for a hundred row versions at most.
    if pages < requests as f64 / 100.0 {
        bail!("the former versions are gone");
    }
    Ok((first, last))
}
