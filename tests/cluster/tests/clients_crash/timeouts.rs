//! How long a session lives after a crash or a restart, and the signs of life that it gets then.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::client::{Brief, UP, id_of};
use idempotence_cluster_tests::shop::{DATABASE, start};
use tokio::sync::Barrier;

use super::killing::{EITHER, Killed, crash};

// Goal: a crash does not count as silence of the client: a saved session gets its full timeout from the time
// when the server came up, and no more.
// Method: see `Brief`.
pub async fn a_crash_gives_a_saved_session_its_full_timeout_anew(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let sessions = Brief::register(&server.reconnect(DATABASE).await?).await?;
        sessions.check_full_timeout(&crash(&server, killed).await?).await?;
    }
    Ok(())
}

// Goal: the time in which the server is down counts neither for the calls, nor for the views, nor for the
// limit of sessions.
// Method: an orderly restart long after the last signs of life of two sessions, one of which is saved.
pub async fn an_orderly_restart_ends_no_session_for_those_who_watch_either(version: Version) -> Result<()> {
    let server = start(version)?;
    let before = server.connect(DATABASE).await?;
    let sessions = [before.register("timeout => '1 min'").await?, before.register("timeout => '1 min'").await?];
    before.execute(&sessions[0], "1", "1").await?;
    before.text("UPDATE idempotence.session_live SET last_seen = last_seen - interval '1 hour'").await?;
    server.stop_fast()?;
    server.start()?;
    let after = server.reconnect(DATABASE).await?;
    let alive = format!("SELECT count(*) FROM idempotence.sessions WHERE expires_at = {UP} + timeout");
    ensure!(after.text(&alive).await? == "2", "the view sessions has other ends than the calls");
    let detail = after.text("SELECT detail FROM idempotence.health WHERE name = 'client sessions'").await?;
    ensure!(detail == "2 at work, of which 0 are silent for longer than their timeout", "health says: {detail}");
    let third = after.outcome_of("SET idempotence.max_sessions_per_role = 2; SELECT FROM idem_register()").await?;
    ensure!(third == "ID009", "a third of two sessions: {third}");
    for session in &sessions {
        ensure!(after.answer(session, "2").await? == "started|", "a session has ended with the restart");
    }
    Ok(())
}

// Goal: the first two signs of life after a crash do not wait for each other, and together they make one row.
// Method: a standby that does not exist holds one transaction between its sign of life and the end of its
// commit, while others give signs too. Then many pairs of signs at once, for a session whose row is deleted
// each time, as by a crash.
pub async fn signs_of_life_that_restore_a_session_do_not_wait_for_each_other(version: Version) -> Result<()> {
    let server = start(version)?;
    let before = server.connect(DATABASE).await?;
    // A sign of life is due 2 seconds after the crash. The rest of the test must be done 18 seconds after the
    // crash.
    let session = before.register("timeout => '16 s'").await?;
    before.execute(&session, "1", "1").await?;
    crash(&server, Killed::Server).await?;
    let is_due = format!("SELECT clock_timestamp() >= {UP} + '2 s'::interval");
    server.wait_for(DATABASE, &is_due, "t").await?;

    server.psql(DATABASE, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()")?;
    let committing = server.connect(DATABASE).await?;
    server.wait_for(DATABASE, "SHOW synchronous_standby_names", "nobody").await?;
    // The checkpointer tells the backends that they must wait, and before this checkpoint it reads the
    // setting.
    server.psql(DATABASE, "CHECKPOINT")?;
    let pid = committing.pid().await?;
    let committing = tokio::spawn({
        let session = session.clone();
        async move { committing.execute(&session, "2", "2").await }
    });
    let waits = format!("SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}");
    server.wait_for(DATABASE, &waits, "SyncRep").await?;
    let other = server.connect(DATABASE).await?;
    other.text("SET synchronous_commit = local; SET lock_timeout = '1 min'; SET idempotence.wait = '0'").await?;
    other.text(&format!("SELECT idem_heartbeat('{session}')")).await?;
    other.execute(&session, "3", "3").await?;
    let rows = format!("SELECT count(*) FROM idempotence.session_live WHERE id = '{}'", id_of(&session));
    ensure!(other.text(&rows).await? == "0", "the first sign has been committed, or another given beside it");
    ensure!(other.text(&waits).await? == "SyncRep", "the first sign did not wait that long");
    server.psql(DATABASE, "ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()")?;
    committing.await??;
    ensure!(other.text(&rows).await? == "1");

    let superuser = server.connect(DATABASE).await?;
    let pair = [other, server.connect(DATABASE).await?];
    let together = Barrier::new(2);
    for round in 2..100 {
        superuser.text("DELETE FROM idempotence.session_live").await?;
        try_join_all(pair.iter().enumerate().map(async |(number, connection)| {
            together.wait().await;
            connection.execute(&session, &(2 * round + number).to_string(), "1").await
        }))
        .await?;
        ensure!(superuser.text(&rows).await? == "1", "round {round}");
    }
    Ok(())
}
