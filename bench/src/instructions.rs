//! The row about instructions: what each way costs the processor, counted at user level in the one backend that serves it.

mod ways;

use anyhow::Result;
use idempotence_demo::server::Server;

use crate::count::{Counter, Load, Means};
use crate::finding::{Finding, Goal};
use crate::lab::{DATABASE, Lab, WEAR};
use crate::plan::Plan;
use crate::row::{OFF_4, Row};
use crate::spread::Spread;
use crate::valgrind::Valgrind;
use ways::*;

/// The id of the row.
pub const INSTRUCTIONS: &str = "instructions";

/// The number of transactions of the short run.
const FEW: u64 = 500;

/// The number of transactions that a long run has more.
const MORE: u64 = 10_000;

/// The same in a quick run.
const MORE_IF_QUICK: u64 = 3_000;

/// A transaction of a thousand keys counts like so many.
const KEYS_LIKE: u64 = 100;

pub fn row() -> Row {
    Row {
        id: INSTRUCTIONS,
        title: "Instructions",
        text: "One client, prepared statements. What is counted is what its backend executes at user level, for each transaction: \
instructions and, where `perf` counts, the cycles that they took. The number of instructions hardly depends on what else the machine \
does. The transactions are those of the sections about requests, numbered requests, replays and so on. *Three columns* is \
`SELECT status, replayed, response FROM idem_begin(…)`, as the examples have it. By hand each request leaves a dead row version. So \
every round begins with a fresh copy of the database; hand-written is counted there, before others have used its table, and once more \
at the end of the round, when as many dead rows were made as there can be before autovacuum comes.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// What was counted, and by what.
pub struct Counted {
    pub means: Means,
    pub ways: Vec<Measured>,
}

/// What was counted of each way, once for each round.
pub struct Measured {
    pub name: &'static str,
    kind: Kind,
    pub counts: Vec<Count>,
}

/// What was counted of a transaction, or of a key of it.
#[derive(Clone, Copy)]
pub struct Count {
    /// Instructions, or µs of CPU time where these cannot be counted.
    pub number: f64,
    /// Cycles, where `perf` counts.
    pub cycles: Option<f64>,
}

impl Count {
    /// What falls to each of the keys of a transaction.
    fn of_each_in(self, keys: u32) -> Count {
        let keys = f64::from(keys);
        Count { number: self.number / keys, cycles: self.cycles.map(|cycles| cycles / keys) }
    }
}

impl Measured {
    /// The median of the rounds.
    pub fn median(&self) -> f64 {
        Spread::of(self.counts.iter().map(|count| count.number)).median
    }

    /// The median of the cycles, where `perf` counts.
    pub fn median_cycles(&self) -> Option<f64> {
        let cycles: Option<Vec<f64>> = self.counts.iter().map(|count| count.cycles).collect();
        Some(Spread::of(cycles?).median)
    }
}

/// The way with this name.
fn of<'a>(measured: &'a [Measured], name: &str) -> &'a Measured {
    measured.iter().find(|way| way.name == name).unwrap_or_else(|| panic!("there is no way {name}"))
}

/// What a way costs beyond the ceiling; `None` for ways that do not do the ceiling's work.
pub fn beyond_ceiling(measured: &[Measured], way: &Measured) -> Option<f64> {
    (way.kind == Kind::Transaction).then(|| way.median() - of(measured, CEILING).median())
}

/// Where the ways are measured.
struct Servers<'a> {
    lab: &'a Lab,
    preloaded: Server,
    plain: Server,
}

impl<'a> Servers<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        let server = |libraries| -> Result<Server> {
            let server = lab.another_server(&[("shared_preload_libraries", libraries)])?;
            server.psql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
            server.psql(DATABASE, include_str!("../sql/schema.sql"))?;
            server.psql(DATABASE, WEAR)?;
            Ok(server)
        };
        Ok(Self { lab, preloaded: server("idempotence")?, plain: server("")? })
    }

    fn of(&self, on: On) -> &Server {
        match on {
            On::Lab => self.lab.server(),
            On::Preloaded => &self.preloaded,
            On::Plain => &self.plain,
        }
    }

    fn all(&self) -> [&Server; 3] {
        [On::Lab, On::Preloaded, On::Plain].map(|on| self.of(on))
    }

    /// Prepares the load of a way, and measures it.
    fn with_load<T>(&self, way: &Way, more: u64, measure: impl FnOnce(&Server, &Load<'_>) -> Result<T>) -> Result<T> {
        let server = self.of(way.on);
        if !way.variant.before.is_empty() {
            server.psql(DATABASE, way.variant.before)?;
        }
        let (script, variables) = (way.variant.script(), [("kept", self.lab.kept())]);
        let like = if way.variant.keys > 1 { KEYS_LIKE } else { 1 };
        measure(server, &Load { variables: &variables, ..Load::new(&script, FEW / like, more / like) })
    }
}

/// Measures every way in rounds.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Counted> {
    let (ways, servers, counter) = (ways(lab.major()?), Servers::start(lab)?, Counter::new());
    let rounds = plan.few_rounds;
    let more = if plan.quick { MORE_IF_QUICK } else { MORE };
    let mut measured: Vec<Measured> =
        ways.iter().map(|way| Measured { name: way.variant.name, kind: way.kind, counts: Vec::new() }).collect();
    for round in 0..rounds {
        eprintln!("{INSTRUCTIONS}: round {} of {rounds}", round + 1);
        counter.begin_anew();
        lab.fresh_copy()?;
        let valgrind = match counter.means() {
            Means::Valgrind => Some(Valgrind::start(&servers.all())?),
            Means::Perf | Means::CpuTime => None,
        };
        for (way, measured) in ways.iter().zip(&mut measured) {
            let count = servers.with_load(way, more, |server, load| match &valgrind {
                Some(valgrind) => Ok(Count { number: counter.instructions(valgrind, server, load)?, cycles: None }),
                None => {
                    let cost = counter.times(server, load)?;
                    Ok(Count { number: cost.number(), cycles: cost.cycles })
                }
            })?;
            measured.counts.push(count.of_each_in(way.variant.keys));
        }
        if let Some(valgrind) = valgrind {
            valgrind.end()?;
        }
    }
    Ok(Counted { means: counter.means(), ways: measured })
}

/// The findings: ratios of numbers of instructions.
pub fn findings(measured: &[Measured]) -> Vec<Finding> {
    let each = |name: &str| of(measured, name).counts.iter().map(|count| count.number).collect::<Vec<_>>();
    let beyond = |name: &str, base: Option<&str>| {
        let base = base.map(each);
        let bases = |round: usize| base.as_ref().map_or(0.0, |base| base[round]);
        each(name).into_iter().enumerate().map(|(round, cost)| cost - bases(round)).collect::<Vec<_>>()
    };
    let ratio = |what: &str, above: (&str, Option<&str>), below: (&str, Option<&str>)| {
        let (above, below) = (beyond(above.0, above.1), beyond(below.0, below.1));
        Finding::new(what, Spread::of(above.iter().zip(&below).map(|(above, below)| above / below)), 3)
    };
    let ceiling = Some(CEILING);
    let guarded = |what: &str, way| ratio(what, (way, ceiling), (HAND_WRITTEN, ceiling));
    let plain = |what: &str, above, below| ratio(what, (above, None), (below, None));
    let mut findings = vec![
        guarded("begin (three columns), record / hand-written, beyond the ceiling", BEGIN_THREE)
            .with_goal(Goal::AtMost(0.45)),
        guarded("claim, record / hand-written, beyond the ceiling", CLAIM).with_goal(Goal::AtMost(0.343)),
        guarded("floor / hand-written, beyond the ceiling", FLOOR),
        guarded("hand-written beside dead rows / hand-written, beyond the ceiling", HAND_WRITTEN_DEAD),
        ratio(
            "numbered: begin (three columns), record / hand-written, beyond the ceiling",
            (NUMBERED_THREE, ceiling),
            (NUMBERED_HAND_WRITTEN, ceiling),
        )
        .with_goal(Goal::AtMost(0.65)),
        plain("replay (three columns) / SELECT by primary key", REPLAY_THREE, KEY_SELECT).with_goal(Goal::AtMost(1.0)),
        ratio(
            "idem_run beyond the function called / begin, record beyond the ceiling",
            (RUN, Some(CALLED)),
            (BEGIN_THREE, ceiling),
        )
        .with_goal(Goal::AtMost(1.2)),
        plain("idem_once_many / one statement by hand", ONCE_MANY, ONCE_BY_HAND),
        plain("idem_register / registering by hand", REGISTER, REGISTER_BY_HAND),
        plain("idem_heartbeat / a sign of life by hand", HEARTBEAT, SIGN_BY_HAND),
        plain("begin, record: preloaded / not preloaded", PRELOADED, PLAIN),
    ];
    if measured.iter().any(|way| way.name == DO_SELECT) {
        let by_hand = (DO_SELECT, ceiling);
        findings.extend([
            ratio(
                "begin (three columns), record / hand-written, DO SELECT, beyond the ceiling",
                (BEGIN_THREE, ceiling),
                by_hand,
            ),
            ratio("claim, record / hand-written, DO SELECT, beyond the ceiling", (CLAIM, ceiling), by_hand),
            plain("replay with payload (three columns) / DO SELECT by hand", REPLAY_PAYLOAD, REPLAY_DO_SELECT),
        ]);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarded::DO_SELECT_SINCE;

    #[test]
    fn findings_name_existing_ways() {
        let count = Count { number: 1.0, cycles: None };
        let measured = |major| -> Vec<Measured> {
            let ways = ways(major);
            ways.iter().map(|way| Measured { name: way.variant.name, kind: way.kind, counts: vec![count] }).collect()
        };
        let (before, since) = (measured(DO_SELECT_SINCE - 1), measured(DO_SELECT_SINCE));
        assert!(findings(&before).len() > 5);
        assert!(findings(&since).len() > findings(&before).len());
        let mut names: Vec<&str> = since.iter().map(|way| way.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), since.len());
    }
}
