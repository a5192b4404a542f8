//! The laboratory: a private server, a fresh copy of the same database for each cell, and `pgbench`, which
//! produces the load.
//!
//! A run is a second of warming up and then some whole seconds that count. The transactions in these seconds
//! come from pgbench's own reports, and the CPU time of the backends that serve pgbench is read at the same
//! moments. What a backend does only once (starting, loading the library, planning) thus counts for no
//! variant.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idempotence_demo::server::{Builder, SUPERUSER, Server};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::machine;
use crate::plan::Plan;
use crate::row::{Cell, Row, Variant};
use crate::script::CONSTANTS;

/// The database from which the measured database is copied.
const TEMPLATE: &str = "original";
/// The database that is measured.
pub const DATABASE: &str = "bench";

/// The settings that differ from the defaults. They keep checkpoints and sweeps out of the runs.
const SETTINGS: [(&str, &str); 7] = [
    ("shared_preload_libraries", "idempotence"),
    ("idempotence.databases", ""),
    ("shared_buffers", "512MB"),
    ("min_wal_size", "2GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("idempotence.max_sessions_per_role", "100000000"),
];

/// The distance between the first keys of two runs: more keys than a client can use in a run.
pub const KEYS_PER_RUN: u64 = 200_000;

/// A private server with the schema of the benchmark and the kept outcomes.
pub struct Lab {
    server: Server,
    /// What the server was made with.
    builder: Builder,
    kept: u64,
}

/// The result of one run.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Keys per second.
    pub rate: f64,
    /// CPU time of the server's backends per key.
    pub cpu_us: f64,
}

/// The results of a cell.
pub struct MeasuredCell {
    pub cell: Cell,
    /// The results as `samples[round][variant]`.
    pub samples: Vec<Vec<Sample>>,
}

/// What makes the accounts of a database as they are after some use.
pub const WEAR: &str = include_str!("../sql/wear.sql");

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
        let server = builder.clone().start()?;
        server.psql("postgres", &format!("CREATE DATABASE {TEMPLATE}"))?;
        server.psql(TEMPLATE, include_str!("../sql/schema.sql")).context("is the extension installed?")?;
        server.psql(TEMPLATE, include_str!("../sql/keys.sql"))?;
        server.psql(TEMPLATE, &format!("SET bench.kept = {kept};\n{}", include_str!("../sql/kept.sql")))?;
        server.psql(TEMPLATE, WEAR)?;
        Ok(Self { server, builder, kept })
    }

    /// Starts another server of the same installation with the same settings and some more.
    pub fn another_server(&self, settings: &[(&str, &str)]) -> Result<Server> {
        let builder = self.builder.clone();
        settings.iter().fold(builder, |builder, (name, value)| builder.conf(name, value)).start()
    }

    /// The server that has the measured database.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The number of outcomes that are kept from the beginning.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// The version of PostgreSQL.
    pub fn server_version(&self) -> Result<String> {
        let version = self.psql("postgres", "SHOW server_version")?;
        // A remark of the packager may follow in parentheses.
        Ok(version.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// The major version of PostgreSQL.
    pub fn major(&self) -> Result<u32> {
        let number: u32 = self.psql("postgres", "SHOW server_version_num")?.parse()?;
        Ok(number / 10_000)
    }

    /// The settings that differ from the defaults.
    pub fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &SETTINGS
    }

    /// Restores the measured database to its initial state, without dirty buffers.
    pub fn fresh_copy(&self) -> Result<()> {
        self.psql("postgres", &format!("DROP DATABASE IF EXISTS {DATABASE}"))?;
        self.psql("postgres", &format!("CREATE DATABASE {DATABASE} TEMPLATE {TEMPLATE} STRATEGY file_copy"))?;
        self.psql("postgres", "CHECKPOINT")?;
        Ok(())
    }

    /// Runs SQL and returns what psql prints.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        Ok(self.server.psql(database, sql)?.trim_end().to_owned())
    }

    /// The number of bytes by which some work advances the write-ahead log, beginning at a checkpoint.
    pub fn wal_bytes(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.psql(DATABASE, "CHECKPOINT")?;
        let from = self.psql(DATABASE, "SELECT pg_current_wal_insert_lsn()")?;
        work()?;
        Ok(self.psql(DATABASE, &format!("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{from}')"))?.parse()?)
    }

    /// A command that runs one of the server's programs.
    pub fn program(&self, name: &str) -> std::process::Command {
        self.server.program(name)
    }

    /// The connection string of the measured database.
    pub fn connect_string(&self) -> String {
        self.server.connect_string(DATABASE, SUPERUSER)
    }

    /// The data directory of the server.
    pub fn data_dir(&self) -> std::path::PathBuf {
        self.server.data_dir()
    }

    /// Measures all cells of a row.
    pub fn measure(&self, row: &Row, plan: &Plan) -> Result<Vec<MeasuredCell>> {
        row.cells(plan.quick).iter().map(|&cell| self.measure_cell(row, cell, plan)).collect()
    }

    /// Measures a cell in rounds. In each round every variant runs once, and each round begins with a different
    /// variant.
    fn measure_cell(&self, row: &Row, cell: Cell, plan: &Plan) -> Result<MeasuredCell> {
        self.fresh_copy()?;
        let before = self.counts(row)?;
        let mut new_keys = vec![0; row.variants.len()];
        let mut samples = Vec::new();
        let rounds = if row.goal_cells.contains(&cell) { plan.rounds } else { plan.rounds.min(plan.few_rounds) };
        for round in 0..rounds {
            eprintln!(
                "{}: synchronous_commit {}, {} client(s), round {} of {}",
                row.id,
                on_or_off(cell.synchronous),
                cell.clients,
                round + 1,
                rounds
            );
            let mut in_round = vec![None; row.variants.len()];
            for turn in 0..row.variants.len() {
                let position = (round + turn) % row.variants.len();
                let variant = &row.variants[position];
                if !variant.before.is_empty() {
                    self.psql(DATABASE, variant.before)?;
                }
                let run = self.run_seconds(variant, cell, plan.seconds, (round * row.variants.len() + turn) as u64)?;
                new_keys[position] += run.transactions * u64::from(variant.new_keys);
                in_round[position] = Some(run.sample);
            }
            samples.push(in_round.into_iter().flatten().collect());
        }
        self.check_counts(row, &before, &new_keys)?;
        Ok(MeasuredCell { cell, samples })
    }

    /// What each variant's counting query gives.
    fn counts(&self, row: &Row) -> Result<Vec<u64>> {
        row.variants.iter().map(|variant| Ok(self.psql(DATABASE, variant.count)?.parse()?)).collect()
    }

    /// Checks that each transaction has left the rows that it should leave. Variants share tables.
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

    /// Runs a fixed number of transactions, whose write-ahead log the caller measures.
    pub fn run_transactions(&self, variant: &Variant, cell: Cell, transactions: u64) -> Result<()> {
        let per_client = (transactions / u64::from(cell.clients)).to_string();
        let child = self.pgbench(variant, cell, 0, &["-t", &per_client])?;
        finish(child, String::new()).map(drop)
    }

    /// Runs a variant for some seconds. `number` is different for each run of a cell.
    fn run_seconds(&self, variant: &Variant, cell: Cell, seconds: u32, number: u64) -> Result<Run> {
        // There is one more second before, to warm up, and one after: pgbench may not report the last second.
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
                // Before the first report, the connection with which pgbench asks for the version may be open.
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
        command.arg("-D").arg(format!("n={}", number * KEYS_PER_RUN));
        command.arg("-D").arg(format!("kept={}", self.kept));
        // The clients have sent nothing and have no session yet.
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

/// The sample of a run, and the number of all its transactions, with those before and after the seconds that
/// count.
struct Run {
    sample: Sample,
    transactions: u64,
}

/// The application name of the connections of a run. The connections of the run before may still be there.
fn run_name(number: u64) -> String {
    format!("run_{number}")
}

/// The value of `synchronous_commit`.
pub fn on_or_off(synchronous: bool) -> &'static str {
    if synchronous { "on" } else { "off" }
}

/// The user and system time that these processes have used so far.
fn cpu_time(clocks: &[ClockId]) -> Result<Duration> {
    clocks.iter().map(|clock| Ok(Duration::from(clock.now()?))).sum()
}

/// Waits until pgbench ends, and returns its output. `stderr` is the part of its standard error that was read
/// before.
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

/// The number in `number of transactions actually processed: 12345`, which `/12345` may follow.
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
