//! The row about the write-ahead log: what each variant writes to it.

use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::guarded::{CEILING, HAND_WRITTEN, IDEMPOTENCE, guarded};
use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::row::{Cell, Comparison, GoalRatio, Metric, OFF_4, Row, Variant};
use crate::script::{KEY, Keygen, RANDOM_KEY};

/// The id of the row.
pub const WAL: &str = "wal";

pub fn row() -> Row {
    let mut variants = guarded(KEY, Keygen::Ascending);
    variants.extend(guarded(RANDOM_KEY, Keygen::Random));
    let random = variants.len() / 2;
    Row {
        id: WAL,
        title: "Write-ahead log",
        text: "The transactions are those of the section before. Each run starts in a fresh copy of the database, right after a \
checkpoint. So the full images of the pages that are touched for the first time count as they do in production (`full_page_writes` \
is on). *Records* is the log without those images, as `pg_waldump --stats` counts it. *All* is the distance that the log has \
advanced. The images weigh more when there are fewer transactions between two checkpoints, and when the tables are larger. Random \
keys touch pages all over an index.",
        variants,
        comparisons: vec![
            Comparison {
                what: "bytes of records beyond the ceiling's, idempotence / hand-written, UUIDv7 keys",
                metric: Metric::WalBeyond(CEILING),
                numerator: IDEMPOTENCE,
                denominator: HAND_WRITTEN,
                goal: Some(GoalRatio(0.5)),
            },
            Comparison {
                what: "bytes of records beyond the ceiling's, idempotence / hand-written, random keys",
                metric: Metric::WalBeyond(random + CEILING),
                numerator: random + IDEMPOTENCE,
                denominator: random + HAND_WRITTEN,
                goal: None,
            },
        ],
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// The write-ahead log of one run, in bytes per transaction.
#[derive(Clone)]
pub struct WalBytes {
    /// The distance by which the log has advanced.
    pub all: f64,
    /// The records, without page images.
    pub records: f64,
    /// The page images.
    pub images: f64,
    /// The records by resource manager, except the managers with hardly any records.
    pub by_manager: Vec<(String, f64)>,
}

/// A resource manager with fewer bytes per transaction is not mentioned.
const BYTES_WORTH_A_LINE: f64 = 1.0;

/// Measures all variants in rounds. The result is `[round][variant]`.
pub fn measure(lab: &Lab, row: &Row, plan: &Plan) -> Result<Vec<Vec<WalBytes>>> {
    let cell = row.cells[0];
    (0..plan.few_rounds)
        .map(|round| {
            eprintln!("{}: round {} of {}", row.id, round + 1, plan.few_rounds);
            row.variants.iter().map(|variant| run(lab, variant, cell, plan.wal_transactions)).collect()
        })
        .collect()
}

fn run(lab: &Lab, variant: &Variant, cell: Cell, transactions: u64) -> Result<WalBytes> {
    lab.fresh_copy()?;
    let position = || lab.psql(DATABASE, "SELECT pg_current_wal_insert_lsn()");
    let from = position()?;
    lab.run_transactions(variant, cell, transactions)?;
    let to = position()?;
    let distance: f64 = lab.psql(DATABASE, &format!("SELECT pg_wal_lsn_diff('{to}', '{from}')"))?.parse()?;
    // pg_waldump reads the log from disk. This commit flushes the log; a checkpoint would flush it too, but
    // might remove the part to be read.
    lab.psql(DATABASE, "SELECT pg_logical_emit_message(true, 'bench', '')")?;
    let statistics = waldump(lab, &from, &to)?;
    let per_transaction = |bytes: f64| bytes / transactions as f64;
    let (records, images) = statistics
        .iter()
        .find(|line| line.name == "Total")
        .map(|total| (total.records, total.images))
        .context("no total")?;
    Ok(WalBytes {
        all: per_transaction(distance),
        records: per_transaction(records),
        images: per_transaction(images),
        by_manager: statistics
            .into_iter()
            .filter(|line| line.name != "Total" && per_transaction(line.records) >= BYTES_WORTH_A_LINE)
            .map(|line| (line.name, per_transaction(line.records)))
            .collect(),
    })
}

/// The statistics of pg_waldump between two positions in the log.
fn waldump(lab: &Lab, from: &str, to: &str) -> Result<Vec<Statistics>> {
    let output = lab
        .program("pg_waldump")
        .args(["--stats", "--start", from, "--end", to, "--path"])
        .arg(lab.data_dir().join("pg_wal"))
        .output()
        .context("cannot run pg_waldump, which comes with the server")?;
    if !output.status.success() {
        std::io::stderr().write_all(&output.stderr)?;
        bail!("pg_waldump failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect())
}

/// The bytes of one resource manager, or the total.
#[derive(Debug, PartialEq)]
struct Statistics {
    name: String,
    records: f64,
    images: f64,
}

/// Parses a line like `Heap   5 ( 1.0)   300 ( 2.0)   8192 ( 3.0)   8492 ( 4.0)`: name, count, bytes of records,
/// bytes of images and their sum. Percentages stand between them, in parentheses or, in the total, in brackets.
fn parse(text: &str) -> Option<Statistics> {
    let mut depth = 0;
    let plain: String = text
        .chars()
        .filter(|c| match c {
            '(' | '[' => {
                depth += 1;
                false
            }
            ')' | ']' => {
                depth -= 1;
                false
            }
            _ => depth == 0,
        })
        .collect();
    let mut words = plain.split_whitespace();
    let name = words.next()?.to_owned();
    let numbers: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    // The total has no percentage after its count.
    match numbers[..] {
        [_, records, images, _] => Some(Statistics { name, records, images }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_headings_are_not() {
        let heap = "Heap                     5 (  1.28)                  300 (  2.00)                 8192 (  3.00)                 8492 (  4.00)";
        assert_eq!(parse(heap), Some(Statistics { name: "Heap".into(), records: 300.0, images: 8192.0 }));
        let total = "Total                  390                  29452 [87.71%]                 4128 [12.29%]                33580 [100%]";
        assert_eq!(parse(total), Some(Statistics { name: "Total".into(), records: 29452.0, images: 4128.0 }));
        assert_eq!(parse("Type      N      (%)          Record size      (%)             FPI size      (%)"), None);
        assert_eq!(parse("----      -      ---          -----------      ---             --------      ---"), None);
    }
}
