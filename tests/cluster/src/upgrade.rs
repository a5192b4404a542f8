//! `pg_upgrade` from PostgreSQL 15 to 18.

use std::path::Path;

use anyhow::{Context, Result};
use idempotence_demo::host::run;

use crate::cluster::Cluster;
use crate::limits::LIMIT;
use crate::version::Version;

/// Upgrades `old`, which has database `shop`, into the empty cluster `new`. This stops both, and starts `new` again.
pub fn upgrade(old: &Cluster, new: &Cluster, mode: &str) -> Result<()> {
    // From 15.20 on, a server notes a version in the options of each column, for any table. An older pg_dump
    // of version 18 writes these options in a form that its server refuses.
    for database in ["postgres", "template1", "shop"] {
        old.psql(
            database,
            "SET allow_system_table_mods = on;
             UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%}'",
        )?;
    }
    old.stop_fast()?;
    new.stop_fast()?;
    // PostgreSQL 18 creates clusters with checksums, and 15 does not. pg_upgrade needs clusters that are
    // alike.
    run(new.program("pg_checksums").args(["--disable", "--no-sync", "-D"]).arg(new.data_dir()), None, LIMIT)?;
    let mut pg_upgrade = new.program("pg_upgrade");
    pg_upgrade
        .args([mode, "--no-sync", "-U", "postgres", "-b"])
        .arg(Version::Pg15.bindir()?)
        .arg("-B")
        .arg(Version::Pg18.bindir()?)
        .arg("-d")
        .arg(old.data_dir())
        .arg("-D")
        .arg(new.data_dir())
        .arg("-s")
        .arg(new.home())
        // pg_upgrade writes into its working directory.
        .current_dir(new.home());
    run(&mut pg_upgrade, None, LIMIT).with_context(|| failures(&new.data_dir().join("pg_upgrade_output.d")))?;
    new.start()
}

/// The errors of the programs that pg_upgrade has called. If it fails, it leaves their logs.
fn failures(directory: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(directory) else { return String::new() };
    let mut found = String::new();
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            found += &failures(&entry.path());
        } else if let Ok(log) = std::fs::read_to_string(entry.path()) {
            log.lines()
                .filter(|line| line.contains("ERROR") || line.contains("error:"))
                .for_each(|line| found = format!("{found}{line}\n"));
        }
    }
    found
}
