//! Where things are measured: a private server, a fresh copy of the same database for each cell, and
//! `pgbench` as the load.
//!
//! One run is a second of warming up and then some whole seconds that count: transactions by pgbench's
//! own reports, and the CPU time of the backends that serve it, read at the same moments. What a
//! backend does once (starting, loading the library, planning) is so left out for all alike.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idempotence_demo::server::{SUPERUSER, Server};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::Plan;
use crate::machine;
use crate::rows::{CONSTANTS, Cell, Row, Variant};

/// The database that the others are copied from.
const ORIGINAL: &str = "original";
/// The one that is measured.
pub const COPY: &str = "bench";

/// What differs from the defaults. No checkpoint may fall into a run.
const SETTINGS: [(&str, &str); 5] = [
    ("shared_buffers", "512MB"),
    ("min_wal_size", "2GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("idempotence.max_sessions_per_role", "100000000"),
];

/// So much further a client's keys begin in each run: more than it can use up in one.
const KEYS_A_RUN: u64 = 200_000;

/// A private server with the schema and the kept outcomes.
pub struct Lab {
    server: Server,
    kept: u64,
}

/// What one run showed.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Keys dealt with a second.
    pub rate: f64,
    /// CPU time of the server's backends for each of them.
    pub cpu_us: f64,
}

/// The runs of a cell: `samples[round][variant]`.
pub struct Measured {
    pub cell: Cell,
    pub samples: Vec<Vec<Sample>>,
}

impl Lab {
    /// Starts the server and fills the database.
    pub fn start(pg_config: &Path, dir: Option<&Path>, kept: u64) -> Result<Self> {
        eprintln!("starting a private server with {kept} kept outcomes");
        let mut builder = Server::builder(pg_config);
        if let Some(dir) = dir {
            builder = builder.dir(dir);
        }
        for (name, value) in SETTINGS {
            builder = builder.conf(name, value);
        }
        let server = builder.start()?;
        server.psql("postgres", &format!("CREATE DATABASE {ORIGINAL}"))?;
        server.psql(ORIGINAL, include_str!("../sql/schema.sql")).context("is the extension installed?")?;
        server.psql(ORIGINAL, &format!("SET bench.kept = {kept};\n{}", include_str!("../sql/kept.sql")))?;
        Ok(Self { server, kept })
    }

    /// For the page.
    pub fn server_version(&self) -> Result<String> {
        let version = self.psql("postgres", "SHOW server_version")?;
        // A packager's remark may follow in parentheses.
        Ok(version.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// For the page.
    pub fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &SETTINGS
    }

    /// A database as it was at the beginning, with nothing in it dirty.
    pub fn fresh_copy(&self) -> Result<()> {
        self.psql("postgres", &format!("DROP DATABASE IF EXISTS {COPY}"))?;
        self.psql("postgres", &format!("CREATE DATABASE {COPY} TEMPLATE {ORIGINAL} STRATEGY file_copy"))?;
        self.psql("postgres", "CHECKPOINT")?;
        Ok(())
    }

    /// Runs SQL; gives what psql prints.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        Ok(self.server.psql(database, sql)?.trim_end().to_owned())
    }

    /// How far the log advances by some work, which begins with a checkpoint.
    pub fn bytes_of_log(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.psql(COPY, "CHECKPOINT")?;
        let from = self.psql(COPY, "SELECT pg_current_wal_insert_lsn()")?;
        work()?;
        Ok(self.psql(COPY, &format!("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{from}')"))?.parse()?)
    }

    /// One of the server's programs, and where the server keeps its data.
    pub fn program(&self, name: &str) -> std::process::Command {
        self.server.program(name)
    }

    /// Of the database that is measured.
    pub fn connect_string(&self) -> String {
        self.server.connect_string(COPY, SUPERUSER)
    }

    pub fn data_dir(&self) -> std::path::PathBuf {
        self.server.data_dir()
    }

    /// All cells of a row.
    pub fn measure(&self, row: &Row, plan: &Plan) -> Result<Vec<Measured>> {
        row.cells(plan.quick).iter().map(|&cell| self.measure_cell(row, cell, plan)).collect()
    }

    /// Rounds in which each variant has its turn, another one first each time.
    fn measure_cell(&self, row: &Row, cell: Cell, plan: &Plan) -> Result<Measured> {
        self.fresh_copy()?;
        let before = self.counts(row)?;
        let mut new_keys = vec![0; row.variants.len()];
        let mut samples = Vec::new();
        for round in 0..plan.rounds {
            eprintln!(
                "{}: synchronous_commit {}, {} client(s), round {} of {}",
                row.id,
                on_or_off(cell.synchronous),
                cell.clients,
                round + 1,
                plan.rounds
            );
            let mut in_round = vec![None; row.variants.len()];
            for turn in 0..row.variants.len() {
                let place = (round + turn) % row.variants.len();
                let variant = &row.variants[place];
                let run = self.run_seconds(variant, cell, plan.seconds, (round * row.variants.len() + turn) as u64)?;
                new_keys[place] += run.transactions * u64::from(variant.new_keys);
                in_round[place] = Some(run.sample);
            }
            samples.push(in_round.into_iter().flatten().collect());
        }
        self.check_counts(row, &before, &new_keys)?;
        Ok(Measured { cell, samples })
    }

    /// How many rows each variant has left behind.
    fn counts(&self, row: &Row) -> Result<Vec<u64>> {
        row.variants.iter().map(|variant| Ok(self.psql(COPY, variant.count)?.parse()?)).collect()
    }

    /// That each transaction did what it was to do. Tables are shared by variants.
    fn check_counts(&self, row: &Row, before: &[u64], new_keys: &[u64]) -> Result<()> {
        for ((variant, before), after) in row.variants.iter().zip(before).zip(self.counts(row)?) {
            let table = variant.count;
            let writes_ledger = table.contains("ledger");
            let expected: u64 = row
                .variants
                .iter()
                .zip(new_keys)
                .filter(|(other, _)| other.count == table || writes_ledger)
                .map(|(_, new)| new)
                .sum();
            if after - before != expected {
                bail!("{}: {} rows are new, but {expected} keys were", variant.name, after - before);
            }
        }
        Ok(())
    }

    /// A fixed number of transactions, which are counted by the log that they write.
    pub fn run_transactions(&self, variant: &Variant, cell: Cell, transactions: u64) -> Result<()> {
        let a_client = (transactions / u64::from(cell.clients)).to_string();
        let child = self.pgbench(variant, cell, 0, &["-t", &a_client])?;
        finish(child, String::new()).map(drop)
    }

    fn run_seconds(&self, variant: &Variant, cell: Cell, seconds: u32, number: u64) -> Result<Run> {
        // A second to warm up before, and one after, for pgbench need not report the last.
        let duration = (seconds + 2).to_string();
        let mut child = self.pgbench(variant, cell, number, &["-P", "1", "-T", &duration])?;
        let stderr = child.stderr.take().context("its standard error is a pipe")?;

        let mut reports = BufReader::new(stderr);
        let mut read = String::new();
        let mut began: Option<(Instant, Vec<ClockId>, Duration)> = None;
        let mut rates = Vec::new();
        let mut window = None;
        while rates.len() < seconds as usize {
            let mut line = String::new();
            if reports.read_line(&mut line)? == 0 {
                bail!("pgbench ended early:\n{read}{}", finish(child, String::new())?);
            }
            read += &line;
            let Some(rate) = reported_rate(&line) else { continue };
            match &began {
                // Only now: the very first connection is not one of the clients', but asks for the version.
                None => {
                    let backends = self.backends(&run_name(number), cell.clients)?;
                    let cpu = cpu_time(&backends)?;
                    began = Some((Instant::now(), backends, cpu));
                }
                Some((at, backends, cpu)) => {
                    rates.push(rate);
                    window = Some((at.elapsed(), cpu_time(backends)?.saturating_sub(*cpu)));
                }
            }
        }
        reports.read_to_string(&mut read)?;
        let output = finish(child, read)?;

        let (wall, cpu) = window.context("at least one report counts")?;
        let rate = rates.iter().sum::<f64>() / rates.len() as f64 * f64::from(variant.keys);
        let cpu_us = cpu.as_secs_f64() * 1e6 / (wall.as_secs_f64() * rate);
        Ok(Run { sample: Sample { rate, cpu_us }, transactions: transactions(&output)? })
    }

    fn pgbench(&self, variant: &Variant, cell: Cell, number: u64, how_long: &[&str]) -> Result<Child> {
        let script = self.server.home().join("script.sql");
        fs::write(&script, variant.script())?;
        let mut command = self.server.program("pgbench");
        command.args(["-n", "-M", "prepared", "-c", &cell.clients.to_string()]);
        command.args(["-j", &(cell.clients as usize).min(machine::cores()).to_string()]);
        command.args(how_long);
        for (name, value) in CONSTANTS {
            command.arg("-D").arg(format!("{name}={value}"));
        }
        command.arg("-D").arg(format!("n={}", number * KEYS_A_RUN));
        command.arg("-D").arg(format!("kept={}", self.kept));
        // Nothing sent and no session yet.
        command.args(["-D", "k=0", "-D", "session=none"]);
        command.arg("-f").arg(&script);
        command.arg(format!(
            "{} application_name={} options='-c synchronous_commit={}'",
            self.connect_string(),
            run_name(number),
            on_or_off(cell.synchronous)
        ));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot run pgbench, which comes with the server")
    }

    /// The CPU clocks of the processes that serve a run.
    fn backends(&self, run_name: &str, clients: u32) -> Result<Vec<ClockId>> {
        let query = format!("SELECT pid FROM pg_stat_activity WHERE application_name = '{run_name}'");
        let pids = self.psql("postgres", &query)?;
        let backends = pids.lines().count();
        if backends != clients as usize {
            bail!("pgbench has {backends} of {clients} connections");
        }
        pids.lines().map(|pid| Ok(clock_getcpuclockid(Pid::from_raw(pid.parse()?))?)).collect()
    }
}

struct Run {
    sample: Sample,
    transactions: u64,
}

/// By which the server knows a run's connections: those of the run before may not be gone yet.
fn run_name(number: u64) -> String {
    format!("run_{number}")
}

/// As `synchronous_commit` spells it.
pub fn on_or_off(synchronous: bool) -> &'static str {
    if synchronous { "on" } else { "off" }
}

/// User and system time of these processes so far.
fn cpu_time(clocks: &[ClockId]) -> Result<Duration> {
    clocks.iter().map(|clock| Ok(Duration::from(clock.now()?))).sum()
}

/// Waits for pgbench; `stderr` is what was read of that already.
fn finish(mut child: Child, mut stderr: String) -> Result<String> {
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_string(&mut stderr)?;
    }
    let output = child.wait_with_output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("pgbench failed ({}):\n{stdout}{stderr}", output.status);
    }
    Ok(stdout)
}

/// The rate in a report like `progress: 2.0 s, 5130.9 tps, lat 0.778 ms stddev 0.2, 0 failed`.
fn reported_rate(line: &str) -> Option<f64> {
    line.strip_prefix("progress: ")?.split(", ").nth(1)?.strip_suffix(" tps")?.parse().ok()
}

/// From `number of transactions actually processed: 12345`, to which `/12345` may be joined.
fn transactions(output: &str) -> Result<u64> {
    output
        .lines()
        .find_map(|line| {
            line.strip_prefix("number of transactions actually processed: ")?.split('/').next()?.parse().ok()
        })
        .with_context(|| format!("pgbench does not say how many transactions it did:\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_rate_and_other_lines_have_none() {
        assert_eq!(reported_rate("progress: 2.0 s, 5130.9 tps, lat 0.778 ms stddev 0.210, 0 failed\n"), Some(5130.9));
        assert_eq!(reported_rate("pgbench (15.14)\n"), None);
    }

    #[test]
    fn transactions_are_read_with_and_without_those_asked_for() {
        let line = |end: &str| format!("scaling factor: 1\nnumber of transactions actually processed: 123{end}\n");
        assert_eq!(transactions(&line("")).expect("a number"), 123);
        assert_eq!(transactions(&line("/123")).expect("a number"), 123);
        assert!(transactions("").is_err());
    }
}
