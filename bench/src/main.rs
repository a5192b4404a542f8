//! The benchmark of the `idempotence` extension: side by side with what one would write by hand, on
//! a private server, in interleaved rounds. The result is a page for people.
//!
//! The modules are best read in this order: [`row`], [`script`], [`guarded`] and [`variants`], what a row consists of;
//! [`rows`], the list of all rows; [`lab`], how a run is measured; [`count`], [`perf`] and [`valgrind`], how instructions
//! are counted; [`wal`], [`life`], [`wake`], [`instructions`], [`growth`], [`slots`], [`held`] and [`ring`], the rows that
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
mod perf;
mod plan;
mod ring;
mod row;
mod rows;
mod script;
mod shown;
mod sitting;
mod slots;
mod spread;
mod valgrind;
mod variants;
mod wake;
mod wal;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use lab::Lab;
use page::{Page, Part};
use plan::Plan;
use row::Row;

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
    #[arg(long, default_value = "docs/benchmarks/measured.md")]
    out: PathBuf,

    /// Go on with the page that a run has written which was cut off: what it has measured of this build to this extent stays
    #[arg(long)]
    resume: bool,

    /// A run of minutes: few rounds, and only the cells that have a goal
    #[arg(long)]
    quick: bool,

    /// The number of rounds of a cell that has a goal; each measures all variants once
    #[arg(long)]
    rounds: Option<usize>,

    /// The seconds for which each variant is measured in a round, after a second of warming up
    #[arg(long)]
    seconds: Option<u32>,

    /// The number of outcomes that are kept when a measurement begins (200000)
    #[arg(long)]
    kept: Option<u64>,

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
    let usual = if options.quick { Plan::quick() } else { Plan::complete() };
    let plan = Plan {
        rounds: options.rounds.unwrap_or(usual.rounds).max(1),
        seconds: options.seconds.unwrap_or(usual.seconds).max(1),
        kept: options.kept.unwrap_or(usual.kept).max(1),
        emptied: options.emptied.unwrap_or(usual.emptied),
        many: options.many.unwrap_or(usual.many),
        ..usual
    };
    let rows = rows::chosen(&options.rows)?;

    if rows.iter().any(|row| row.id == field::FIELD) {
        field::set_up()?;
    }
    let lab = Lab::start(&options.pg_config, options.dir.as_deref(), plan.kept)?;
    let place = format!("{}, PostgreSQL {}", machine::describe()?, lab.server_version()?);
    let subject = format!("{plan:?}, {}", sitting::sources()?);
    let former = if options.resume { sitting::former(&options.out, &subject)? } else { None };
    if options.resume && former.is_none() {
        eprintln!("{} is no page of this build and this extent: beginning anew", options.out.display());
    }
    let page = Page::new(&plan, lab.settings(), subject);
    if let Some(directory) = options.out.parent() {
        fs::create_dir_all(directory)?;
    }

    let major = lab.major()?;
    let all: Vec<Row> = rows::all().into_iter().map(|row| row.on(major)).collect();
    let mut parts: Vec<Option<Part>> =
        all.iter().map(|row| former.as_ref().and_then(|page| sitting::part(page, row))).collect();
    for (position, row) in all.iter().enumerate() {
        if parts[position].is_none() && rows.iter().any(|chosen| chosen.id == row.id) {
            parts[position] = Some(measure(&lab, row, Part::new(&place), &plan, &options)?);
            let measured: Vec<_> = all.iter().zip(parts.iter().map(Option::as_ref)).collect();
            fs::write(&options.out, page.text(&measured))
                .with_context(|| format!("writing {}", options.out.display()))?;
        }
    }
    eprintln!("wrote {}", options.out.display());
    Ok(())
}

/// Measures a row and adds it to its part.
fn measure(lab: &Lab, row: &Row, mut part: Part, plan: &Plan, options: &Options) -> Result<Part> {
    match row.id {
        wal::WAL => part.wal(row, &wal::measure(lab, row, plan)?),
        instructions::INSTRUCTIONS => part.instructions(row, &instructions::measure(lab, plan)?),
        life::LIFE => part.findings(row, &life::measure(lab, plan)?),
        wake::WAKE => part.findings(row, &wake::measure(lab, plan)?),
        growth::GROWTH => part.growth(row, &growth::measure(lab, plan)?),
        growth::CONNECTIONS => part.growth(row, &growth::measure_connections(lab, plan)?),
        held::HELD => part.findings(row, &held::measure(lab, plan)?),
        ring::RING => part.findings(row, &ring::measure(lab, plan)?),
        field::FIELD => part.text(&field::measure(&options.pg_config, &options.out, plan, options.resume)?),
        slots::SLOTS => part.slots(row, &slots::measure(lab, plan)?),
        _ => part.row(row, &lab.measure(row, plan)?),
    }
    Ok(part)
}
