//! The benchmark of the `idempotence` extension: side by side with what one would write by hand, on
//! a private server, in interleaved rounds; the result is a page for people.
//!
//! To be read in this order: [`rows`], what is compared with what; [`lab`], how one run is measured;
//! [`wal`] and [`life`], how the log is, [`slots`] what is left in the tables, [`held`] what an old snapshot costs, and [`ring`] how they are emptied;
//! [`page`], what is made of it.

mod found;
mod held;
mod lab;
mod life;
mod machine;
mod page;
mod ring;
mod rows;
mod sessions;
mod slots;
mod stats;
mod wal;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use lab::Lab;
use page::Page;

/// Measures the installed extension against hand-written SQL and writes a page about it.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// The pg_config of the server to measure; it has the extension installed
    #[arg(long, default_value = "pg_config")]
    pg_config: PathBuf,

    /// Where the private server keeps its files
    #[arg(long)]
    dir: Option<PathBuf>,

    /// The page to write
    #[arg(long, default_value = "docs/benchmarks.md")]
    out: PathBuf,

    /// A look in minutes: few rounds, one cell a row
    #[arg(long)]
    quick: bool,

    /// How many rounds, each of which measures all variants once
    #[arg(long)]
    rounds: Option<usize>,

    /// How long each variant is measured in a round, after a second of warming up
    #[arg(long)]
    seconds: Option<u32>,

    /// How many outcomes are kept when the measuring begins
    #[arg(long, default_value_t = 200_000)]
    kept: u64,

    /// How many outcomes are kept where a row says so; the goals are about 10000000
    #[arg(long)]
    many: Option<u64>,

    /// How many outcomes are in a segment that is emptied; the goal is about 1000000
    #[arg(long)]
    emptied: Option<u64>,

    /// The rows to measure
    #[arg(long, value_delimiter = ',', default_values_t = rows::IDS.map(String::from))]
    rows: Vec<String>,
}

/// How much is measured.
pub struct Plan {
    pub quick: bool,
    pub rounds: usize,
    pub seconds: u32,
    pub kept: u64,
    /// Transactions between two looks at the log.
    pub wal_transactions: u64,
    pub wal_rounds: usize,
    /// Requests sent to see what they leave behind.
    pub slot_requests: u64,
    /// Requests of one session under an old snapshot.
    pub held_requests: u64,
    /// Outcomes in a segment that is emptied, and those kept where there are many.
    pub emptied: u64,
    pub many: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (rounds, seconds, wal_transactions, wal_rounds, slot_requests) =
        if options.quick { (3, 1, 20_000, 1, 100_000) } else { (7, 2, 100_000, 3, 1_000_000) };
    let plan = Plan {
        quick: options.quick,
        rounds: options.rounds.unwrap_or(rounds).max(1),
        seconds: options.seconds.unwrap_or(seconds).max(1),
        kept: options.kept.max(1),
        wal_transactions,
        wal_rounds,
        slot_requests,
        held_requests: if options.quick { 10_000 } else { 30_000 },
        emptied: options.emptied.unwrap_or(slot_requests),
        many: options.many.unwrap_or(2 * slot_requests),
    };
    let rows = rows::chosen(&options.rows)?;

    let mut page = Page::new(&plan, machine::describe()?);
    let lab = Lab::start(&options.pg_config, options.dir.as_deref(), plan.kept)?;
    page.server(lab.server_version()?, lab.settings());
    for row in &rows {
        match row.id {
            rows::WAL => page.wal(row, &wal::measure(&lab, row, &plan)?),
            life::LIFE => page.found(row, &life::measure(&lab, &plan)?),
            held::HELD => page.found(row, &held::measure(&lab, &plan)?),
            ring::RING => page.found(row, &ring::measure(&lab, &plan)?),
            sessions::SLOTS => page.slots(row, &slots::measure(&lab, &plan)?),
            _ => page.row(row, &lab.measure(row, &plan)?),
        }
    }
    page.end();

    if let Some(directory) = options.out.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&options.out, page.text()).with_context(|| format!("writing {}", options.out.display()))?;
    eprintln!("wrote {}", options.out.display());
    Ok(())
}
