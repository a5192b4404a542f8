//! Configurations as the documents give them, so that what a test runs is what a reader copies.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The block of `docs/scaling.md` that is fenced as this kind, of which there is one.
pub fn block(kind: &str) -> Result<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scaling.md");
    let page = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let after = page.split_once(&format!("\n```{kind}\n")).map(|(_, after)| after);
    let block = after.and_then(|after| after.split_once("\n```\n")).map(|(block, _)| block);
    Ok(format!("{}\n", block.with_context(|| format!("docs/scaling.md has no block of {kind}"))?))
}
