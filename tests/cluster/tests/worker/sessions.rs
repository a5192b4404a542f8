//! The end of client sessions: in time, and with all that they have left.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::client::{at_work, id_of};
use idempotence_cluster_tests::shop::{DATABASE, start_preloaded};

use super::watch::send;

const ROUNDS: u32 = 8;

// Goal: an idle session ends within 9/8 of its timeout plus a naptime plus a second, and not before its
// timeout. A session stays if an open transaction or a prepared transaction uses it, or if it gives signs of
// life.
// Method: one session of each kind, with a timeout of two seconds. No session may end too early. In one round
// at least, each must end in time; a busy machine can delay the others.
pub async fn silent_sessions_end_in_time_and_others_do_not(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    let connection = server.connect(DATABASE).await?;
    let (open, busy) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    let [in_use, prepared, alive] = [
        connection.register_client("in use", "2 s").await?,
        connection.register_client("prepared", "2 s").await?,
        connection.register_client("alive", "2 s").await?,
    ];
    open.text(&format!("BEGIN; SELECT FROM idem_begin('{in_use}', 1)")).await?;
    busy.text(&format!("BEGIN; SELECT idem_heartbeat('{prepared}'); PREPARE TRANSACTION 'p'")).await?;

    let mut in_time = false;
    for round in 0..ROUNDS {
        if in_time && round >= 2 {
            break;
        }
        let start = Instant::now();
        let (idle, saved) =
            (connection.register_client("idle", "2 s").await?, connection.register_client("saved", "2 s").await?);
        connection.text(&send(&saved, 1)).await?;
        let last_heard_of = Instant::now();
        let idle_at_work = at_work(&[&idle, &saved]);
        while connection.text(&idle_at_work).await? != "0" {
            ensure!(last_heard_of.elapsed() < Duration::from_secs(30), "silent sessions stay at work");
            connection.text(&format!("SELECT idem_heartbeat('{alive}')")).await?;
        }
        let took = (start.elapsed(), last_heard_of.elapsed());
        ensure!(took.0 >= Duration::from_secs(2), "round {round}: a session ended after {took:?}");
        in_time |= took.1 <= Duration::from_millis(2250 + 1000 + 1000);
        let end = format!("SELECT ended FROM idempotence.sessions WHERE session = '{saved}'");
        ensure!(connection.text(&end).await? == "expired");
        ensure!(connection.sqlstate(&format!("SELECT FROM idem_begin('{saved}', 2)")).await? == "ID004");
    }
    ensure!(in_time, "no session ended in time in {ROUNDS} rounds");
    for session in [&in_use, &prepared, &alive] {
        ensure!(connection.text(&at_work(&[session])).await? == "1");
    }
    open.text(&format!("SELECT FROM idem_record('{in_use}', 1, '1'); COMMIT")).await?;
    connection.text("COMMIT PREPARED 'p'").await?;
    for session in [&in_use, &prepared, &alive] {
        server.wait_for(DATABASE, &at_work(&[session]), "0").await?;
    }
    Ok(())
}

// Goal: an ended session is deleted a retention later, with its replies and marks, even in small batches.
// Method: closed sessions with more rows than a batch. Until they are deleted their replies are found, and
// then nothing is found.
pub async fn ended_sessions_are_deleted_a_retention_later(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.conf("idempotence.sweep_batch", "7")?;
    server.conf("idempotence.retention", "3s")?;
    server.reload()?;
    let connection = server.connect(DATABASE).await?;
    let kept = connection.register_client("kept", "2 s").await?;
    connection.text(&send(&kept, 1)).await?;
    let mut sessions = Vec::new();
    for client in 0..4 {
        let session = connection.register_client(&format!("client {client}"), "2 s").await?;
        for number in 1..=5 {
            connection.text(&send(&session, number)).await?;
            connection.text(&format!("SELECT idem_ack('{session}', {number}, 'stream {number}')")).await?;
        }
        sessions.push(session);
    }
    let ended = Instant::now();
    for session in &sessions {
        connection.text(&format!("SELECT idem_close('{session}')")).await?;
        ensure!(connection.lookup(session, "5").await? == "succeeded");
    }
    let all = sessions.iter().map(|session| id_of(session)).collect::<Vec<_>>().join("','");
    let left = format!(
        "SELECT (SELECT count(*) FROM idempotence.session WHERE id IN ('{all}'))
              + (SELECT count(*) FROM idempotence.reply WHERE session IN ('{all}'))
              + (SELECT count(*) FROM idempotence.stream WHERE session IN ('{all}'))"
    );
    let touched = format!("SELECT {left} < 44", left = &left["SELECT ".len()..]);
    server.wait_for(DATABASE, &touched, "t").await?;
    ensure!(ended.elapsed() >= Duration::from_secs(3), "deleted after {:?}", ended.elapsed());
    server.wait_for(DATABASE, &left, "0").await?;
    ensure!(connection.sqlstate(&format!("SELECT FROM idem_lookup('{}', 1)", sessions[0])).await? == "ID004");
    Ok(())
}

// Goal: after a crash, saved sessions go on with a full new timeout, and end if their clients do not go on.
// Method: saved and unsaved sessions, and a crash of the server. Then the test looks at the rows and replies
// of the sessions, and at the end of the silent session.
pub async fn saved_sessions_are_back_at_work_after_a_crash(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    let connection = server.connect(DATABASE).await?;
    let [saved, unsaved] =
        [connection.register_client("saved", "2 s").await?, connection.register_client("unsaved", "2 s").await?];
    let lasting = connection.register_client("lasting", "1 hour").await?;
    for session in [&saved, &lasting] {
        connection.text(&send(session, 1)).await?;
    }
    server.crash()?;
    let up = Instant::now();
    let connection = server.reconnect(DATABASE).await?;
    server.wait_for(DATABASE, &at_work(&[&lasting]), "1").await?;
    ensure!(connection.replay(&lasting, "1").await? == "succeeded|1");
    connection.text(&send(&lasting, 2)).await?;
    ensure!(connection.sqlstate(&format!("SELECT FROM idem_begin('{unsaved}', 1)")).await? == "ID004");
    let ended = format!("SELECT ended FROM idempotence.sessions WHERE session = '{saved}'");
    server.wait_for(DATABASE, &ended, "expired").await?;
    ensure!(up.elapsed() >= Duration::from_secs(2), "it ended {:?} after the start", up.elapsed());
    Ok(())
}
