//! `idempotence-schema CONTROL_FILE VERSION SECTION SCRIPT` writes the script of CREATE EXTENSION. The macros of pgrx
//! leave in a section of the library what SQL it has, and pgrx's own crate makes the script of that, as cargo-pgrx does.
//! The file SECTION holds that section alone.

use std::env;
use std::fs;

use anyhow::{Context, Result, anyhow};
use pgrx_sql_entity_graph::section::decode_entities;
use pgrx_sql_entity_graph::{ControlFile, PgrxSql, SqlGraphEntity};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [control, version, section, script] = arguments.as_slice() else {
        anyhow::bail!("usage: idempotence-schema CONTROL_FILE VERSION SECTION SCRIPT");
    };
    let section = fs::read(section).with_context(|| format!("reading {section}"))?;
    let control = ControlFile::from_path_with_cargo_version(control, version)?;
    let mut entities = vec![SqlGraphEntity::ExtensionRoot(control)];
    entities.extend(decode_entities(&section).map_err(|error| anyhow!("the section: {error}"))?);
    // The control file names the library without a version.
    let sql = PgrxSql::build(entities.into_iter(), "idempotence".into(), false).map_err(|error| anyhow!(error))?;
    sql.to_file(script).map_err(|error| anyhow!("writing {script}: {error}"))
}
