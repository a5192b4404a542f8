//! The ring after a restore, which may put outcomes into any segment.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::LIMIT;
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::dump::dump_to_file;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_demo::host::run;

use crate::aging::time_passes;

// Goal: a restore loses no outcome early, whatever the ttl, though the new ring knows nothing of the restored
// outcomes.
// Method: outcomes in all three segments are restored. They live for a year, but their session now has a ttl
// of an hour. Then time passes, and the ring turns.
pub async fn a_restored_ring_keeps_what_was_restored(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '365 days')").await?;
    for n in 0..3 {
        connection.execute("s", &format!("old {n}"), "1").await?;
        connection
            .text(&format!(
                "WITH moved AS (DELETE FROM idempotence.outcome_0 WHERE key = 'old {n}' RETURNING *)
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
        restored.text(&time_passes(30 * 24)).await?;
        for n in 0..3 {
            ensure!(restored.lookup("s", &format!("old {n}")).await? == "succeeded", "old {n} is lost");
        }
    }
    ensure!(restored.lookup("s", "short").await? == "unknown");
    // The ring works. When all outcomes have expired, it turns and its segments are emptied as in any other
    // ring.
    for round in 0..4 {
        restored.execute("s", &format!("new {round}"), "1").await?;
        restored.text(&time_passes(366 * 24)).await?;
        restored.text("CALL idem_sweep()").await?;
    }
    let kept = "SELECT count(*) FROM idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2";
    ensure!(restored.text("SELECT count(*) FROM idempotence.outcome_long").await? == "0", "what was moved stays");
    ensure!(restored.text(kept).await? == "0", "expired outcomes are kept in every segment");
    Ok(())
}

/// SQL that puts outcomes into a segment, four on a page. Only the last outcome lives.
fn restore(outcomes: usize) -> String {
    format!(
        "INSERT INTO idempotence.outcome_1 (digest, session, recorded_at, expires_at, recorded_by, class, key)
         SELECT gen_random_uuid(), s.id, now(), now() + CASE n WHEN {outcomes} THEN interval '50 days' ELSE interval '-1 hour' END,
                current_user::regrole, 's', lpad(n::text, 1850, 'x')
           FROM generate_series(1, {outcomes}) n, idempotence.session s WHERE s.name = 's'"
    )
}

// Goal: a segment that is too large for one look is looked through in parts, to its end, even if rows are put
// into it in the meantime. The look starts again if the rows were moved.
// Method: a segment of 5000 pages that is due to be emptied, but for one outcome at its end. Outcomes are
// added after the first look, and VACUUM FULL rewrites the table after the next look.
pub async fn a_large_restored_segment_is_looked_through_in_parts(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 day')").await?;
    connection.text("CALL idem_sweep()").await?;
    let (step, looked) =
        ("SELECT idempotence.sweep_step('empty')", "SELECT looked_to FROM idempotence.segment WHERE number = 1");
    let rows = "SELECT (SELECT count(*) FROM idempotence.outcome_1), (SELECT count(*) FROM idempotence.outcome_long)";

    connection.text(&restore(20_000)).await?;
    connection
        .text("UPDATE idempotence.segment SET closed_at = now() - interval '2 days', keep_us = 1 WHERE number = 1")
        .await?;
    let look = async |more: &str, looked_to: &str| -> Result<()> {
        let (found, at) = (connection.text(step).await?, connection.text(looked).await?);
        ensure!((found.as_str(), at.as_str()) == (more, looked_to), "{found}, {at}, not {more}, {looked_to}");
        Ok(())
    };
    look("t", "4096").await?;
    connection.text(&restore(20)).await?;
    ensure!(connection.text(looked).await? == "0", "it may have been put anywhere");
    look("t", "4096").await?;
    connection.text("VACUUM FULL idempotence.outcome_1").await?;
    look("t", "4096").await?;
    ensure!(connection.text(rows).await? == "20020|0");
    // The sweep has looked at all rows. Then it moves the outcomes that live.
    look("t", "4096").await?;
    look("t", "4096").await?;
    ensure!(connection.text(rows).await? == "20018|2", "what lives has not moved");
    look("f", "5005").await?;
    ensure!(connection.text(rows).await? == "0|2", "expired outcomes stay");
    Ok(())
}
