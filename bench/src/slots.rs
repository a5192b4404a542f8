//! What is left in the tables of sessions by a long and steady load.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::Plan;
use crate::lab::{COPY, Lab};

/// Sessions, and how many connections they are shared by.
pub const SESSIONS: u64 = 1000;
const CONNECTIONS: u64 = 4;
/// As many laps as a window is wide: then each slot has been written once.
const FIRST_LAPS: u64 = 5;

/// What was found.
pub struct Left {
    /// All requests sent.
    pub requests: u64,
    pub tables: Vec<Table>,
}

/// One table.
pub struct Table {
    pub name: &'static str,
    /// With its indexes and all, after the first laps and at the end, in bytes.
    pub first_bytes: f64,
    pub last_bytes: f64,
    /// Updates since the first laps, and those of them that were HOT.
    pub updates: f64,
    pub hot: f64,
}

const TABLES: [&str; 3] = ["reply", "session", "session_live"];

/// Sends them.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Left> {
    lab.fresh_copy()?;
    lab.psql(
        COPY,
        &format!(
            "INSERT INTO bench_session (number, session)
             SELECT n, r.session FROM generate_series(1, {SESSIONS}) n, idem_register('slots ' || n, window_size => 5) r"
        ),
    )?;
    let laps = (plan.slot_requests / SESSIONS).max(FIRST_LAPS * 2);
    run_laps(lab, 1, FIRST_LAPS)?;
    let first = sizes(lab)?;
    let before = updates(lab)?;
    run_laps(lab, FIRST_LAPS + 1, laps)?;
    let (last, after) = (sizes(lab)?, updates(lab)?);
    let tables = TABLES.iter().enumerate().map(|(i, name)| Table {
        name,
        first_bytes: first[i],
        last_bytes: last[i],
        updates: after[i].0 - before[i].0,
        hot: after[i].1 - before[i].1,
    });
    Ok(Left { requests: laps * SESSIONS, tables: tables.collect() })
}

/// Each connection its share of the sessions, all at once.
fn run_laps(lab: &Lab, from: u64, to: u64) -> Result<()> {
    eprintln!("slots: laps {from} to {to}");
    let share = SESSIONS / CONNECTIONS;
    let children = (0..CONNECTIONS).map(|connection| {
        let call = format!("CALL run_laps({}, {}, {from}, {to})", connection * share + 1, (connection + 1) * share);
        lab.program("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &lab.connect_string()])
            .args(["-c", "SET synchronous_commit = off", "-c", &call])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run psql")
    });
    for child in children.collect::<Result<Vec<_>>>()? {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("a connection failed: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}

fn sizes(lab: &Lab) -> Result<Vec<f64>> {
    let size = |table: &&str| {
        let query = format!("SELECT pg_total_relation_size('idempotence.{table}')");
        Ok(lab.psql(COPY, &query)?.parse()?)
    };
    TABLES.iter().map(size).collect()
}

/// Updates, and those that were HOT, of each table.
fn updates(lab: &Lab) -> Result<Vec<(f64, f64)>> {
    let counts = |table: &&str| {
        let query = format!(
            "SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'idempotence.{table}'::regclass"
        );
        let found = lab.psql(COPY, &query)?;
        let (all, hot) = found.split_once(' ').context("two counts")?;
        Ok((all.parse()?, hot.parse()?))
    };
    TABLES.iter().map(counts).collect()
}
