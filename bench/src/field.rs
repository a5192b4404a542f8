//! The row about what people would otherwise use: other libraries in a Python client, and what they leave when they are
//! killed. `bench/field` measures it and writes its section, since these libraries are Python's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::plan::Plan;
use crate::row::{OFF_4, Row};

/// The id of the row.
pub const FIELD: &str = "field";

/// The script, relative to the checkout, in which `scripts/bench.sh` starts the benchmark.
const SCRIPT: &str = "scripts/field.sh";
/// Where the script leaves the section.
const SECTION: &str = "target/field/section.md";
/// The picture, beside the page.
const PICTURE: &str = "field.svg";

pub fn row() -> Row {
    // bench/field/page.md has the title too, and the text.
    Row {
        id: FIELD,
        title: "What people would otherwise use",
        text: "",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Installs what the measurement needs. Called before the first row, so that what is missing is told then, and not an
/// hour later.
pub fn set_up() -> Result<()> {
    run(Command::new(absolute()?).arg("--setup"))
}

/// Measures on a server of its own, and returns the section. The picture goes beside the page. What a run that was cut off
/// has measured is taken with `resume`.
pub fn measure(pg_config: &Path, page: &Path, plan: &Plan, resume: bool) -> Result<String> {
    let picture = page.parent().unwrap_or(Path::new("")).join(PICTURE);
    let mut command = Command::new(absolute()?);
    command.arg("--server").arg(pg_config).arg("--page").arg(page).arg("--picture").arg(picture);
    if plan.quick {
        command.arg("--quick");
    }
    if resume {
        command.arg("--resume");
    }
    run(&mut command)?;
    fs::read_to_string(SECTION).with_context(|| format!("{SCRIPT} has left no {SECTION}"))
}

fn absolute() -> Result<PathBuf> {
    fs::canonicalize(SCRIPT).with_context(|| format!("there is no {SCRIPT}: start the benchmark by scripts/bench.sh"))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {SCRIPT}"))?;
    if !status.success() {
        bail!("{SCRIPT} failed ({status})");
    }
    Ok(())
}
