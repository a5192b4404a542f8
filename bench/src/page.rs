//! The page: the results in words and tables. `shown.rs` has the rows that are shown in their own way.

use std::fmt::Write;

use crate::finding::{Finding, Goal};
use crate::lab::{MeasuredCell, Sample, on_or_off};
use crate::plan::Plan;
use crate::row::{Cell, Comparison, GoalRatio, Metric, Row, Variant};
use crate::script::CONSTANTS;
use crate::spread::Spread;

/// What a row adds to the page.
#[derive(Debug, Default, PartialEq)]
pub struct Part {
    /// The machine and the server that it was measured on.
    pub place: String,
    /// Its lines of the table of goals.
    pub summary: String,
    /// Its section.
    pub section: String,
}

/// A line that a later run reads, and nobody else.
pub fn mark(told: &str) -> String {
    format!("<!-- {told} -->")
}

/// What the page says besides the parts of its rows.
pub struct Page {
    /// The settings of the server.
    settings: String,
    /// The text about how everything is measured.
    method: String,
    quick: bool,
    /// What is measured, and to what extent, for a later run that goes on.
    subject: String,
}

impl Page {
    pub fn new(plan: &Plan, settings: &[(&str, &str)], subject: String) -> Self {
        let method = format!(
            "Every cell starts from a fresh copy of the same database, with {kept} outcomes under UUIDv7-like and as many under \
random keys in each table, and is measured in \
{rounds} {round_word}, or {few} where there is no goal. In a round, each variant runs once, one right after the other, and each round begins with another variant. \
Ratios are taken within a round, so that what disturbs the machine for a while disturbs both sides. The tables show the median over the \
rounds and, in brackets, the quartiles. A run is one second of warming up, then {seconds} {second_word} that count.

The load is `pgbench -M prepared` on the same machine, through a Unix socket, with at most one thread a core. It takes its share \
of the processors from the server. *CPU* is the user and system time of the backends that serve the load, divided by what they \
did. It is steadier than rates are. After each cell, the rows that the variants left are counted and compared with what pgbench \
says it did.

Keys are text of 36 characters. Unless said otherwise they are UUIDv7-like: those of each client ascend in time. Each variant puts \
its key together in SQL from the same numbers, even if it does nothing with the key, so that this costs the same everywhere.",
            kept = plan.kept,
            rounds = plan.rounds,
            few = plan.rounds.min(plan.few_rounds),
            round_word = plural(plan.rounds, "round"),
            seconds = plan.seconds,
            second_word = plural(plan.seconds as usize, "second"),
        );
        let settings =
            settings.iter().map(|(name, value)| format!("`{name} = {value}`")).collect::<Vec<_>>().join(", ");
        Self { settings, method, quick: plan.quick, subject }
    }

    /// The page with these parts of rows, and without the other rows.
    pub fn text(&self, rows: &[(&Row, Option<&Part>)]) -> String {
        let parts: Vec<(&Row, &Part)> = rows.iter().filter_map(|(row, part)| Some((*row, (*part)?))).collect();
        let left_out: Vec<&str> = rows.iter().filter(|(_, part)| part.is_none()).map(|(row, _)| row.title).collect();
        let mut text = format!(
            "{}

# What was measured

What the extension costs, side by side with what you would write by hand instead; [Benchmarks](../benchmarks.md) has it in short. \
`make bench` writes this page. The numbers are those of one build. Each section was measured on one machine, which the end of the page names. Ratios carry over to other machines better than absolute numbers.

",
            mark(&self.subject)
        );
        text += "| what | where | goal | measured | reached |\n|---|---|---|---|---|\n";
        parts.iter().for_each(|(_, part)| text += &part.summary);
        text += "\nGoals for rates mean *at least*. Goals for what is spent beyond the ceiling mean *at most*.\n\n";
        if self.quick {
            text += "This was a quick run: few rounds, and only the cells that have a goal.\n\n";
        }
        if !left_out.is_empty() {
            let _ = write!(text, "Not measured: {}.\n\n", left_out.join("; "));
        }
        parts.iter().for_each(|(_, part)| text += &part.marked_section());
        text += include_str!("../notes.md");
        let _ = write!(text, "\n## How it is measured\n\n{}\n\n", self.method);
        text += "## Repeat it\n\n```sh\nmake bench                                   # all of it, some hours, and 30 GB of disk\nscripts/bench.sh --resume                    # the rest, where such a run was cut off\nscripts/bench.sh --quick                     # a look in half an hour\nscripts/instructions.sh                      # instructions only, in some minutes\nscripts/bench.sh --rows request,replay --rounds 15\n```\n\n\
The benchmark starts a private server and removes it afterwards. To measure another server than Debian's, set `PG_CONFIG`. If the \
machine is busy with something else, the quartiles show it.\n\n";
        text += "## The machine and the server\n\n";
        for (place, titles) in places(&parts) {
            let _ = writeln!(text, "- {place}: {titles}.");
        }
        let _ = writeln!(
            text,
            "\nSettings besides the defaults: {}; checkpoints are out of the way, so that none falls into a run. `fsync`, \
`full_page_writes` and autovacuum are on.\n",
            self.settings
        );
        text += "The tables and functions that are measured:\n\n```sql\n";
        text += include_str!("../sql/schema.sql");
        text += "```\n\nThe parameters that are the same in each transaction:\n\n";
        for (name, value) in CONSTANTS {
            let _ = writeln!(text, "- `:{name}` = `{value}`");
        }
        text
    }
}

impl Part {
    /// Nothing yet.
    pub fn new(place: &str) -> Self {
        Self { place: place.into(), ..Self::default() }
    }

    /// Its section, with the place below the heading for [`mark`]'s reader.
    fn marked_section(&self) -> String {
        let (heading, rest) = self.section.split_once('\n').unwrap_or((&self.section, ""));
        format!("{heading}\n{}\n{rest}", mark(&self.place))
    }

    /// Adds a row whose variants were measured in rounds.
    pub fn row(&mut self, row: &Row, measured: &[MeasuredCell]) {
        self.heading(row);
        for cell in measured {
            let samples = |position: usize| cell.samples.iter().map(move |round| round[position]);
            let lines = row.variants.iter().enumerate().map(|(position, variant)| {
                [
                    variant.name.to_owned(),
                    with_spread(Spread::of(samples(position).map(|sample| sample.rate)), 0),
                    with_spread(Spread::of(samples(position).map(|sample| sample.cpu_us)), 1),
                ]
            });
            let unit = if row.variants.iter().any(|variant| variant.keys > 1) { "key" } else { "transaction" };
            let rate = format!("{unit}s/s");
            let cpu = format!("CPU µs/{unit}");
            self.section += &format!("### {}\n\n", describe(cell.cell));
            self.section += &table(["", rate.as_str(), cpu.as_str()], lines);
            let ratios: Vec<(&Comparison, Spread)> =
                row.comparisons.iter().map(|comparison| (comparison, ratio(comparison, &cell.samples))).collect();
            self.comparisons(row, cell.cell, &ratios);
        }
        self.statements(&row.variants);
    }

    /// Adds a row that consists of findings.
    pub fn findings(&mut self, row: &Row, findings: &[Finding]) {
        self.heading(row);
        self.finding_lines(row, findings);
    }

    /// Adds a table of findings, if there are any.
    pub fn finding_lines(&mut self, row: &Row, findings: &[Finding]) {
        if findings.is_empty() {
            return;
        }
        let lines = findings.iter().map(|finding| {
            let (goal, reached) = goal_and_verdict(finding);
            [finding.what.clone(), with_spread(finding.measured, finding.decimals), goal, reached.to_owned()]
        });
        self.section += &table(["", "measured", "goal", "reached"], lines);
        findings.iter().for_each(|finding| self.summarize(row, finding));
    }

    /// Adds a finding with a goal to the table of goals.
    pub fn summarize(&mut self, row: &Row, finding: &Finding) {
        if finding.goal.is_some() {
            let (goal, reached) = goal_and_verdict(finding);
            let measured = with_spread(finding.measured, finding.decimals);
            let _ = writeln!(self.summary, "| {}: {} | | {goal} | {measured} | {reached} |", row.title, finding.what);
        }
    }

    /// Adds a section that was written elsewhere.
    pub fn text(&mut self, text: &str) {
        self.section += text;
        self.section += "\n";
    }

    /// Adds the heading and the text of a row.
    pub fn heading(&mut self, row: &Row) {
        let _ = write!(self.section, "## {}\n\n{}\n\n", row.title, row.text);
    }

    /// Adds a table of ratios, those of a cell.
    pub fn comparisons(&mut self, row: &Row, cell: Cell, ratios: &[(&Comparison, Spread)]) {
        let has_goals = row.goal_cells.contains(&cell);
        let lines = ratios.iter().map(|(comparison, spread)| {
            let goal = comparison.goal.filter(|_| has_goals);
            [
                comparison.what.to_owned(),
                with_spread(*spread, 2),
                goal.map_or_else(String::new, |GoalRatio(ratio)| format!("{} {ratio}", bound(comparison.metric))),
                goal.map_or("", |goal| reached(comparison.metric, goal, *spread)).to_owned(),
            ]
        });
        self.section += &table(["", "ratio", "goal", "reached"], lines);
        for (comparison, spread) in ratios.iter().filter(|_| has_goals) {
            let Some(goal @ GoalRatio(ratio)) = comparison.goal else { continue };
            let _ = writeln!(
                self.summary,
                "| {}: {} | {} | {} {ratio} | {} | {} |",
                row.title,
                comparison.what,
                describe(cell),
                bound(comparison.metric),
                with_spread(*spread, 2),
                reached(comparison.metric, goal, *spread)
            );
        }
    }

    /// Adds the scripts of the variants. A long script, which repeats itself, is cut in the middle.
    fn statements(&mut self, variants: &[Variant]) {
        const LINES_MAX: usize = 20;
        self.section += "<details><summary>The scripts</summary>\n\n";
        for variant in variants {
            let lines: Vec<&str> = variant.sql.lines().collect();
            let text = match lines[..] {
                [first, second, third, .., before, last] if lines.len() > LINES_MAX => {
                    let more = lines.len() - 5;
                    format!("{first}\n{second}\n{third}\n-- and so on, {more} lines more\n{before}\n{last}\n")
                }
                _ => variant.sql.clone(),
            };
            let _ = write!(self.section, "{}:\n\n```sql\n{}{text}```\n\n", variant.name, variant.keygen.script());
        }
        self.section += "</details>\n\n";
    }
}

/// The places where parts were measured, and what was measured there.
fn places(parts: &[(&Row, &Part)]) -> Vec<(String, String)> {
    let mut places: Vec<(&str, Vec<&str>)> = Vec::new();
    for (row, part) in parts {
        match places.iter_mut().find(|(place, _)| *place == part.place) {
            Some((_, titles)) => titles.push(row.title),
            None => places.push((&part.place, vec![row.title])),
        }
    }
    let only_one = places.len() == 1;
    let told = |titles: Vec<&str>| if only_one { "all sections".into() } else { titles.join("; ") };
    places.into_iter().map(|(place, titles)| (place.to_owned(), told(titles))).collect()
}

/// The spread of the ratios that a comparison has in each round.
fn ratio(comparison: &Comparison, samples: &[Vec<Sample>]) -> Spread {
    Spread::of(samples.iter().map(|round| {
        let (numerator, denominator) = (round[comparison.numerator], round[comparison.denominator]);
        match comparison.metric {
            Metric::Rate => numerator.rate / denominator.rate,
            Metric::CpuBeyond(base) => {
                (numerator.cpu_us - round[base].cpu_us) / (denominator.cpu_us - round[base].cpu_us)
            }
            Metric::WalBeyond(_) => unreachable!("the log is measured apart"),
        }
    }))
}

/// The goal of a finding, and whether it is reached.
pub fn goal_and_verdict(finding: &Finding) -> (String, &'static str) {
    let median = finding.measured.median;
    let (goal, is_reached) = match finding.goal {
        Some(Goal::AtLeast(least)) => (format!("≥ {least}"), median >= least),
        Some(Goal::AtMost(most)) => (format!("≤ {most}"), median <= most),
        Some(Goal::Between(least, most)) => (format!("{least} … {most}"), (least..=most).contains(&median)),
        None => return (String::new(), ""),
    };
    (goal, yes_or_no(is_reached))
}

/// The sign between a metric and its goal.
fn bound(metric: Metric) -> &'static str {
    if metric == Metric::Rate { "≥" } else { "≤" }
}

/// Whether the median reaches the goal.
fn reached(metric: Metric, GoalRatio(goal): GoalRatio, Spread { median, .. }: Spread) -> &'static str {
    yes_or_no(if metric == Metric::Rate { median >= goal } else { median <= goal })
}

/// What the page says about a goal.
pub fn yes_or_no(is_reached: bool) -> &'static str {
    if is_reached { "yes" } else { "no" }
}

fn describe(cell: Cell) -> String {
    let clients = cell.clients as usize;
    format!("synchronous_commit {}, {clients} {}", on_or_off(cell.synchronous), plural(clients, "client"))
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// The median, and the quartiles in brackets.
pub fn with_spread(Spread { low, median, high }: Spread, decimals: usize) -> String {
    format!("{median:.decimals$} [{low:.decimals$} … {high:.decimals$}]")
}

/// A table with these heads.
pub fn table<const N: usize>(heads: [&str; N], lines: impl Iterator<Item = [String; N]>) -> String {
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(N));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_reaches_its_goal_upwards_and_a_cost_downwards() {
        let spread = Spread { low: 0.8, median: 0.9, high: 1.0 };
        assert_eq!(reached(Metric::Rate, GoalRatio(0.85), spread), "yes");
        assert_eq!(reached(Metric::Rate, GoalRatio(0.95), spread), "no");
        assert_eq!(reached(Metric::CpuBeyond(0), GoalRatio(0.95), spread), "yes");
        assert_eq!(reached(Metric::CpuBeyond(0), GoalRatio(0.85), spread), "no");
    }

    #[test]
    fn a_table_has_a_line_under_its_heads() {
        let text = table(["", "a"], [["x".to_owned(), "1".to_owned()]].into_iter());
        assert_eq!(text, "|  | a |\n|---|---|\n| x | 1 |\n\n");
    }
}
