//! A frozen version: the install script of a released version, and the rows that its library wrote for the
//! fixture. Later versions are tested on these rows, because the old library is not kept.
//!
//! `frozen/idempotence--VERSION.sql` is the released script, and `frozen/VERSION.sql` has the rows. This
//! command freezes a new version when it is released:
//! `FREEZE=VERSION cargo test -p idempotence-cluster-tests --test extension_upgrade -- --ignored`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use idempotence_demo::host::run;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::fixture::Fixture;
use crate::limits::LIMIT;
use crate::version::Version;

/// The age of the keys that carry their time. They are old so that a machine whose clock is behind ours
/// accepts them too.
pub const AGE: Duration = Duration::from_secs(2_000 * 86_400);

/// The tables of the extension, with their columns.
const TABLES: &str = "
    SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'idempotence'::regnamespace AND c.relkind = 'r' GROUP BY c.relname ORDER BY c.relname";

/// Disables the triggers, which call the new library, and empties the tables that have rows from the start.
const BEFORE: &str = "
    BEGIN;
    CREATE TEMPORARY TABLE put_aside ON COMMIT DROP AS
      SELECT tgrelid::regclass AS relation, tgname, tgenabled FROM pg_trigger
      WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'idempotence'::regnamespace) AND NOT tgisinternal;
    DO $$ DECLARE aside record; BEGIN
      FOR aside IN SELECT * FROM put_aside LOOP
        EXECUTE format('ALTER TABLE %s DISABLE TRIGGER %I', aside.relation, aside.tgname);
      END LOOP;
    END $$;
    DELETE FROM idempotence.secret;
    DELETE FROM idempotence.segment;";

/// Moves all times by the time that has passed since the rows were written, and enables the triggers again.
const AFTER: &str = "
    DO $$ DECLARE moved record; aside record; BEGIN
      FOR moved IN SELECT c.oid::regclass AS relation, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
               WHERE c.relnamespace = 'idempotence'::regnamespace AND c.relkind = 'r' AND a.atttypid = 'timestamptz'::regtype LOOP
        EXECUTE format('UPDATE %s SET %I = %2$I + (now() - %3$L::timestamptz)', moved.relation, moved.attname, 'FROZEN_AT');
      END LOOP;
      FOR aside IN SELECT * FROM put_aside LOOP
        EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', aside.relation, CASE aside.tgenabled WHEN 'A' THEN 'ALWAYS' ELSE '' END, aside.tgname);
      END LOOP;
    END $$;
    COMMIT;";

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("frozen").join(name)
}

/// Writes the rows of a database that the fixture has filled to the file of this version.
pub fn freeze(cluster: &Cluster, database: &str, fixture: &Fixture, version: &str) -> Result<()> {
    let at = cluster.psql(database, "SELECT clock_timestamp()")?;
    let mut rows = format!("-- names {}\n-- at {}\n", fixture.names(), at.trim_end());
    for line in cluster.psql(database, TABLES)?.lines() {
        let (table, columns) = line.split_once('|').context("a table has columns")?;
        let of_table = cluster.psql(database, &format!("COPY idempotence.{table} ({columns}) TO STDOUT"))?;
        rows += &format!("COPY idempotence.{table} ({columns}) FROM STDIN;\n{of_table}\\.\n");
    }
    fs::write(path(&format!("{version}.sql")), rows)?;
    let script = format!("idempotence--{version}.sql");
    fs::copy(script_of(Version::Pg15, &script)?, path(&script))?;
    Ok(())
}

/// The path at which a server of this version looks for a script of the extension.
fn script_of(version: Version, script: &str) -> Result<PathBuf> {
    let sharedir = run(Command::new(version.pg_config()?).arg("--sharedir"), None, LIMIT)?;
    Ok(PathBuf::from(sharedir.trim_end()).join("extension").join(script))
}

/// Installs the frozen script, so that the servers of `version` can create the extension at the frozen
/// version.
pub fn install(version: Version, frozen: &str) -> Result<()> {
    let script = format!("idempotence--{frozen}.sql");
    let target = script_of(version, &script)?;
    // Another test may read the script at the same time.
    let new = target.with_extension(format!("new{}", rand::random::<u64>()));
    fs::copy(path(&script), &new).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &target)?;
    Ok(())
}

/// Loads the rows into a database that has the extension at the frozen version, and moves their times to now.
/// The result is what the library of that version would have written.
pub fn load(cluster: &Cluster, database: &str, frozen: &str) -> Result<Fixture> {
    let rows = fs::read_to_string(path(&format!("{frozen}.sql")))?;
    let told = |what: &str| {
        let line = rows.lines().find_map(|line| line.strip_prefix(&format!("-- {what} ")).map(str::to_owned));
        line.with_context(|| format!("the frozen rows do not tell their {what}"))
    };
    let names: Value = serde_json::from_str(&told("names")?)?;
    let after = AFTER.replace("FROZEN_AT", &told("at")?);
    cluster.psql(database, &format!("{BEFORE}\n{rows}\n{after}"))?;
    Fixture::named(&names)
}
