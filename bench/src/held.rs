//! What a request of a client session costs while somebody holds an old snapshot, as pg_dump does.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::Plan;
use crate::found::{Found, Goal};
use crate::lab::{COPY, Lab};
use crate::rows::{OFF_4, Row};
use crate::stats::Spread;

/// The row's id.
pub const HELD: &str = "held";

/// So many requests are taken together.
const THOUSAND: u64 = 1000;

pub fn row() -> Row {
    Row {
        id: HELD,
        title: "Sessions under an old snapshot",
        text: "One session with a window of 5, one request after the other, each a transaction, on one connection, while \
another holds a snapshot that was taken before the first of them: so nothing that was written over can be removed. The time \
of the last thousand requests is held against that of the first thousand.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Each order in turn, in so many rounds.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Found>> {
    let requests = plan.held_requests.max(2 * THOUSAND);
    let mut found = Vec::new();
    for ordering in ["any", "strict"] {
        let (mut firsts, mut lasts, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..plan.wal_rounds {
            eprintln!("held: {requests} requests of a session of ordering {ordering}, round {}", round + 1);
            lab.fresh_copy()?;
            let (first, last) = first_and_last(lab, ordering, requests)?;
            firsts.push(first);
            lasts.push(last);
            ratios.push(last / first);
        }
        let line = |what: &str, values| Found::new(format!("`{ordering}`: {what}"), Spread::of(values), 1);
        found.push(line("µs a request, the first thousand", firsts));
        found.push(line(&format!("µs a request, the last thousand of {requests}"), lasts));
        found.push(line("the last against the first", ratios).with_goal(Goal::AtMost(2.0)));
    }
    Ok(found)
}

fn first_and_last(lab: &Lab, ordering: &str, requests: u64) -> Result<(f64, f64)> {
    lab.psql(
        COPY,
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
    let measured = under_snapshot(lab, requests);
    // The backend would sleep on.
    lab.psql(COPY, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holder'")?;
    holder.wait()?;
    measured
}

fn under_snapshot(lab: &Lab, requests: u64) -> Result<(f64, f64)> {
    const HOLDS: &str =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holder' AND wait_event = 'PgSleep'";
    let mut tries = 0;
    while lab.psql(COPY, HOLDS)? != "1" {
        tries += 1;
        if tries > 1000 {
            bail!("the snapshot is not held");
        }
    }
    let time = |from: u64, to: u64| -> Result<f64> {
        // In a statement of its own, since the procedure commits.
        let timed = format!(
            "SET synchronous_commit = off;
             SELECT clock_timestamp() AS began \\gset
             CALL run_laps(1, 1, {from}, {to});
             SELECT extract(epoch FROM clock_timestamp() - :'began') * 1e6 / {}",
            to + 1 - from
        );
        Ok(lab.psql(COPY, &timed)?.lines().last().unwrap_or_default().parse()?)
    };
    let first = time(1, THOUSAND)?;
    time(THOUSAND + 1, requests - THOUSAND)?;
    let last = time(requests - THOUSAND + 1, requests)?;
    let pages: f64 = lab.psql(COPY, "SELECT pg_relation_size('idempotence.reply') / 8192")?.parse()?;
    // More than a hundred versions do not fit into a page.
    if pages < requests as f64 / 100.0 {
        bail!("the former versions are gone");
    }
    Ok((first, last))
}
