//! The rows of the page that are measured, and shown, in their own way.

use std::fmt::Write;

use crate::count::{Cost, Means};
use crate::growth::{self, End, Grown};
use crate::instructions::{self, Counted, Measured};
use crate::page::{Part, goal_and_verdict, table, with_spread, yes_or_no};
use crate::row::{Comparison, Metric, Row};
use crate::slots::{Growth, SESSIONS};
use crate::spread::Spread;
use crate::wal::WalBytes;

/// In what was counted.
fn unit(means: Means) -> &'static str {
    match means {
        Means::Perf | Means::Valgrind => "instructions",
        Means::CpuTime => "CPU µs",
    }
}

fn decimals(means: Means) -> usize {
    match means {
        Means::Perf | Means::Valgrind => 0,
        Means::CpuTime => 1,
    }
}

/// What the page says of the means by which was counted.
fn means_text(means: Means) -> &'static str {
    match means {
        Means::Perf => "",
        Means::Valgrind => {
            "`perf` could not count on this machine, so `valgrind --tool=cachegrind` has counted the instructions. Rates are those of \
a server without it.\n\n"
        }
        Means::CpuTime => "Instructions could not be counted here, so the ratios are those of CPU time.\n\n",
    }
}

impl Part {
    /// Adds the row about the write-ahead log.
    pub fn wal(&mut self, row: &Row, measured: &[Vec<WalBytes>]) {
        self.heading(row);
        let kinds = ["UUIDv7 keys", "random keys"];
        let variants_per_kind = row.variants.len() / kinds.len();
        for (kind, positions) in kinds.iter().zip((0..row.variants.len()).collect::<Vec<_>>().chunks(variants_per_kind))
        {
            self.section += &format!("### {kind}, bytes a transaction\n\n");
            let median = |position: usize, bytes: fn(&WalBytes) -> f64| {
                Spread::of(measured.iter().map(|round| bytes(&round[position]))).median
            };
            let lines = positions.iter().map(|&position| {
                [
                    row.variants[position].name.to_owned(),
                    format!("{:.0}", median(position, |wal| wal.all)),
                    format!("{:.0}", median(position, |wal| wal.images)),
                    format!("{:.0}", median(position, |wal| wal.records)),
                    measured[0][position]
                        .by_manager
                        .iter()
                        .map(|(name, bytes)| format!("{name} {bytes:.0}"))
                        .collect::<Vec<_>>()
                        .join(", "),
                ]
            });
            self.section += &table(["", "all", "page images", "records", "of these"], lines);
        }
        self.section += "The records alone, without page images:\n\n";
        let ratios: Vec<(&Comparison, Spread)> = row
            .comparisons
            .iter()
            .map(|comparison| (comparison, wal_ratio(comparison, measured, |wal| wal.records)))
            .collect();
        self.comparisons(row, row.cells[0], &ratios);
        self.section += "The same ratios for all, with page images:\n\n";
        let lines = row.comparisons.iter().map(|comparison| {
            let all = with_spread(wal_ratio(comparison, measured, |wal| wal.all), 2);
            [comparison.what.replacen("bytes of records", "all bytes", 1), all]
        });
        self.section += &table(["", "ratio"], lines);
    }

    /// Adds the row about instructions.
    pub fn instructions(&mut self, row: &Row, Counted { means, ways: measured }: &Counted) {
        self.heading(row);
        let (unit, decimals) = (unit(*means), decimals(*means));
        let counts = |way: &Measured| {
            let beyond = instructions::beyond_ceiling(measured, way);
            let beyond = beyond.map_or_else(String::new, |beyond| format!("{beyond:.decimals$}"));
            [way.name.to_owned(), format!("{:.decimals$}", way.median()), beyond]
        };
        self.section += &match means {
            Means::Perf => {
                let lines = measured.iter().map(|way| {
                    let [name, instructions, beyond] = counts(way);
                    let cycles = way.median_cycles().map_or_else(String::new, |cycles| format!("{cycles:.0}"));
                    [name, instructions, beyond, cycles]
                });
                table(["", unit, "beyond the ceiling", "cycles"], lines)
            }
            Means::Valgrind | Means::CpuTime => table(["", unit, "beyond the ceiling"], measured.iter().map(counts)),
        };
        self.section += means_text(*means);
        self.finding_lines(row, &instructions::findings(measured));
    }

    /// Adds the row about growth.
    pub fn growth(&mut self, row: &Row, grown: &Grown) {
        self.heading(row);
        let both = |comparison: &growth::Comparison, value: fn(&Cost) -> f64, decimals: usize| {
            let median = |end: &End| Spread::of(end.costs.iter().map(value)).median;
            let (small, large) = (median(&comparison.small), median(&comparison.large));
            format!("{small:.decimals$} → {large:.decimals$}")
        };
        let lines = grown.comparisons.iter().map(|comparison| {
            let finding = comparison.finding();
            let (goal, reached) = goal_and_verdict(&finding);
            [
                comparison.what.clone(),
                format!("{} → {}", comparison.small.name, comparison.large.name),
                both(comparison, |cost| cost.number(), decimals(grown.means)),
                both(comparison, |cost| cost.rate, 0),
                with_spread(finding.measured, finding.decimals),
                goal,
                reached.to_owned(),
            ]
        });
        self.section += &table(["", "from → to", unit(grown.means), "a second", "ratio", "goal", "reached"], lines);
        self.section += means_text(grown.means);
        for comparison in &grown.comparisons {
            self.summarize(row, &comparison.finding());
        }
        self.finding_lines(row, &grown.findings);
    }

    /// Adds the row about the space of sessions.
    pub fn slots(&mut self, row: &Row, growth: &Growth) {
        self.heading(row);
        self.section += &format!("### {} requests of {SESSIONS} sessions\n\n", growth.requests);
        let kb = |bytes: f64| format!("{:.0}", bytes / 1024.0);
        let lines = growth.tables.iter().map(|table| {
            let size_ratio = format!("{:.2}", table.last_bytes / table.first_bytes);
            let hot =
                if table.updates > 0.0 { format!("{:.2}", table.hot_updates / table.updates) } else { String::new() };
            let counts =
                [kb(table.first_bytes), kb(table.last_bytes), size_ratio, format!("{:.0}", table.updates), hot];
            let [first, last, size_ratio, updates, hot] = counts;
            [format!("`{}`", table.name), first, last, size_ratio, updates, hot]
        });
        self.section +=
            &table(["", "kB after the first laps", "kB at the end", "ratio", "updates", "of these HOT"], lines);
        if let Some(reply) = growth.tables.first() {
            let (size_ratio, hot) = (reply.last_bytes / reply.first_bytes, reply.hot_updates / reply.updates);
            let _ = writeln!(
                self.summary,
                "| {}: size of `reply` at the end / after the first laps | {} requests | 0.8 … 1.2 | {size_ratio:.2} | {} |",
                row.title,
                growth.requests,
                yes_or_no((0.8..=1.2).contains(&size_ratio))
            );
            let _ = writeln!(
                self.summary,
                "| {}: share of HOT updates of `reply` | {} requests | ≥ 0.99 | {hot:.3} | {} |",
                row.title,
                growth.requests,
                yes_or_no(hot >= 0.99)
            );
        }
    }
}

/// The spread of the ratios that a comparison of the write-ahead log has in each round.
fn wal_ratio(comparison: &Comparison, measured: &[Vec<WalBytes>], bytes: fn(&WalBytes) -> f64) -> Spread {
    let Metric::WalBeyond(base) = comparison.metric else { unreachable!("this row compares the log") };
    Spread::of(measured.iter().map(|round| {
        let beyond = |position: usize| bytes(&round[position]) - bytes(&round[base]);
        beyond(comparison.numerator) / beyond(comparison.denominator)
    }))
}
