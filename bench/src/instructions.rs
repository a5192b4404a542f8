//! The row about instructions: what each way costs the processor, counted at user level in the one backend that serves it.
//!
//! Times and cycles depend on what else the machine does. The number of instructions at user level does not, so a change of
//! 2 % is seen, also where neighbours are noisy. `perf stat` counts, where it can be had (`linux-perf` on Debian). Without
//! it there is only CPU time, and the page says so.
//!
//! Each way is run twice, with a few transactions and with many. The difference leaves out what a backend does once:
//! starting, loading the library, planning. The first transaction only sleeps, so that `perf` has attached before the work
//! begins.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use idempotence_demo::server::{SUPERUSER, Server};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

use crate::finding::{Finding, Goal};
use crate::guarded::{CEILING, FLOOR, HAND_WRITTEN, IDEMPOTENCE, guarded};
use crate::lab::{DATABASE, KEYS_PER_RUN, Lab};
use crate::plan::Plan;
use crate::row::{OFF_4, Row, Variant};
use crate::script::{CONSTANTS, COUNT_LEDGER, COUNT_OUTCOMES, KEY, Keygen, transaction};
use crate::spread::Spread;

/// The id of the row.
pub const INSTRUCTIONS: &str = "instructions";

/// The number of transactions of the short run.
const FEW: u64 = 500;

/// How long the first transaction sleeps. `perf` attaches within a fraction of it.
const SLEEP: Duration = Duration::from_millis(1200);

pub fn row() -> Row {
    Row {
        id: INSTRUCTIONS,
        title: "Instructions",
        text: "One client, prepared statements. What is counted is what its backend executes at user level, for each transaction: \
instructions, and the cycles that they took. The number of instructions hardly depends on what else the machine does. The \
transactions are those of the sections about requests and replays. *Three columns* is `SELECT status, replayed, response FROM \
idem_begin(…)`, as the examples have it.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// What a transaction costs a backend.
#[derive(Clone, Copy)]
pub struct Cost {
    /// Instructions at user level; `None` without `perf`.
    pub instructions: Option<f64>,
    /// Cycles at user level.
    pub cycles: Option<f64>,
    /// User and system time.
    pub cpu_us: f64,
}

impl Cost {
    /// What ratios are made of.
    fn number(self) -> f64 {
        self.instructions.unwrap_or(self.cpu_us)
    }
}

/// The costs of each way, one for each round.
pub struct Measured {
    pub name: &'static str,
    pub costs: Vec<Cost>,
}

/// Where a way is measured.
#[derive(Clone, Copy, PartialEq)]
enum On {
    /// The server of the lab, with its kept outcomes. The library is not preloaded.
    Lab,
    /// A server of its own that preloads the library, and nothing kept.
    Preloaded,
    /// The same without preloading.
    Plain,
}

/// The ways, by what the findings call them.
const CLAIM: &str = "idem_claim, record";
const BEGIN_THREE: &str = "idem_begin (three columns), record";
const KEY_SELECT: &str = "SELECT by primary key";
const REPLAY_THREE: &str = "replay, three columns";
const CALLED: &str = "a function called";
const RUN: &str = "the same by idem_run";
const PLAIN: &str = "idem_begin, record; not preloaded, nothing kept";
const PRELOADED: &str = "idem_begin, record; preloaded, nothing kept";

fn ways() -> Vec<(On, Variant)> {
    let mut four = guarded(KEY, Keygen::Ascending).into_iter();
    let record = format!("SELECT idem_record('payments', {KEY}, :response)");
    let columns = format!("SELECT status, replayed, response FROM idem_begin('payments', {KEY}, :payload)");
    let keyed = |name, first: &str| Variant::new(name, COUNT_OUTCOMES, transaction(first, &record), Keygen::Ascending);
    let read = |name, sql: String| Variant::new(name, COUNT_OUTCOMES, sql + ";\n", Keygen::Kept);
    let numbered = |name, first: &str| {
        let record = "SELECT idem_record(:session, :k::bigint, :response)";
        Variant::new(name, COUNT_OUTCOMES, transaction(first, record), Keygen::Numbered)
    };
    let args = "jsonb_build_object('account', :account::integer, 'amount', :amount::integer)";
    let call = |name, sql: String| Variant::new(name, COUNT_LEDGER, sql + ";\n", Keygen::Ascending);
    let mut ways: Vec<Variant> = four.by_ref().collect();
    ways[IDEMPOTENCE].name = "idem_begin (*), record";
    ways.extend([
        keyed(BEGIN_THREE, &columns),
        keyed("idem_begin (scalar), record", &format!("SELECT (idem_begin('payments', {KEY}, :payload)).status")),
        keyed(CLAIM, &format!("SELECT idem_claim('payments', {KEY}, :payload)")),
        numbered(
            "numbered: idem_begin (three columns), record",
            "SELECT status, replayed, response FROM idem_begin(:session, :k::bigint, :payload)",
        ),
        numbered("numbered: idem_claim, record", "SELECT idem_claim(:session, :k::bigint, :payload)"),
        read("trivial SELECT", format!("SELECT {KEY}")),
        read(KEY_SELECT, format!("SELECT response FROM request WHERE scope = 'payments' AND key = {KEY}")),
        read("replay, *", format!("SELECT * FROM idem_begin('payments', {KEY}, :payload)")),
        read(REPLAY_THREE, format!("SELECT status, replayed, response FROM idem_begin('payments', {KEY}, :payload)")),
        read("replay, scalar", format!("SELECT idem_begin('payments', {KEY}, :payload)")),
        read(
            "idem_lookup, three columns",
            format!("SELECT status, replayed, response FROM idem_lookup('payments', {KEY})"),
        ),
        call(CALLED, format!("SELECT pay({args})")),
        call(
            RUN,
            format!("SELECT status, replayed, response FROM idem_run('payments', {KEY}, 'SELECT pay($1)', {args})"),
        ),
    ]);
    let elsewhere = [(On::Plain, keyed(PLAIN, &columns)), (On::Preloaded, keyed(PRELOADED, &columns))];
    ways.into_iter().map(|variant| (On::Lab, variant)).chain(elsewhere).collect()
}

/// The costs of a way, by its name.
fn of<'a>(measured: &'a [Measured], name: &str) -> &'a [Cost] {
    measured.iter().find(|way| way.name == name).map_or(&[], |way| &way.costs)
}

/// What a way costs beyond the ceiling; `None` for ways that do not do the ceiling's work.
pub fn beyond_ceiling(measured: &[Measured], place: usize) -> Option<f64> {
    let transactions = measured.iter().position(|way| way.name == "trivial SELECT")?;
    let median = |costs: &[Cost]| Spread::of(costs.iter().map(|cost| cost.number())).median;
    (place < transactions).then(|| median(&measured[place].costs) - median(&measured[CEILING].costs))
}

/// Measures every way in rounds.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Measured>> {
    let ways = ways();
    let rounds = if plan.quick { 1 } else { plan.rounds };
    let many = if plan.quick { 3_000 } else { 10_000 };
    let perf = Perf::find();
    let server = |libraries| -> Result<Server> {
        let server = lab.another_server("shared_preload_libraries", libraries)?;
        server.psql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        server.psql(DATABASE, include_str!("../sql/schema.sql"))?;
        Ok(server)
    };
    let (plain, preloaded) = (server("")?, server("idempotence")?);
    let mut measured: Vec<Measured> =
        ways.iter().map(|(_, way)| Measured { name: way.name, costs: Vec::new() }).collect();
    for round in 0..rounds {
        eprintln!("{INSTRUCTIONS}: round {} of {rounds}", round + 1);
        lab.fresh_copy()?;
        for (place, (on, way)) in ways.iter().enumerate() {
            let server = match on {
                On::Lab => lab.server(),
                On::Plain => &plain,
                On::Preloaded => &preloaded,
            };
            let number = (round * ways.len() + place) as u64;
            let few = count(server, lab.kept(), &perf, way, FEW, 2 * number)?;
            let more = count(server, lab.kept(), &perf, way, FEW + many, 2 * number + 1)?;
            measured[place].costs.push(few.each_of(more, many));
        }
    }
    Ok(measured)
}

/// The findings: the ratios that have goals.
pub fn findings(measured: &[Measured]) -> Vec<Finding> {
    let each = |name: &str| of(measured, name).iter().map(|cost| cost.number()).collect::<Vec<_>>();
    let ratio = |numerator: &str, denominator: &str, base: Option<(&str, &str)>| {
        let (above, below) = (each(numerator), each(denominator));
        let (base_above, base_below) = match base {
            Some((above, below)) => (each(above), each(below)),
            None => (vec![0.0; above.len()], vec![0.0; below.len()]),
        };
        Spread::of(
            (0..above.len()).map(|round| (above[round] - base_above[round]) / (below[round] - base_below[round])),
        )
    };
    let ceiling = measured[CEILING].name;
    let (hand_written, beyond) = (measured[HAND_WRITTEN].name, Some((ceiling, ceiling)));
    let finding = |what: &str, ratio, goal| Finding::new(what, ratio, 3).with_goal(Goal::AtMost(goal));
    vec![
        finding(
            "begin (three columns), record / hand-written, beyond the ceiling",
            ratio(BEGIN_THREE, hand_written, beyond),
            0.55,
        ),
        finding("claim, record / hand-written, beyond the ceiling", ratio(CLAIM, hand_written, beyond), 0.40),
        Finding::new("floor / hand-written, beyond the ceiling", ratio(measured[FLOOR].name, hand_written, beyond), 3),
        finding("replay (three columns) / SELECT by primary key", ratio(REPLAY_THREE, KEY_SELECT, None), 1.0),
        finding(
            "idem_run beyond the function called / begin, record beyond the ceiling",
            ratio(RUN, BEGIN_THREE, Some((CALLED, ceiling))),
            1.2,
        ),
        finding("begin, record: preloaded / not preloaded", ratio(PRELOADED, PLAIN, None), 1.02),
    ]
}

/// What a run has cost.
#[derive(Clone, Copy)]
struct Total {
    instructions: Option<f64>,
    cycles: Option<f64>,
    cpu: Duration,
}

impl Total {
    /// The cost of each of the transactions that a longer run has more.
    fn each_of(self, longer: Total, transactions: u64) -> Cost {
        let each = |few: Option<f64>, many: Option<f64>| Some((many? - few?) / transactions as f64);
        Cost {
            instructions: each(self.instructions, longer.instructions),
            cycles: each(self.cycles, longer.cycles),
            cpu_us: longer.cpu.saturating_sub(self.cpu).as_secs_f64() * 1e6 / transactions as f64,
        }
    }
}

/// Runs a way and counts in its backend.
fn count(server: &Server, kept: u64, perf: &Perf, way: &Variant, transactions: u64, number: u64) -> Result<Total> {
    let script = server.home().join("instructions.sql");
    let first = format!("SELECT pg_sleep({});", SLEEP.as_secs_f64());
    fs::write(&script, format!("\\if :begun\n{}\\else\n{first}\n\\set begun 1\n\\endif\n", way.script()))?;
    let name = format!("instructions_{number}");
    let mut pgbench = server.program("pgbench");
    pgbench.args(["-n", "-M", "prepared", "-c", "1", "-t", &(transactions + 1).to_string()]);
    for (name, value) in CONSTANTS {
        pgbench.arg("-D").arg(format!("{name}={value}"));
    }
    // Keys that no other run has.
    pgbench.args(["-D", "begun=0", "-D", "k=0", "-D", "session=none"]);
    pgbench.args(["-D", &format!("n={}", number * KEYS_PER_RUN), "-D", &format!("kept={kept}")]);
    pgbench.arg("-f").arg(&script);
    let options = "options='-c synchronous_commit=off'";
    pgbench.arg(format!("{} application_name={name} {options}", server.connect_string(DATABASE, SUPERUSER)));
    let pgbench = pgbench.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;

    let pid = backend(server, &name)?;
    let clock = clock_getcpuclockid(Pid::from_raw(pid))?;
    let counting = perf.attach(pid)?;
    let mut cpu = Duration::ZERO;
    // The backend ends with its client, and its clock with it. The last moment that can be read is a little earlier.
    while let Ok(now) = clock.now() {
        cpu = Duration::from(now);
        thread::sleep(Duration::from_millis(2));
    }
    let output = pgbench.wait_with_output()?;
    if !output.status.success() {
        bail!("{}: pgbench failed:\n{}", way.name, String::from_utf8_lossy(&output.stderr));
    }
    let (instructions, cycles) = counting.read()?;
    Ok(Total { instructions, cycles, cpu })
}

/// The process that serves a run.
fn backend(server: &Server, name: &str) -> Result<i32> {
    let start = Instant::now();
    let query =
        format!("SELECT pid FROM pg_stat_activity WHERE application_name = '{name}' AND query LIKE '%pg_sleep%'");
    while start.elapsed() < SLEEP / 2 {
        if let Ok(pid) = server.psql("postgres", &query)?.trim().parse() {
            return Ok(pid);
        }
    }
    bail!("pgbench did not connect in time")
}

/// Whether `perf` can count here.
struct Perf {
    can_count: bool,
}

/// The events, in the order in which they are asked for.
const EVENTS: &str = "instructions:u,cycles:u";

impl Perf {
    /// Tries it.
    fn find() -> Perf {
        let tried = Command::new("perf").args(["stat", "-x,", "-e", EVENTS, "true"]).output();
        let can_count = tried.is_ok_and(|output| counts(&String::from_utf8_lossy(&output.stderr)).is_some());
        if !can_count {
            eprintln!(
                "{INSTRUCTIONS}: perf cannot count here (Debian's package is linux-perf); only CPU time is measured"
            );
        }
        Perf { can_count }
    }

    /// Counts in a process until it ends.
    fn attach(&self, pid: i32) -> Result<Counting> {
        if !self.can_count {
            return Ok(Counting(None));
        }
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", EVENTS, "-p", &pid.to_string()]);
        let perf = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        // The process is still asleep when perf has opened its counters.
        thread::sleep(SLEEP / 4);
        ensure!(Path::new(&format!("/proc/{pid}")).exists(), "the backend has ended before it was counted");
        Ok(Counting(Some(perf)))
    }
}

/// `perf` at work.
struct Counting(Option<std::process::Child>);

impl Counting {
    /// The counts, once the process has ended.
    fn read(self) -> Result<(Option<f64>, Option<f64>)> {
        let Some(perf) = self.0 else { return Ok((None, None)) };
        let output = perf.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let (instructions, cycles) = counts(&text).with_context(|| format!("perf says:\n{text}"))?;
        Ok((Some(instructions), Some(cycles)))
    }
}

/// The two counts in what `perf stat -x,` prints: a line for each event, which begins with its count.
fn counts(text: &str) -> Option<(f64, f64)> {
    let mut counts = text.lines().filter_map(|line| {
        let (count, rest) = line.split_once(',')?;
        rest.contains(":u,").then(|| count.parse::<f64>().ok())?
    });
    Some((counts.next()?, counts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_prints_is_read() {
        let text = "123456,,instructions:u,1000,100.00,1.5,insn per cycle\n7890,,cycles:u,1000,100.00,,\n";
        assert_eq!(counts(text), Some((123_456.0, 7_890.0)));
        assert_eq!(counts("<not supported>,,instructions:u,0,100.00,,\n<not supported>,,cycles:u,0,100.00,,\n"), None);
        assert_eq!(counts("perf: command failed\n"), None);
    }

    #[test]
    fn what_a_backend_does_once_is_left_out() {
        let total = |instructions| Total { instructions: Some(instructions), cycles: None, cpu: Duration::ZERO };
        let cost = total(1_000.0).each_of(total(21_000.0), 100);
        assert_eq!(cost.instructions, Some(200.0));
        assert_eq!(cost.cycles, None);
    }
}
