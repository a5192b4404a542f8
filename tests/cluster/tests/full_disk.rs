//! A full disk: a small file system, mounted for the test. Where this machine allows no mount, the tests say so and pass.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use idempotence_cluster_tests::ring::HURRY;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{LIMIT, Runbook, Version, on_each_version};
use idempotence_demo::server::Server;
use tokio::time::{Duration, Instant, sleep};

on_each_version!(what_is_refused_on_a_full_disk_had_no_effect, the_page_about_a_full_disk_keeps_its_promises,);

/// A small file system. It is unmounted when it is dropped.
struct Small(PathBuf);

impl Small {
    /// `None`: no file system can be mounted here.
    fn mount(size: &str) -> Result<Option<Small>> {
        let place = std::env::temp_dir().join(format!("idempotence-small-{}", rand::random::<u32>()));
        fs::create_dir(&place)?;
        let mount = ["-t", "tmpfs", "-o", &format!("size={size},mode=1777"), "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(&place).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Ok(Some(Small(place)));
        }
        fs::remove_dir(&place)?;
        println!("skipped: no file system can be mounted here");
        Ok(None)
    }

    /// The bytes that are free.
    fn free(&self) -> Result<u64> {
        let told = Command::new("df").args(["--output=avail", "-B1"]).arg(&self.0).output()?;
        let told = String::from_utf8(told.stdout)?;
        told.split_whitespace().last().context("df tells nothing")?.parse().context(told)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// Executes requests with large answers until the disk is full. Gives the error.
fn fill(server: &Server) -> Result<String> {
    for round in 1..1000 {
        let run = format!(
            "SELECT count(idem_run('payments', 'fill {round} ' || n, 'SELECT jsonb_agg(gen_random_uuid()) FROM generate_series(1, 100)'))
             FROM generate_series(1, 500) n"
        );
        if let Err(error) = server.psql(DATABASE, &run) {
            return Ok(format!("{error:#}"));
        }
    }
    bail!("the disk is never full")
}

// Goal: what is refused because the disk is full has no effect, and replays go on. health is critical.
// Method: the segments lie on a small file system, and the WAL does not.
async fn what_is_refused_on_a_full_disk_had_no_effect(version: Version) -> Result<()> {
    let Some(small) = Small::mount("40m")? else { return Ok(()) };
    let server = shop::start(version)?;
    let place = small.0.join("outcomes");
    fs::create_dir(&place)?;
    let chown = Command::new("chown").arg("--reference").arg(server.data_dir()).arg(&place).status()?;
    ensure!(chown.success(), "chown failed");
    server.psql(DATABASE, &format!("CREATE TABLESPACE small LOCATION '{}'", place.display()))?;
    for segment in 0..3 {
        server.psql(DATABASE, &format!("ALTER TABLE idempotence.outcome_{segment} SET TABLESPACE small"))?;
    }
    server.psql(DATABASE, "CREATE TABLE effect (n integer); SELECT idem_create_session('payments')")?;
    let connection = server.connect(DATABASE).await?;
    connection.execute("payments", "before", "1").await?;
    let level = "SELECT level FROM idempotence.health WHERE name = 'growth'";
    let error = fill(&server)?;
    ensure!(error.contains("could not extend file"), "{error}");
    ensure!(
        connection.text(level).await? == "2",
        "{}",
        connection.text("SELECT detail FROM idempotence.health WHERE name = 'growth'").await?
    );
    let large = "SELECT status FROM idem_run('payments', 'refused', 'WITH e AS (INSERT INTO effect VALUES (1)) SELECT jsonb_agg(gen_random_uuid()) FROM generate_series(1, 20000)')";
    ensure!(connection.sqlstate(large).await? == "53100");
    ensure!(connection.replay("payments", "before").await? == "succeeded|1");
    ensure!(connection.lookup("payments", "refused").await? == "unknown");
    ensure!(connection.text("SELECT count(*) FROM effect").await? == "0");
    server.psql(DATABASE, "SELECT idem_drop_session('payments')")?;
    Ok(())
}

// Goal: what operations.md says of a full disk is so: each of its commands, word for word, frees space at once, and what it
// warns of frees none. What was done is known afterwards.
// Method: a server whose data and WAL lie on a small file system, with a slot that holds back WAL, a segment that is due and
// held, and an index for lists. Requests are executed until the server stops.
async fn the_page_about_a_full_disk_keeps_its_promises(version: Version) -> Result<()> {
    let Some(small) = Small::mount("250m")? else { return Ok(()) };
    let settings = [
        ("fsync", "off"),
        ("min_wal_size", "32MB"),
        ("max_wal_size", "64MB"),
        ("autovacuum", "off"),
        ("wal_level", "replica"),
    ];
    let builder = Server::builder(version.pg_config()?).dir(&small.0);
    let server = settings.iter().fold(builder, |builder, (name, value)| builder.conf(name, value)).start()?;
    ensure!(server.home().starts_with(&small.0), "the server is not on the small file system");
    let sh = |command: &str| -> Result<()> {
        let done = Command::new("sh").arg("-ec").arg(command).env("PGDATA", server.data_dir()).status()?;
        ensure!(done.success(), "{command}: {done}");
        Ok(())
    };
    let mut page = Runbook::of("### A full disk")?;
    sh(&page.next("sh")?)?;

    server.psql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
    server.psql(DATABASE, "CREATE EXTENSION idempotence")?;
    Runbook::of("### On-call roles")?.sql(&server, DATABASE)?;
    server.psql(
        DATABASE,
        "SELECT idem_create_session('payments', ttl => '1 hour');
         CREATE INDEX outcome_0_key ON idempotence.outcome_0 (session, key); CREATE INDEX outcome_1_key ON idempotence.outcome_1 (session, key)",
    )?;
    // Segment 0 is due, with 8 MB that have expired, and is not swept yet.
    let old = "SELECT count(idem_run('payments', 'old ' || n, 'SELECT jsonb_agg(gen_random_uuid()) FROM generate_series(1, 200)')) FROM generate_series(1, 1000) n";
    server.psql(DATABASE, old)?;
    server.psql(DATABASE, HURRY)?;
    for _ in 0..2 {
        server.psql(DATABASE, "CALL idem_sweep()")?;
    }
    server.psql(
        DATABASE,
        "UPDATE idempotence.segment SET closed_at = closed_at - interval '30 days', ends_at = ends_at - interval '30 days' WHERE number = 0;
         UPDATE idempotence.outcome_0 SET expires_at = now() - interval '1 day';
         SELECT idem_run('payments', 'before', 'SELECT 1');
         SELECT pg_create_physical_replication_slot('left_behind', true)",
    )?;
    let error = fill(&server)?;
    ensure!(error.contains("could not extend file"), "{error}");
    // What the page warns of.
    let panic = "PANIC:  could not write to file \"pg_wal/xlogtemp";
    for _ in 0..100 {
        if server.log().contains(panic) {
            break;
        }
        let _ = server.psql(DATABASE, "SELECT idem_forget_prefix('payments', 'fill', 'no room')");
    }
    ensure!(server.log().contains(panic), "{}", server.log());
    // It tries to recover, finds no room for that either, and ends.
    let gave_up = Instant::now();
    while server.data_dir().join("postmaster.pid").exists() {
        ensure!(gave_up.elapsed() < LIMIT, "the server lives on: {}", server.log());
        sleep(Duration::from_millis(50)).await;
    }
    server.start().expect_err("the server comes up on a full disk");

    // Throw the ballast away.
    let before = small.free()?;
    sh(&page.next("sh")?)?;
    freed(&small, "the ballast", before, 60 << 20)?;
    server.start()?;
    // What the page warns of.
    let before = small.free()?;
    server.psql(
        DATABASE,
        "SELECT idem_forget_prefix('payments', 'fill 1 ', 'no room'); SELECT idem_alter_session('payments', ttl => '50 minutes')",
    )?;
    ensure!(small.free()? <= before, "what frees nothing has freed {} bytes", small.free()? - before);
    for (what, least) in [("the slot and its WAL", 16 << 20), ("the sweep", 8 << 20), ("the indexes", 100 << 10)] {
        let before = small.free()?;
        page.sql(&server, DATABASE)?;
        freed(&small, what, before, least)?;
    }
    let level = page.sql(&server, DATABASE)?;
    ensure!(level.contains("are free"), "{level}");
    page.end()?;
    let replay = server.psql(DATABASE, "SELECT replayed, status FROM idem_begin('payments', 'before')")?;
    ensure!(replay.trim_end() == "t|succeeded", "{replay}");
    let new = server.psql(DATABASE, "SELECT replayed, status FROM idem_run('payments', 'after', 'SELECT 1')")?;
    ensure!(new.trim_end() == "f|succeeded", "{new}");
    server.stop_fast()
}

fn freed(small: &Small, what: &str, before: u64, least: u64) -> Result<()> {
    let now = small.free()?;
    ensure!(now >= before + least, "{what} freed {} bytes", now as i64 - before as i64);
    Ok(())
}
