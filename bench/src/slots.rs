//! The row about the space of sessions: how the tables of client sessions grow under a long and steady load.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::row::{OFF_4, Row};

/// The id of the row.
pub const SLOTS: &str = "slots";

/// The number of sessions.
pub const SESSIONS: u64 = 1000;
/// The number of connections that share the sessions.
const CONNECTIONS: u64 = 4;
/// After this number of laps, which is the size of a window, each slot has been written once.
const FIRST_LAPS: u64 = 5;

/// How the tables have grown.
pub struct Growth {
    /// The number of requests sent.
    pub requests: u64,
    pub tables: Vec<TableGrowth>,
}

/// How one table has grown. Sizes include its indexes.
pub struct TableGrowth {
    pub name: &'static str,
    /// The size after the first laps.
    pub first_bytes: f64,
    /// The size at the end.
    pub last_bytes: f64,
    /// The number of updates since the first laps.
    pub updates: f64,
    /// The number of those updates that were HOT.
    pub hot_updates: f64,
}

const TABLES: [&str; 3] = ["reply", "session", "session_live"];

pub fn row() -> Row {
    Row {
        id: SLOTS,
        title: "The space of sessions",
        text: "Four connections at once send requests in 1000 sessions with a window of 5. They send them in laps, one request for \
each session in turn, and each request is a transaction. Autovacuum is at its defaults. The first laps write every slot once. What \
the tables take after these laps is compared with what they take at the end. The share of HOT updates is what the server counted.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Sends the requests and measures the tables.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Growth> {
    lab.fresh_copy()?;
    lab.psql(
        DATABASE,
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
    let tables = TABLES.iter().enumerate().map(|(i, name)| TableGrowth {
        name,
        first_bytes: first[i],
        last_bytes: last[i],
        updates: after[i].0 - before[i].0,
        hot_updates: after[i].1 - before[i].1,
    });
    Ok(Growth { requests: laps * SESSIONS, tables: tables.collect() })
}

/// Sends a request of each session in each of these laps. Each connection serves its share of the sessions, all
/// connections at the same time.
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

/// The size of each table.
fn sizes(lab: &Lab) -> Result<Vec<f64>> {
    let size = |table: &&str| {
        let query = format!("SELECT pg_total_relation_size('idempotence.{table}')");
        Ok(lab.psql(DATABASE, &query)?.parse()?)
    };
    TABLES.iter().map(size).collect()
}

/// The number of all updates and of HOT updates of each table.
fn updates(lab: &Lab) -> Result<Vec<(f64, f64)>> {
    let counts = |table: &&str| {
        let query = format!(
            "SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'idempotence.{table}'::regclass"
        );
        let found = lab.psql(DATABASE, &query)?;
        let (all, hot) = found.split_once(' ').context("two counts")?;
        Ok((all.parse()?, hot.parse()?))
    };
    TABLES.iter().map(counts).collect()
}
