//! Counts what transactions cost the backends that serve them: instructions and cycles at user level, and CPU time.
//!
//! Times and cycles depend on what else the machine does. The number of instructions at user level does not, so a change of
//! 2 % is seen, also where neighbours are noisy. [`Perf`] counts them where the processor lets it, else [`Valgrind`] does,
//! and without either (Debian's packages are `linux-perf` and `valgrind`) there is only CPU time. The page says which.
//!
//! The same load is run twice, with few and with many transactions. The difference leaves out what a backend does once:
//! starting, loading the library, planning, ending. Before its first transaction each client sleeps, so that `perf` has
//! attached before the work begins, and all backends of the load are there at one moment.

use std::cell::Cell;
use std::fs;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use idempotence_demo::server::{SUPERUSER, Server};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::lab::{DATABASE, KEYS_PER_RUN};
use crate::machine;
use crate::perf::{Counts, Perf};
use crate::script::CONSTANTS;
use crate::valgrind::Valgrind;

/// What a transaction, or a key of it, costs.
#[derive(Clone, Copy)]
pub struct Cost {
    /// Instructions at user level; `None` where they were not counted.
    pub instructions: Option<f64>,
    /// Cycles at user level; `None` without `perf`.
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

/// By what instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Means {
    Perf,
    Valgrind,
    /// Not at all: CPU time takes their place.
    CpuTime,
}

impl Means {
    /// The best that there is here.
    fn here() -> Means {
        if Perf::can_count() {
            Means::Perf
        } else if Valgrind::can_count() {
            Means::Valgrind
        } else {
            Means::CpuTime
        }
    }
}

/// Counts on servers of one machine.
pub struct Counter {
    means: Means,
    /// How much longer than usual clients sleep before their first transaction.
    patience: Cell<u32>,
    /// The number of runs so far.
    runs: Cell<u64>,
}

/// How long clients sleep before their first transaction, and how long at least for each of them.
const SLEEP: Duration = Duration::from_millis(400);
const SLEEP_FOR_A_CLIENT: Duration = Duration::from_millis(4);

/// The same under valgrind, where a backend takes longer to start.
const SLEEP_UNDER_VALGRIND: Duration = Duration::from_secs(2);
const SLEEP_FOR_A_CLIENT_UNDER_VALGRIND: Duration = Duration::from_millis(500);

/// Valgrind takes some twenty times as long, and counts the same in a fifth of the transactions.
const FEWER_UNDER_VALGRIND: u64 = 5;

/// How long pgbench may take to connect all its clients.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// So many runs have keys that ascend. Then they begin anew; a random part tells them apart.
const RUNS_MAX: u64 = 400;

/// What a run has cost.
#[derive(Clone, Copy)]
struct Total {
    counts: Option<Counts>,
    cpu: Duration,
    wall: Duration,
    memory_kb: f64,
}

impl Total {
    /// The cost of each of the transactions that a longer run has more.
    fn each_of(self, longer: Total, transactions: u64) -> Cost {
        let transactions = transactions as f64;
        let each = |count: fn(Counts) -> f64| Some((count(longer.counts?) - count(self.counts?)) / transactions);
        Cost {
            instructions: each(|counts| counts.instructions),
            cycles: each(|counts| counts.cycles),
            cpu_us: longer.cpu.saturating_sub(self.cpu).as_secs_f64() * 1e6 / transactions,
            rate: transactions / longer.wall.saturating_sub(self.wall).as_secs_f64(),
            memory_kb: longer.memory_kb,
        }
    }
}

impl Counter {
    /// Counts by the best means that there is here.
    pub fn new() -> Counter {
        let means = Means::here();
        match means {
            Means::Perf => {}
            Means::Valgrind => {
                eprintln!("perf cannot count here (Debian's linux-perf); valgrind counts, which takes longer")
            }
            Means::CpuTime => eprintln!("neither perf nor valgrind can count here; only CPU time is measured"),
        }
        Counter::by(means)
    }

    /// Counts where more backends are needed than valgrind can start: by `perf`, or CPU time.
    pub fn without_valgrind() -> Counter {
        Counter::by(if Perf::can_count() { Means::Perf } else { Means::CpuTime })
    }

    fn by(means: Means) -> Counter {
        Counter { means, patience: Cell::new(1), runs: Cell::new(0) }
    }

    /// By what it counts.
    pub fn means(&self) -> Means {
        self.means
    }

    /// Begins with the first keys again, for a fresh database.
    pub fn begin_anew(&self) {
        self.runs.set(0);
    }

    /// The cost of a transaction in each of some rounds. Valgrind counts once for all, since it would hardly count anything
    /// else.
    pub fn costs(&self, server: &Server, load: &Load<'_>, rounds: usize) -> Result<Vec<Cost>> {
        let mut costs = (0..rounds).map(|_| self.times(server, load)).collect::<Result<Vec<Cost>>>()?;
        if self.means == Means::Valgrind {
            let valgrind = Valgrind::start(&[server])?;
            let instructions = self.instructions(&valgrind, server, load)?;
            valgrind.end()?;
            costs.iter_mut().for_each(|cost| cost.instructions = Some(instructions));
        }
        Ok(costs)
    }

    /// The cost of a transaction of a server that runs as always: all but what only valgrind can count here.
    pub fn times(&self, server: &Server, load: &Load<'_>) -> Result<Cost> {
        if load.pooler.is_some() {
            // So that the pooler has its connections to the server.
            self.total(server, load, load.few)?;
        }
        let few = self.total(server, load, load.few)?;
        let many = self.total(server, load, load.few + load.more)?;
        Ok(few.each_of(many, load.more * u64::from(load.clients)))
    }

    /// The instructions of a transaction, as valgrind counts them.
    pub fn instructions(&self, valgrind: &Valgrind<'_>, server: &Server, load: &Load<'_>) -> Result<f64> {
        let (few, more) = (load.few.div_ceil(FEWER_UNDER_VALGRIND), load.more.div_ceil(FEWER_UNDER_VALGRIND));
        let least = self.total_instructions(valgrind, server, load, few)?;
        let most = self.total_instructions(valgrind, server, load, few + more)?;
        Ok((most - least) / (more * u64::from(load.clients)) as f64)
    }

    /// Runs a load and measures the backends that serve it.
    fn total(&self, server: &Server, load: &Load<'_>, transactions: u64) -> Result<Total> {
        loop {
            // The sleep has to last until all clients are asleep and perf has attached.
            let sleep = SLEEP.max(SLEEP_FOR_A_CLIENT * load.clients) * self.patience.get();
            let start = Instant::now();
            let mut pgbench = self.start(server, load, transactions, sleep)?;
            let (pids, asleep_since) = backends(server, load, &mut pgbench)?;
            let attaches = self.means == Means::Perf && !pids.is_empty();
            let perf = attaches.then(|| Perf::attach(&pids)).transpose()?;
            let in_time = asleep_since.elapsed() < sleep;
            let (cpu, memory_kb, output) = watch(pgbench, &pids)?;
            let wall = start.elapsed();
            // If it came too late, it may have met no process any more.
            let counts = perf.filter(|_| in_time).map(Perf::finish).transpose()?;
            check(&output, load)?;
            if in_time {
                return Ok(Total { counts, cpu, wall: wall.saturating_sub(sleep), memory_kb });
            }
            // The machine was slow.
            self.patience.set(self.patience.get() * 2);
        }
    }

    /// Runs a load, and counts from the start to the end of the backends that serve it.
    fn total_instructions(
        &self,
        valgrind: &Valgrind<'_>,
        server: &Server,
        load: &Load<'_>,
        transactions: u64,
    ) -> Result<f64> {
        loop {
            let sleep = (SLEEP_UNDER_VALGRIND + SLEEP_FOR_A_CLIENT_UNDER_VALGRIND * load.clients) * self.patience.get();
            let mut pgbench = self.start(server, load, transactions, sleep)?;
            let (pids, _) = backends(server, load, &mut pgbench)?;
            check(&pgbench.wait_with_output()?, load)?;
            if pids.len() == load.clients as usize {
                return valgrind.instructions(server, &pids);
            }
            // Some had gone before the others came.
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

/// Fails if pgbench did.
fn check(output: &Output, load: &Load<'_>) -> Result<()> {
    if !output.status.success() {
        bail!("pgbench failed:\n{}\n{}", String::from_utf8_lossy(&output.stderr), load.script);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backend_does_once_is_left_out() {
        let total = |instructions, seconds| Total {
            counts: Some(Counts { instructions, cycles: 0.0 }),
            cpu: Duration::ZERO,
            wall: Duration::from_secs(seconds),
            memory_kb: 0.0,
        };
        let cost = total(1_000.0, 3).each_of(total(21_000.0, 5), 100);
        assert_eq!(cost.instructions, Some(200.0));
        assert_eq!(cost.rate, 50.0);
    }
}
