//! The benchmark of the `idempotence` extension: side by side with what one would write by hand, on
//! a private server, in interleaved rounds. The result is a page for people.
//!
//! The modules are best read in this order: [`row`], [`script`], [`guarded`] and [`variants`], what a row consists of;
//! [`rows`], the list of all rows; [`lab`], how a run is measured; [`wal`], [`life`], [`wake`],
//! [`count`], how instructions are counted; [`instructions`], [`growth`], [`slots`], [`held`] and [`ring`], the rows that
//! are measured in their own way; [`field`], other libraries, which `bench/field` measures; [`page`] and [`shown`], which
//! present the results; [`sitting`], how a run that was cut off goes on.

mod count;
mod field;
mod finding;
mod growth;
mod guarded;
mod held;
mod instructions;
mod lab;
mod life;
mod machine;
mod page;
mod plan;
mod ring;
mod row;
mod rows;
mod script;
mod shown;
mod sitting;
mod slots;
mod spread;
mod variants;
mod wake;
mod wal;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use lab::Lab;
use page::Page;
use plan::Plan;
use sitting::Sitting;

/// Measures the installed extension against hand-written SQL and writes a page about it.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// The pg_config of the server to measure; the extension must be installed there
    #[arg(long, default_value = "pg_config")]
    pg_config: PathBuf,

    /// Where the private server keeps its files
    #[arg(long)]
    dir: Option<PathBuf>,

    /// The page to write
    #[arg(long, default_value = "docs/benchmarks.md")]
    out: PathBuf,

    /// Go on with a run that was cut off: take the rows that it has measured, and measure the others. It must have been
    /// one of the same build with the same options
    #[arg(long)]
    resume: bool,

    /// A run of minutes: few rounds, and only the cells that have a goal
    #[arg(long)]
    quick: bool,

    /// The number of rounds, each of which measures all variants once
    #[arg(long)]
    rounds: Option<usize>,

    /// The seconds for which each variant is measured in a round, after a second of warming up
    #[arg(long)]
    seconds: Option<u32>,

    /// The number of outcomes that are kept when a measurement begins
    #[arg(long, default_value_t = 200_000)]
    kept: u64,

    /// The number of outcomes that are kept in measurements about many of them; the goals hold for 10000000
    #[arg(long)]
    many: Option<u64>,

    /// The number of outcomes in a segment that is emptied; the goal holds for 1000000
    #[arg(long)]
    emptied: Option<u64>,

    /// The rows to measure
    #[arg(long, value_delimiter = ',', default_values_t = rows::IDS.map(String::from))]
    rows: Vec<String>,
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
        wakes: if options.quick { 200 } else { 500 },
        held_requests: if options.quick { 10_000 } else { 30_000 },
        emptied: options.emptied.unwrap_or(slot_requests),
        many: options.many.unwrap_or(if options.quick { 2 * slot_requests } else { 10_000_000 }),
    };
    let rows = rows::chosen(&options.rows)?;

    if rows.iter().any(|row| row.id == field::FIELD) {
        field::set_up()?;
    }
    let lab = Lab::start(&options.pg_config, options.dir.as_deref(), plan.kept)?;
    let sitting = Sitting::open(options.resume, &format!("{plan:?}, {}", lab.build()?))?;
    let mut page = Page::new(&plan, machine::describe()?);
    page.server(lab.server_version()?, lab.settings());
    for row in &rows {
        if let Some(part) = sitting.measured(row.id)? {
            page.add(&part);
            continue;
        }
        let before = page.mark();
        match row.id {
            wal::WAL => page.wal(row, &wal::measure(&lab, row, &plan)?),
            instructions::INSTRUCTIONS => page.instructions(row, &instructions::measure(&lab, &plan)?),
            life::LIFE => page.findings(row, &life::measure(&lab, &plan)?),
            wake::WAKE => page.findings(row, &wake::measure(&lab, &plan)?),
            growth::GROWTH => page.growth(row, &growth::measure(&lab, &plan)?),
            held::HELD => page.findings(row, &held::measure(&lab, &plan)?),
            ring::RING => page.findings(row, &ring::measure(&lab, &plan)?),
            field::FIELD => page.section(&field::measure(&options.pg_config, &options.out, &plan)?),
            slots::SLOTS => page.slots(row, &slots::measure(&lab, &plan)?),
            _ => page.row(row, &lab.measure(row, &plan)?),
        }
        sitting.keep(row.id, &page.since(before))?;
    }
    page.finish();

    if let Some(directory) = options.out.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&options.out, page.text()).with_context(|| format!("writing {}", options.out.display()))?;
    eprintln!("wrote {}", options.out.display());
    Ok(())
}
