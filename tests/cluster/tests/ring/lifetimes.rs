//! Outcomes that live for different times, and changes of these times.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::ring::CURRENT;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Version, effort};
use rand::RngExt;

use super::aging::{clock_goes, time_passes};

/// The requests whose outcome lives but is not found, or does not live but is found.
const WRONG: &str = "
    SELECT r.session, r.key, r.expires_at, t.status
      FROM recorded r CROSS JOIN LATERAL idem_lookup(r.session, r.key) t
     WHERE (t.status = 'succeeded') <> (r.expires_at > clock_timestamp())";

/// What a restore may do, and a DBA: rows go from one table of outcomes to another, of which nobody looks where they were,
/// or the rows of a table lie elsewhere.
fn disturbance() -> String {
    let table = || ["outcome_0", "outcome_1", "outcome_2", "outcome_long"][rand::rng().random_range(0..4)];
    // What lives long is the most dangerous where it does not belong.
    let (from, to) = (if rand::random() { "outcome_long" } else { table() }, table());
    if from == to {
        return format!("VACUUM FULL idempotence.{from}");
    }
    format!(
        "WITH moved AS (DELETE FROM idempotence.{from} WHERE random() < 0.5 RETURNING *)
         INSERT INTO idempotence.{to} SELECT * FROM moved"
    )
}

// Goal: an outcome is found until its time and not after it, whatever becomes of ttl and retention, wherever a restore puts
// it, and by how much the clock was ahead. Nothing is kept for longer than half as much again as the greatest retention, and what
// lives for longer.
// Method: a random sequence of records, imports, redactions, changes, restores, sweeps, single steps, crashes, a clock
// that was ahead, and passing time, compared with a table of what was recorded. In the end, when all outcomes have
// expired, a few sweeps empty every table.
pub async fn changes_of_ttl_and_retention_drop_no_outcome_that_lives(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let mut connection = server.connect(DATABASE).await?;
    connection
        .text(
            "SELECT idem_create_session('by setting'), idem_create_session('own', ttl => '2 days');
             CREATE TABLE recorded (session text, key text, expires_at timestamptz)",
        )
        .await?;
    let begun = Instant::now();
    let (mut step, mut was_full) = (0, [0; 2]);
    while step < 300 || begun.elapsed() < effort::minutes(Duration::ZERO) {
        step += 1;
        let (session, hours) =
            (["by setting", "own"][rand::rng().random_range(0..2)], rand::rng().random_range(1..700));
        let sql = match rand::rng().random_range(0..26) {
            0 | 1 => format!("SELECT idem_alter_session('own', ttl => '{hours} hours')"),
            2 | 3 => {
                server.conf("idempotence.retention", &format!("{hours}h"))?;
                server.reload()?;
                let shown = format!("SELECT idempotence.retention() = interval '{hours} hours'");
                server.wait_for(DATABASE, &shown, "t").await?;
                // This connection reads the setting with its next statement.
                "SELECT".to_owned()
            }
            4..8 => time_passes(hours / 4),
            8..11 => "CALL idem_sweep()".to_owned(),
            11 | 12 => {
                let name = ["empty", "turn", "close", "long"][rand::rng().random_range(0..4)];
                format!("SELECT idempotence.sweep_step('{name}')")
            }
            13 | 24 | 25 => disturbance(),
            14 => clock_goes(&format!("+ interval '{hours} hours'")),
            15 => {
                server.crash()?;
                connection = server.connect(DATABASE).await?;
                "SELECT".to_owned()
            }
            16 => format!(
                "BEGIN; SELECT idem_import('{session}', $$SELECT 'k{step}' AS key, now() + interval '1 s' * (random() * 3000) AS expires_at$$, 'a test');
                 INSERT INTO recorded SELECT '{session}', key, expires_at FROM (
                   TABLE idempotence.outcome_0 UNION ALL TABLE idempotence.outcome_1 UNION ALL TABLE idempotence.outcome_2
                   UNION ALL TABLE idempotence.outcome_long) o WHERE key = 'k{step}'; COMMIT"
            ),
            17 => "SELECT idem_redact(session, key, 'a test') FROM recorded WHERE random() < 0.1".to_owned(),
            _ => format!(
                "BEGIN; SELECT FROM idem_begin('{session}', 'k{step}');
                 INSERT INTO recorded SELECT '{session}', 'k{step}', idem_record('{session}', 'k{step}', '1'); COMMIT"
            ),
        };
        connection.text(&sql).await?;
        let wrong = connection.text(WRONG).await?;
        ensure!(wrong.is_empty(), "after step {step}, {sql}:\n{wrong}");
        let rows: usize = connection.text(IN_SEGMENTS).await?.parse()?;
        let long: usize = connection.text("SELECT count(*) FROM idempotence.outcome_long").await?.parse()?;
        was_full = [was_full[0].max(rows), was_full[1].max(long)];
    }
    ensure!(was_full.iter().all(|most| *most > 2), "{was_full:?} outcomes at most in segments, and beside them");
    // Three rounds turn the ring and empty the segments.
    connection.text("SELECT FROM idem_run('own', 'last', 'SELECT 1')").await?;
    for _ in 0..4 {
        connection.text(&time_passes(3000)).await?;
        connection.text("CALL idem_sweep()").await?;
    }
    let left = "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'outcome%'
                  AND relnamespace = 'idempotence'::regnamespace";
    ensure!(connection.text(left).await? == "0", "there are rows left");
    Ok(())
}

/// SQL that executes this number of requests, each of them for the first time.
fn executed(session: &str, round: usize, requests: usize) -> String {
    format!("SELECT count(idem_run('{session}', '{round} ' || n, 'SELECT 1')) FROM generate_series(1, {requests}) n")
}

/// The number of outcomes in the segments.
const IN_SEGMENTS: &str =
    "SELECT (SELECT count(*) FROM idempotence.outcome_0) + (SELECT count(*) FROM idempotence.outcome_1)
                                + (SELECT count(*) FROM idempotence.outcome_2)";

// Goal: a few outcomes that live for a year, and sessions with a ttl of ten years, do not keep other outcomes
// for longer.
// Method: turns of the ring with one outcome for a year among fifty outcomes for a day. In the end, each
// outcome for a year is found.
pub async fn a_year_among_days_does_not_keep_the_days(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection
        .text(
            "SELECT idem_create_session('day', ttl => '1 day'), idem_create_session('year', ttl => '365 days'),
                    idem_create_session('never', ttl => '3650 days');
             SELECT idem_drop_session('never'); CREATE TABLE recorded (expires_at timestamptz)",
        )
        .await?;
    for round in 0..16 {
        connection.text(&executed("day", round, 50)).await?;
        connection.text(&executed("year", round, 1)).await?;
        connection.text(&time_passes(14)).await?;
        connection.text("CALL idem_sweep()").await?;
        let kept: usize = connection.text(IN_SEGMENTS).await?.parse()?;
        // One and a half days of outcomes, and what was recorded until the next sweep.
        ensure!(kept <= 51 * 4, "{kept} outcomes are kept in segments in round {round}");
    }
    for round in 0..16 {
        ensure!(
            connection.lookup("year", &format!("{round} 1")).await? == "succeeded",
            "that of round {round} is lost"
        );
    }
    ensure!(connection.text("SELECT count(*) >= 12 FROM idempotence.outcome_long").await? == "t");
    Ok(())
}

// Goal: outcomes of one role that live for years keep no other outcome for longer, also if they are a fourth of all. If they
// are most of all, the others are kept for as long as idempotence.retention says.
// Method: turns of the ring with a fourth that lives for ten years, then with more of them than others.
pub async fn many_that_live_for_years_keep_nothing_of_others(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[("idempotence.retention", "3d")])?;
    let connection = server.connect(DATABASE).await?;
    connection
        .text(
            "SELECT idem_create_session('day', ttl => '1 day'), idem_create_session('years', ttl => '3650 days');
             CREATE TABLE recorded (expires_at timestamptz)",
        )
        .await?;
    let most_of = async |first: usize, years: usize| -> Result<usize> {
        let mut most = 0;
        for round in first..first + 20 {
            connection.text(&executed("day", round, 60)).await?;
            connection.text(&executed("years", round, years)).await?;
            connection.text(&time_passes(14)).await?;
            connection.text("CALL idem_sweep()").await?;
            // The first rounds begin with what was before.
            if round >= first + 10 {
                most = most.max(connection.text(IN_SEGMENTS).await?.parse()?);
            }
        }
        Ok(most)
    };
    let none = most_of(0, 0).await?;
    let a_fourth = most_of(20, 20).await?;
    ensure!(a_fourth <= none, "{a_fourth} outcomes are kept in segments, without those of years {none}");
    let most = most_of(40, 80).await?;
    // Four and a half days, and what was recorded until the next sweep.
    ensure!(most > none && most <= 60 * 10, "{most} outcomes are kept in segments");
    let health = "SELECT status, detail FROM idempotence.health WHERE name = 'retention'";
    let told = connection.text(health).await?;
    ensure!(told.starts_with("warning|most outcomes that were recorded of late live longer"), "{told}");
    let lost =
        "SELECT count(*) FROM generate_series(20, 59) r, generate_series(1, CASE WHEN r < 40 THEN 20 ELSE 80 END) n
                 WHERE (idem_lookup('years', r || ' ' || n)).status <> 'succeeded'";
    ensure!(connection.text(lost).await? == "0", "some that live are lost");
    ensure!(most_of(60, 0).await? <= none, "they are still kept");
    ensure!(connection.text(health).await?.starts_with("ok|"), "health complains still");
    Ok(())
}

// Goal: after a long time without a sweep, one sweep empties all segments that are due, and what was recorded meanwhile with
// them: its segment's end was late enough.
// Method: a reader keeps two segments from being emptied, and segment 2 takes outcomes for longer than was foreseen.
pub async fn two_segments_that_are_due_at_once_are_both_emptied(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let (connection, reader) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    connection
        .text("SELECT idem_create_session('day', ttl => '1 day'); CREATE TABLE recorded (expires_at timestamptz)")
        .await?;
    let age = async |hours| connection.text(&time_passes(hours)).await;
    let sweep = async || connection.text("CALL idem_sweep()").await;
    let current = async || connection.text(CURRENT).await;

    // The first sweep closes the segments that nothing was recorded in yet.
    sweep().await?;
    connection.text(&executed("day", 0, 50)).await?;
    age(14).await?;
    sweep().await?;
    ensure!(current().await? == "1", "the ring has not turned to segment 1");
    connection.text(&executed("day", 1, 50)).await?;
    reader.text("BEGIN; LOCK idempotence.outcome_0, idempotence.outcome_1 IN ACCESS SHARE MODE").await?;
    age(30).await?;
    sweep().await?;
    ensure!(current().await? == "2", "the ring has not turned to segment 2");
    let mut round = 2;
    while round < 6 {
        connection.text(&executed("day", round, 50)).await?;
        age(10).await?;
        sweep().await?;
        ensure!(current().await? == "2", "the ring has turned to a segment that is not empty");
        round += 1;
    }
    ensure!(connection.text("SELECT count(*) FROM idempotence.outcome_long").await? == "0", "its end was too soon");
    reader.text("COMMIT").await?;
    ensure!(connection.text("SELECT count(*) FROM idempotence.outcome_0").await? == "50");
    age(40).await?;
    sweep().await?;
    age(40).await?;
    sweep().await?;
    ensure!(connection.text(IN_SEGMENTS).await? == "0", "outcomes are left in segments");
    Ok(())
}
