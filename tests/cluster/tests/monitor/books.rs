//! What clients count themselves, to be compared with the view `stats`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::Connection;
use tokio::time::Duration;

/// The counters of the view, but for `wait_ms`, which has bounds instead of a number.
pub const EXACT: [&str; 14] = [
    "started",
    "taken_over",
    "replayed",
    "recorded",
    "failed",
    "cancelled",
    "released",
    "in_progress",
    "mismatched",
    "discarded",
    "fenced",
    "out_of_sequence",
    "unrecorded",
    "waits",
];

/// A clock of the server and one of the test may differ by this much for each wait.
const ROUNDING_MS: u64 = 5;

/// The counts of one client, or of all of them: by line and counter. A line is named by its session; `client` is that of
/// client sessions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Books {
    counts: BTreeMap<(String, &'static str), i64>,
    waited_ms: BTreeMap<String, (u64, u64)>,
}

impl Books {
    /// Adds to a counter.
    pub fn add(&mut self, line: &str, counter: &'static str, more: i64) {
        debug_assert!(EXACT.contains(&counter));
        *self.counts.entry((line.into(), counter)).or_default() += more;
    }

    /// Adds a wait that lasted at least and at most so long.
    pub fn waited(&mut self, line: &str, least: Duration, most: Duration) {
        self.add(line, "waits", 1);
        let (low, high) = self.waited_ms.entry(line.into()).or_default();
        *low += (least.as_millis() as u64).saturating_sub(ROUNDING_MS);
        *high += most.as_millis() as u64 + ROUNDING_MS;
    }

    /// Adds all that another client has counted.
    pub fn merge(&mut self, other: &Books) {
        for ((line, counter), more) in &other.counts {
            *self.counts.entry((line.clone(), counter)).or_default() += more;
        }
        for (line, (least, most)) in &other.waited_ms {
            let (low, high) = self.waited_ms.entry(line.clone()).or_default();
            *low += least;
            *high += most;
        }
    }

    /// The sum of a counter over all lines.
    pub fn sum(&self, counter: &str) -> i64 {
        self.counts.iter().filter(|((_, of), _)| *of == counter).map(|(_, count)| count).sum()
    }

    /// Compares every column of every line of the view.
    pub async fn check(&self, connection: &Connection) -> Result<()> {
        let mut found = Books::default();
        let columns = EXACT.join(", ");
        let sql = format!("SELECT COALESCE(session, kind), wait_ms, {columns} FROM idempotence.stats");
        for row in connection.text(&sql).await?.lines() {
            let mut values = row.split('|');
            let line = values.next().context("a row without columns")?;
            let wait_ms: u64 = values.next().context("a row of one column")?.parse()?;
            for (counter, value) in EXACT.iter().zip(values) {
                let value: i64 = value.parse()?;
                if value != 0 {
                    found.add(line, counter, value);
                }
            }
            let (least, most) = self.waited_ms.get(line).copied().unwrap_or_default();
            ensure!((least..=most).contains(&wait_ms), "{line} waited {wait_ms} ms, and not {least} to {most}");
        }
        let mut wanted = self.counts.clone();
        wanted.retain(|_, count| *count != 0);
        let differ = |(line, counter): &(String, &'static str)| {
            let of = |counts: &BTreeMap<_, _>| counts.get(&(line.clone(), *counter)).copied().unwrap_or(0);
            let (is, should) = (of(&found.counts), of(&wanted));
            (is != should).then(|| format!("{line}.{counter} is {is} and not {should}"))
        };
        let mut wrong: Vec<String> = wanted.keys().chain(found.counts.keys()).filter_map(differ).collect();
        wrong.dedup();
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        Ok(())
    }
}
