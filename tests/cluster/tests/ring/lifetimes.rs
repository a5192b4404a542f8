//! Outcomes that live for different times, and changes of these times.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::ring::CURRENT;
use idempotence_cluster_tests::shop::{self, DATABASE};
use rand::RngExt;

use crate::aging::time_passes;

/// The requests whose outcome lives but is not found, or does not live but is found.
const WRONG: &str = "
    SELECT r.session, r.key, r.expires_at, t.status
      FROM recorded r CROSS JOIN LATERAL idem_lookup(r.session, r.key) t
     WHERE (t.status = 'succeeded') <> (r.expires_at > clock_timestamp())";

// Goal: an outcome is found until its time and not after it, even if ttl and retention are raised and
// lowered.
// Method: a random sequence of records, changes, sweeps and passing time, compared with a table of what was
// recorded. In the end, when all outcomes have expired, a few sweeps empty every segment.
pub async fn changes_of_ttl_and_retention_drop_no_outcome_that_lives(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection
        .text(
            "SELECT idem_create_session('by setting'), idem_create_session('own', ttl => '2 days');
             CREATE TABLE recorded (session text, key text, expires_at timestamptz)",
        )
        .await?;
    for step in 0..150 {
        let (session, hours) =
            (["by setting", "own"][rand::rng().random_range(0..2)], rand::rng().random_range(1..700));
        let sql = match rand::rng().random_range(0..8) {
            0 => format!("SELECT idem_alter_session('own', ttl => '{hours} hours')"),
            1 => {
                server.conf("idempotence.retention", &format!("{hours}h"))?;
                server.reload()?;
                let shown = format!("SELECT idempotence.retention() = interval '{hours} hours'");
                server.wait_for(DATABASE, &shown, "t").await?;
                // This connection reads the setting with its next statement.
                "SELECT".to_owned()
            }
            2 | 3 => time_passes(hours / 4),
            4 | 5 => "CALL idem_sweep()".to_owned(),
            _ => format!(
                "BEGIN; SELECT FROM idem_begin('{session}', 'k{step}');
                 INSERT INTO recorded SELECT '{session}', 'k{step}', idem_record('{session}', 'k{step}', '1'); COMMIT"
            ),
        };
        connection.text(&sql).await?;
        let wrong = connection.text(WRONG).await?;
        ensure!(wrong.is_empty(), "after step {step}, {sql}:\n{wrong}");
    }
    // A segment is kept for at most 700 hours. Three rounds turn the ring and empty the segments.
    connection.text("SELECT FROM idem_run('own', 'last', 'SELECT 1')").await?;
    for _ in 0..4 {
        connection.text(&time_passes(1500)).await?;
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

// Goal: if a role has many outcomes that live for years, they keep only a few times their own number of other
// outcomes for longer.
// Method: at first three in four outcomes live for ten years, later no new outcome does. The sweep moves only
// ten outcomes at a time.
pub async fn many_that_live_for_years_keep_only_so_much_of_others(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[("idempotence.sweep_batch", "10")])?;
    let connection = server.connect(DATABASE).await?;
    connection
        .text(
            "SELECT idem_create_session('day', ttl => '1 day'), idem_create_session('years', ttl => '3650 days');
             CREATE TABLE recorded (expires_at timestamptz)",
        )
        .await?;
    connection.text(&executed("years", 0, 300)).await?;
    let mut most = 0;
    for round in 0..60 {
        connection.text(&executed("day", round, 100)).await?;
        connection.text(&time_passes(14)).await?;
        connection.text("CALL idem_sweep()").await?;
        let kept: usize = connection.text(IN_SEGMENTS).await?.parse()?;
        most = most.max(kept);
        // Eight times the outcomes that live, twice because the ring learns their share only from samples,
        // and the outcomes that are recorded until the segment is emptied.
        ensure!(kept <= 300 * 8 * 2 + 100 * 10, "{kept} outcomes are kept in segments in round {round}");
    }
    ensure!(most > 1000, "nothing had to be kept");
    ensure!(connection.text(IN_SEGMENTS).await?.parse::<usize>()? <= 100 * 4, "they are still kept");
    let lost =
        "SELECT count(*) FROM generate_series(1, 300) n WHERE (idem_lookup('years', '0 ' || n)).status <> 'succeeded'";
    ensure!(connection.text(lost).await? == "0", "some that live are lost");
    Ok(())
}

// Goal: after a long time without a sweep, one sweep empties all segments that are due, also if an outcome in the
// second one has to be moved first.
// Method: a reader keeps segment 0 from being emptied while the ring turns away from segment 1, too. VACUUM FULL
// gives segment 0 another file, so that it is looked through from its beginning once the reader is gone.
pub async fn two_segments_that_are_due_at_once_are_both_emptied(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let (connection, reader) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    connection
        .text(
            "SELECT idem_create_session('day', ttl => '1 day'), idem_create_session('year', ttl => '365 days');
             CREATE TABLE recorded (expires_at timestamptz)",
        )
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
    connection.text(&executed("year", 1, 1)).await?;
    reader.text("BEGIN; LOCK idempotence.outcome_0 IN ACCESS SHARE MODE").await?;
    age(30).await?;
    sweep().await?;
    ensure!(current().await? == "2", "the ring has not turned to segment 2");
    reader.text("COMMIT").await?;
    connection.text("VACUUM FULL idempotence.outcome_0").await?;
    ensure!(connection.text("SELECT count(*) FROM idempotence.outcome_0").await? == "50");
    age(40).await?;
    sweep().await?;
    ensure!(connection.text(IN_SEGMENTS).await? == "0", "outcomes are left in segments");
    ensure!(connection.text("SELECT count(*) FROM idempotence.outcome_long").await? == "1");
    ensure!(connection.lookup("year", "1 1").await? == "succeeded", "the outcome for a year is lost");
    Ok(())
}
