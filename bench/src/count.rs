//! Counts what transactions cost the backends that serve them: instructions and cycles at user level by `perf stat`, and
//! CPU time.
//!
//! Times and cycles depend on what else the machine does. The number of instructions at user level does not, so a change of
//! 2 % is seen, also where neighbours are noisy. Without `perf` (`linux-perf` on Debian) there is only CPU time, and the
//! page says so.
//!
//! The same load is run twice, with few and with many transactions. The difference leaves out what a backend does once:
//! starting, loading the library, planning, ending. Before its first transaction each client sleeps, so that `perf` has
//! attached before the work begins.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idempotence_demo::server::{SUPERUSER, Server};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::lab::{DATABASE, KEYS_PER_RUN};
use crate::machine;
use crate::script::CONSTANTS;

/// What a transaction, or a key of it, costs.
#[derive(Clone, Copy)]
pub struct Cost {
    /// Instructions at user level; `None` without `perf`.
    pub instructions: Option<f64>,
    /// Cycles at user level.
    pub cycles: Option<f64>,
    /// User and system time.
    pub cpu_us: f64,
    /// How many were done a second.
    pub rate: f64,
    /// The private memory of one of the backends, at most.
    pub memory_kb: f64,
}

impl Cost {
    /// What ratios are made of.
    pub fn number(self) -> f64 {
        self.instructions.unwrap_or(self.cpu_us)
    }

    /// The cost of each of the keys of a transaction.
    pub fn of_each_in(self, keys: u32) -> Cost {
        let keys = f64::from(keys);
        let each = |count: Option<f64>| Some(count? / keys);
        Cost {
            instructions: each(self.instructions),
            cycles: each(self.cycles),
            cpu_us: self.cpu_us / keys,
            rate: self.rate * keys,
            ..self
        }
    }
}

/// A load: what each client of pgbench sends, and how often.
pub struct Load<'a> {
    /// The script, which generates its own keys.
    pub script: &'a str,
    /// What each client does before its first transaction, while nothing is counted.
    pub first: &'a str,
    pub clients: u32,
    /// The transactions of each client in the short run.
    pub few: u64,
    /// The number of transactions that the long run has more.
    pub more: u64,
    /// The variables of the script besides those that all have.
    pub variables: &'a [(&'static str, u64)],
    /// What to connect to instead of the server.
    pub pooler: Option<&'a str>,
    /// How many transactions each client has sent so far: the variable `m`, which scripts count on from.
    pub sent: Cell<u64>,
}

impl<'a> Load<'a> {
    /// A load of one client.
    pub fn new(script: &'a str, few: u64, more: u64) -> Load<'a> {
        Load { script, first: "", clients: 1, few, more, variables: &[], pooler: None, sent: Cell::new(0) }
    }
}

/// Counts on servers of one machine.
pub struct Counter {
    can_count: bool,
    /// How much longer than usual clients sleep before their first transaction.
    patience: Cell<u32>,
    /// The number of runs so far.
    runs: Cell<u64>,
}

/// The events, in the order in which they are asked for.
const EVENTS: [&str; 2] = ["instructions:u", "cycles:u"];

/// How long clients sleep before their first transaction, and how long at least for each of them.
const SLEEP: Duration = Duration::from_millis(400);
const SLEEP_FOR_A_CLIENT: Duration = Duration::from_millis(4);

/// How long pgbench may take to connect all its clients.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// So many runs have keys that ascend. Then they begin anew; a random part tells them apart.
const RUNS_MAX: u64 = 400;

/// What a run has cost.
#[derive(Clone, Copy)]
struct Total {
    counts: Option<[f64; 2]>,
    cpu: Duration,
    wall: Duration,
    memory_kb: f64,
}

impl Total {
    /// The cost of each of the transactions that a longer run has more.
    fn each_of(self, longer: Total, transactions: u64) -> Cost {
        let transactions = transactions as f64;
        let each = |event: usize| Some((longer.counts?[event] - self.counts?[event]) / transactions);
        Cost {
            instructions: each(0),
            cycles: each(1),
            cpu_us: longer.cpu.saturating_sub(self.cpu).as_secs_f64() * 1e6 / transactions,
            rate: transactions / longer.wall.saturating_sub(self.wall).as_secs_f64(),
            memory_kb: longer.memory_kb,
        }
    }
}

impl Counter {
    /// Tries whether `perf` can count here.
    pub fn new() -> Counter {
        let tried = Command::new("perf").args(["stat", "-x,", "-e", &EVENTS.join(","), "true"]).output();
        let can_count = tried.is_ok_and(|output| counts(&String::from_utf8_lossy(&output.stderr)).is_some());
        if !can_count {
            eprintln!("perf cannot count here (Debian's package is linux-perf); only CPU time is measured");
        }
        Counter { can_count, patience: Cell::new(1), runs: Cell::new(0) }
    }

    /// Begins with the first keys again, for a fresh database.
    pub fn begin_anew(&self) {
        self.runs.set(0);
    }

    /// The cost of a transaction.
    pub fn cost(&self, server: &Server, load: &Load<'_>) -> Result<Cost> {
        if load.pooler.is_some() {
            // So that the pooler has its connections to the server.
            self.total(server, load, load.few)?;
        }
        let few = self.total(server, load, load.few)?;
        let many = self.total(server, load, load.few + load.more)?;
        Ok(few.each_of(many, load.more * u64::from(load.clients)))
    }

    /// Runs a load and counts in the backends that serve it.
    fn total(&self, server: &Server, load: &Load<'_>, transactions: u64) -> Result<Total> {
        loop {
            // The sleep has to last until all clients are asleep and perf has attached.
            let sleep = SLEEP.max(SLEEP_FOR_A_CLIENT * load.clients) * self.patience.get();
            let start = Instant::now();
            let mut pgbench = self.start(server, load, transactions, sleep)?;
            let (pids, asleep_since) = backends(server, load, &mut pgbench)?;
            let perf = if self.can_count && !pids.is_empty() { Some(attach(&pids)?) } else { None };
            let in_time = asleep_since.elapsed() < sleep;
            let (cpu, memory_kb, output) = watch(pgbench, &pids)?;
            let wall = start.elapsed();
            // If it came too late, it may have met no process any more.
            let counts = perf.filter(|_| in_time).map(finish_counting).transpose()?;
            if !output.status.success() {
                bail!("pgbench failed:\n{}\n{}", String::from_utf8_lossy(&output.stderr), load.script);
            }
            if in_time {
                return Ok(Total { counts, cpu, wall: wall.saturating_sub(sleep), memory_kb });
            }
            // The machine was slow.
            self.patience.set(self.patience.get() * 2);
        }
    }

    fn start(&self, server: &Server, load: &Load<'_>, transactions: u64, sleep: Duration) -> Result<Child> {
        let path = server.home().join("counted.sql");
        let (script, first, sleep_ms) = (load.script, load.first, sleep.as_millis());
        // Behind a pooler the name would be that of a connection which others use as well.
        let name = if load.pooler.is_some() { "" } else { "SET application_name = counted;\n" };
        let begin = format!("{name}\\sleep {sleep_ms} ms\n{first}\\set begun 1\n");
        fs::write(&path, format!("\\if :begun\n{script}\\else\n{begin}\\endif\n"))?;
        let number = self.runs.get();
        self.runs.set((number + 1) % RUNS_MAX);
        let sent = load.sent.replace(load.sent.get() + transactions);
        let mut pgbench = server.program("pgbench");
        // A pooler in transaction mode may know nothing of prepared statements.
        pgbench.args(["-n", "-M", if load.pooler.is_some() { "extended" } else { "prepared" }]);
        pgbench.args(["-c", &load.clients.to_string(), "-j", &machine::cores().min(load.clients as usize).to_string()]);
        pgbench.args(["-t", &(transactions + 1).to_string(), "-D", "begun=0", "-D", "k=0", "-D", "session=none"]);
        for (name, value) in CONSTANTS {
            pgbench.arg("-D").arg(format!("{name}={value}"));
        }
        for (name, value) in [("n", number * KEYS_PER_RUN), ("m", sent)].iter().chain(load.variables) {
            pgbench.arg("-D").arg(format!("{name}={value}"));
        }
        pgbench.arg("-f").arg(&path).arg(match load.pooler {
            Some(pooler) => pooler.to_owned(),
            None => format!("{} options='-c synchronous_commit=off'", server.connect_string(DATABASE, SUPERUSER)),
        });
        pgbench.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        pgbench.spawn().context("cannot run pgbench, which comes with the server")
    }
}

/// The processes that serve a run, and a moment before which no client was asleep. If the run has ended, those that were
/// seen last.
fn backends(server: &Server, load: &Load<'_>, pgbench: &mut Child) -> Result<(Vec<i32>, Instant)> {
    let (start, mut asleep_since) = (Instant::now(), Instant::now());
    let name = if load.pooler.is_some() { "" } else { "AND application_name = 'counted'" };
    let query = format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = '{DATABASE}' AND backend_type = 'client backend' {name}"
    );
    while start.elapsed() < CONNECT_LIMIT {
        let asked_at = Instant::now();
        let pids: Vec<i32> = server.psql("postgres", &query)?.lines().filter_map(|pid| pid.parse().ok()).collect();
        let are_all = pids.len() == load.clients as usize || load.pooler.is_some() && !pids.is_empty();
        if are_all || pgbench.try_wait()?.is_some() {
            return Ok((pids, asleep_since));
        }
        if pids.is_empty() {
            asleep_since = asked_at;
        }
    }
    bail!("pgbench did not connect in time")
}

/// Starts counting in processes, until they or the counting end.
fn attach(pids: &[i32]) -> Result<Child> {
    let list = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-e", &EVENTS.join(","), "-p", &list]);
    let mut perf = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    // It counts as soon as it has opened each event for each process.
    let opened = format!("/proc/{}/fd", perf.id());
    while count_of_events(Path::new(&opened)) < pids.len() * EVENTS.len() && perf.try_wait()?.is_none() {
        thread::sleep(Duration::from_millis(2));
    }
    Ok(perf)
}

/// The number of events that a process has open.
fn count_of_events(opened: &Path) -> usize {
    let Ok(files) = fs::read_dir(opened) else { return 0 };
    let is_event = |link: &PathBuf| link.as_os_str() == "anon_inode:[perf_event]";
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).filter(is_event).count()
}

/// Waits for the end of a run. Gives the CPU time that the backends have taken until then, the private memory of the
/// first of them, and what pgbench says.
fn watch(mut pgbench: Child, pids: &[i32]) -> Result<(Duration, f64, Output)> {
    let clocks: Vec<ClockId> = pids.iter().filter_map(|pid| clock_getcpuclockid(Pid::from_raw(*pid)).ok()).collect();
    let mut times = vec![Duration::ZERO; clocks.len()];
    let mut memory_kb: f64 = 0.0;
    let pause = Duration::from_millis(2).max(Duration::from_micros(50) * clocks.len() as u32);
    // A backend ends with its client, and its clock with it. The last moment that can be read is a little earlier.
    while pgbench.try_wait()?.is_none() {
        for (time, clock) in times.iter_mut().zip(&clocks) {
            if let Ok(now) = clock.now() {
                *time = Duration::from(now);
            }
        }
        let memory_now_kb = pids.first().and_then(|pid| machine::private_memory_kb(*pid));
        memory_kb = memory_kb.max(memory_now_kb.unwrap_or(0.0));
        thread::sleep(pause);
    }
    Ok((times.iter().sum(), memory_kb, pgbench.wait_with_output()?))
}

/// The counts of an attached `perf`.
fn finish_counting(perf: Child) -> Result<[f64; 2]> {
    // The processes may live on, behind a pooler.
    let _ = kill(Pid::from_raw(i32::try_from(perf.id())?), Signal::SIGINT);
    let output = perf.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    counts(&text).with_context(|| format!("perf says:\n{text}"))
}

/// The counts in what `perf stat -x,` prints: a line for each event, which begins with its count.
fn counts(text: &str) -> Option<[f64; 2]> {
    let mut counts = text.lines().filter_map(|line| {
        let (count, rest) = line.split_once(',')?;
        rest.contains(":u,").then(|| count.parse::<f64>().ok())?
    });
    Some([counts.next()?, counts.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_prints_is_read() {
        let text = "123456,,instructions:u,1000,100.00,1.5,insn per cycle\n7890,,cycles:u,1000,100.00,,\n";
        assert_eq!(counts(text), Some([123_456.0, 7_890.0]));
        assert_eq!(counts("<not supported>,,instructions:u,0,100.00,,\n<not supported>,,cycles:u,0,100.00,,\n"), None);
        assert_eq!(counts("perf: command failed\n"), None);
    }

    #[test]
    fn what_a_backend_does_once_is_left_out() {
        let total = |instructions, seconds| Total {
            counts: Some([instructions, 0.0]),
            cpu: Duration::ZERO,
            wall: Duration::from_secs(seconds),
            memory_kb: 0.0,
        };
        let cost = total(1_000.0, 3).each_of(total(21_000.0, 5), 100);
        assert_eq!(cost.instructions, Some(200.0));
        assert_eq!(cost.rate, 50.0);
    }
}
