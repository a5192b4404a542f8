//! What each variant writes to the log.

use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::Plan;
use crate::lab::{COPY, Lab};
use crate::rows::{Cell, Row, Variant};

/// What one run wrote, in bytes for each transaction.
#[derive(Clone)]
pub struct Written {
    /// How far the log has advanced.
    pub all: f64,
    /// Its records alone, without page images.
    pub records: f64,
    /// The page images.
    pub images: f64,
    /// The records by resource manager, only those that count.
    pub by_manager: Vec<(String, f64)>,
}

/// A resource manager with less than this of a transaction's bytes is not worth a line.
const BYTES_WORTH_A_LINE: f64 = 1.0;

/// All variants, interleaved: `[round][variant]`.
pub fn measure(lab: &Lab, row: &Row, plan: &Plan) -> Result<Vec<Vec<Written>>> {
    let cell = row.cells[0];
    (0..plan.wal_rounds)
        .map(|round| {
            eprintln!("{}: round {} of {}", row.id, round + 1, plan.wal_rounds);
            row.variants.iter().map(|variant| run(lab, variant, cell, plan.wal_transactions)).collect()
        })
        .collect()
}

fn run(lab: &Lab, variant: &Variant, cell: Cell, transactions: u64) -> Result<Written> {
    lab.fresh_copy()?;
    let position = || lab.psql(COPY, "SELECT pg_current_wal_insert_lsn()");
    let from = position()?;
    lab.run_transactions(variant, cell, transactions)?;
    let to = position()?;
    let distance: f64 = lab.psql(COPY, &format!("SELECT pg_wal_lsn_diff('{to}', '{from}')"))?.parse()?;
    // What is to be read must be on disk: a commit that waits for that, and no checkpoint, which would clear it away.
    lab.psql(COPY, "SELECT pg_logical_emit_message(true, 'bench', '')")?;
    let statistics = waldump(lab, &from, &to)?;
    let each = |bytes: f64| bytes / transactions as f64;
    let (records, images) = statistics
        .iter()
        .find(|line| line.name == "Total")
        .map(|total| (total.records, total.images))
        .context("no total")?;
    Ok(Written {
        all: each(distance),
        records: each(records),
        images: each(images),
        by_manager: statistics
            .into_iter()
            .filter(|line| line.name != "Total" && each(line.records) >= BYTES_WORTH_A_LINE)
            .map(|line| (line.name, each(line.records)))
            .collect(),
    })
}

fn waldump(lab: &Lab, from: &str, to: &str) -> Result<Vec<Line>> {
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
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(line).collect())
}

/// A line of the statistics.
#[derive(Debug, PartialEq)]
struct Line {
    name: String,
    records: f64,
    images: f64,
}

/// Reads `Heap   5 ( 1.0)   300 ( 2.0)   8192 ( 3.0)   8492 ( 4.0)`: name, count, bytes of records, bytes of
/// images, their sum, with percentages between, in parentheses or, in the total, brackets.
fn line(text: &str) -> Option<Line> {
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
        [_, records, images, _] => Some(Line { name, records, images }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_headings_are_not() {
        let heap = "Heap                     5 (  1.28)                  300 (  2.00)                 8192 (  3.00)                 8492 (  4.00)";
        assert_eq!(line(heap), Some(Line { name: "Heap".into(), records: 300.0, images: 8192.0 }));
        let total = "Total                  390                  29452 [87.71%]                 4128 [12.29%]                33580 [100%]";
        assert_eq!(line(total), Some(Line { name: "Total".into(), records: 29452.0, images: 4128.0 }));
        assert_eq!(line("Type      N      (%)          Record size      (%)             FPI size      (%)"), None);
        assert_eq!(line("----      -      ---          -----------      ---             --------      ---"), None);
    }
}
