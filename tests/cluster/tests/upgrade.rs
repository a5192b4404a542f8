//! `pg_upgrade` of a cluster from PostgreSQL 15 to 18.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::{Cluster, LIMIT, Version};
use idempotence_cluster_tests::{fixture, frozen};
use idempotence_demo::host::run;

/// Makes `new`, which is empty, what `old` was. Both are stopped by it; `new` is started again.
fn upgrade(old: &Cluster, new: &Cluster, mode: &str) -> Result<()> {
    // From 15.20 on a server notes a version in the options of each column, and a pg_dump of 18 that is
    // older than that writes them down in a form that its server does not take, of any table.
    for database in ["postgres", "template1", "shop"] {
        old.psql(
            database,
            "SET allow_system_table_mods = on;
             UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%}'",
        )?;
    }
    old.stop_fast()?;
    new.stop_fast()?;
    // PostgreSQL 18 makes its clusters with checksums, 15 did not; they must be alike.
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
        // It writes into the directory that it is called from.
        .current_dir(new.home());
    run(&mut pg_upgrade, None, LIMIT).with_context(|| failures(&new.data_dir().join("pg_upgrade_output.d")))?;
    new.start()
}

/// What the programs that it calls have said in vain: it leaves their logs where it fails.
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

/// With the library preloaded, as it may be on either side; the worker has its one look and then rests.
const PRELOADED: [(&str, &str); 2] = [("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1d")];

async fn an_upgrade_keeps_everything(mode: &str, create_extension: &str, settings: &[(&str, &str)]) -> Result<()> {
    let old = Cluster::start_with(Version::Pg15, settings)?;
    fixture::create_roles(&old)?;
    old.psql("postgres", "CREATE DATABASE shop")?;
    old.psql("shop", create_extension)?;
    let fixture = fixture::fill(&old, "shop").await?;
    // Types aside: the newer server counts row types and array types too.
    let members =
        "SELECT pg_describe_object(d.classid, d.objid, 0) FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
                   WHERE e.extname = 'idempotence' AND d.deptype = 'e' AND d.classid <> 'pg_type'::regclass ORDER BY 1";
    let members_before = old.psql("shop", members)?;

    let new = Cluster::start_with(Version::Pg18, settings)?;
    upgrade(&old, &new, mode)?;
    let members = new.psql("shop", members)?;
    ensure!(members == members_before, "the extension's members were:\n{members_before}\nand are:\n{members}");
    ensure!(new.psql("shop", "SELECT count(*) FROM idempotence.secret")? == "1\n", "there is another secret");
    // The old server was stopped in order: nothing unlogged is lost either.
    let app = fixture::connect(&new, "shop", "app").await?;
    ensure!(app.answer(&fixture.clients.unsaved, "1").await? == "started|");
    fixture.check(&new, "shop").await?;
    // And it goes when it is told to.
    new.psql("shop", "DROP EXTENSION idempotence")?;
    Ok(())
}

// Goal: an upgraded cluster answers what the old one was asked.
// Method: pg_upgrade by copying; rows and privileges compared, then every request sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_by_copying_keeps_everything() -> Result<()> {
    an_upgrade_keeps_everything("--copy", "CREATE EXTENSION idempotence", &[]).await
}

// Goal: the same with the old cluster's own files, and with the library preloaded in both servers.
// Method: pg_upgrade by linking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_by_linking_keeps_everything() -> Result<()> {
    an_upgrade_keeps_everything("--link", "CREATE EXTENSION idempotence", &PRELOADED).await
}

// Goal: the same where the extension shares the schema of its tables.
// Method: the schema is made before the extension, so that it is no member of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_keeps_the_extension_in_its_own_schema() -> Result<()> {
    let create = "CREATE SCHEMA idempotence; CREATE EXTENSION idempotence SCHEMA idempotence";
    an_upgrade_keeps_everything("--copy", create, &[]).await
}

// Goal: the server may be upgraded before the extension: the new server's library has what the old version names.
// Method: pg_upgrade of a cluster that is at a released version with all it kept; the update of the extension after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_may_come_before_that_of_the_extension() -> Result<()> {
    frozen::install(Version::Pg15, "1.0.0")?;
    let old = Cluster::start_with(Version::Pg15, &PRELOADED)?;
    fixture::create_roles(&old)?;
    old.psql("postgres", "CREATE DATABASE shop")?;
    old.psql("shop", "CREATE EXTENSION idempotence VERSION '1.0.0'")?;
    fixture::grant(&old.connect("shop").await?).await?;
    let kept = frozen::load(&old, "shop", "1.0.0")?;

    let new = Cluster::start_with(Version::Pg18, &PRELOADED)?;
    upgrade(&old, &new, "--copy")?;
    let app = fixture::connect(&new, "shop", "app").await?;
    ensure!(app.sqlstate("SELECT FROM idem_begin('payments', 'paid')").await? == "55000");
    new.psql("shop", "ALTER EXTENSION idempotence UPDATE")?;
    ensure!(app.answer(&kept.clients.unsaved, "1").await? == "started|");
    kept.check_works(&new, "shop").await
}
