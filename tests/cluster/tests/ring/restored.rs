//! The ring after a restore, which may put outcomes into any segment.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::LIMIT;
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::dump::dump_to_file;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_demo::host::run;

use super::aging::time_passes;

// Goal: a restore loses no outcome early, whatever the ttl, though the new ring knows nothing of the restored outcomes. A
// segment that got one which lives for long is kept, and the ring goes on with the other two.
// Method: outcomes in all three segments are restored. That in the second one lives for a year, the others for twenty days,
// and their session now has a ttl of an hour. Then time passes, and the ring turns.
pub async fn a_restored_ring_keeps_what_was_restored(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 hour')").await?;
    for (n, ttl) in [(0, "20 days"), (1, "365 days"), (2, "20 days")] {
        connection.text(&format!("SELECT idem_alter_session('s', ttl => '{ttl}')")).await?;
        connection.execute("s", &format!("old {n}"), "1").await?;
        connection
            .text(&format!(
                "WITH moved AS (DELETE FROM idempotence.outcome_long WHERE key = 'old {n}' RETURNING *)
                 INSERT INTO idempotence.outcome_{n} SELECT * FROM moved"
            ))
            .await?;
    }
    connection.text("SELECT idem_alter_session('s', ttl => '1 hour')").await?;
    connection.execute("s", "short", "1").await?;
    let dump = dump_to_file(&server, DATABASE)?;
    server.psql("postgres", "CREATE DATABASE restored")?;
    run(
        server.program("pg_restore").arg("-d").arg(server.connect_string("restored", "postgres")).arg(&dump),
        None,
        LIMIT,
    )?;

    let restored = server.connect("restored").await?;
    restored.text("CREATE TABLE recorded (expires_at timestamptz)").await?;
    for _ in 0..4 {
        restored.text("CALL idem_sweep()").await?;
        for n in 0..3 {
            ensure!(restored.lookup("s", &format!("old {n}")).await? == "succeeded", "old {n} is lost");
        }
        restored.text(&time_passes(4 * 24)).await?;
    }
    ensure!(restored.lookup("s", "short").await? == "unknown");
    for round in 0..12 {
        restored.execute("s", &format!("new {round}"), "1").await?;
        restored.text(&time_passes(24 * 24)).await?;
        restored.text("CALL idem_sweep()").await?;
        ensure!(restored.lookup("s", "old 1").await? == "succeeded", "the one for a year is lost in round {round}");
        let kept = "SELECT count(*) <= 1 FROM (SELECT FROM idempotence.outcome_0 UNION ALL SELECT FROM idempotence.outcome_2) o";
        ensure!(round < 2 || restored.text(kept).await? == "t", "the ring stands still in round {round}");
    }
    let ends = "SELECT count(*) FROM idempotence.outcome_1 o JOIN idempotence.segment s ON s.ends_at = o.expires_at AND s.number = 1";
    ensure!(restored.text(ends).await? == "1", "its segment has another end");
    for _ in 0..4 {
        restored.text(&time_passes(100 * 24)).await?;
        restored.text("CALL idem_sweep()").await?;
    }
    let kept = "SELECT (SELECT count(*) FROM idempotence.outcome_0) + (SELECT count(*) FROM idempotence.outcome_1) + (SELECT count(*) FROM idempotence.outcome_2)";
    ensure!(restored.text(kept).await? == "0", "expired outcomes are kept");
    Ok(())
}

/// SQL that puts outcomes into a segment, four on a page. Only the last outcome lives.
fn restore(outcomes: usize, days: u32) -> String {
    format!(
        "INSERT INTO idempotence.outcome_1 (digest, session, recorded_at, expires_at, recorded_by, class, key)
         SELECT gen_random_uuid(), s.id, now(), now() + CASE n WHEN {outcomes} THEN interval '{days} days' ELSE interval '-1 hour' END,
                current_user::regrole, 's', lpad(n::text, 1850, 'x')
           FROM generate_series(1, {outcomes}) n, idempotence.session s WHERE s.name = 's'"
    )
}

// Goal: a segment whose end is not known is looked through in parts, to its end, even if rows are put into it in the
// meantime. The look starts again if the rows were moved. The segment is kept until the last outcome has expired.
// Method: a segment of 5000 pages that would be due to be emptied, but for one outcome at its end. Outcomes are
// added after the first look, and VACUUM FULL rewrites the table after the next look.
pub async fn a_large_restored_segment_is_looked_through_in_parts(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 day')").await?;
    connection.text("CALL idem_sweep()").await?;
    connection.text(&restore(20_000, 50)).await?;
    connection
        .text("UPDATE idempotence.segment SET closed_at = now() - interval '2 days', ends_at = '-infinity' WHERE number = 1")
        .await?;
    let looked = "SELECT COALESCE(looked_to::text, 'all') FROM idempotence.segment WHERE number = 1";
    let look = async |more: &str, looked_to: &str| -> Result<()> {
        let step = "SELECT idempotence.sweep_step('empty')";
        let (found, at) = (connection.text(step).await?, connection.text(looked).await?);
        ensure!((found.as_str(), at.as_str()) == (more, looked_to), "{found}, {at}, not {more}, {looked_to}");
        Ok(())
    };
    look("t", "4096").await?;
    connection.text(&restore(20, 40)).await?;
    ensure!(connection.text(looked).await? == "0", "it may have been put anywhere");
    look("t", "4096").await?;
    connection.text("VACUUM FULL idempotence.outcome_1").await?;
    look("t", "4096").await?;
    look("t", "all").await?;
    let ends = "SELECT s.ends_at = (SELECT max(expires_at) FROM idempotence.outcome_1) FROM idempotence.segment s WHERE number = 1";
    ensure!(connection.text(ends).await? == "t", "it has another end");
    look("f", "all").await?;
    connection.text("CREATE TABLE recorded (expires_at timestamptz)").await?;
    let rows = "SELECT count(*) FROM idempotence.outcome_1";
    for (hours, left) in [(49 * 24, "20020"), (25, "0")] {
        connection.text(&time_passes(hours)).await?;
        look("f", "all").await?;
        ensure!(connection.text(rows).await? == left, "{left} should be left after {hours} hours more");
    }
    Ok(())
}
