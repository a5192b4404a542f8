//! What could keep the sweep from its work, or have it do too much: restores, locks, clocks, crowds.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version, run};

on_each_version!(
    a_slow_restore_beside_the_worker_loses_nothing,
    the_sweep_rests_beside_an_open_restore_and_names_it,
    sessions_in_use_do_not_shade_silent_ones,
    a_session_that_was_refused_stays_refused_while_it_is_swept,
    a_locked_table_is_named_and_delays_its_own_steps_only,
    a_session_that_is_being_made_keeps_nothing_waiting,
    a_clock_that_was_wrong_once_is_overcome,
    large_tables_are_swept_in_parts,
);

const DATABASE: &str = "shop";

fn start(version: Version) -> Result<Cluster> {
    let server = Cluster::start_preloaded(version)?;
    server.create_database(DATABASE)?;
    Ok(server)
}

const CURRENT: &str = "SELECT number FROM idempotence.segment WHERE current";

/// Has the ring turn with the next visit, if it can.
const HURRY: &str = "UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current";

async fn register(connection: &Connection, client: &str, timeout: &str) -> Result<String> {
    connection.text(&format!("SELECT session FROM idem_register('{client}', timeout => '{timeout}')")).await
}

fn at_work(sessions: &[&str]) -> String {
    format!("SELECT count(*) FROM idempotence.session_live WHERE id IN ('{}')", sessions.join("','"))
}

// Goal: whatever the worker does beside a restore that takes its time, no outcome is gone before its time,
// and a session's time begins when it is restored.
// Method: outcomes in two segments under a ttl of a month, restored with a pause of some visits between
// them; then the ring grows old by half of the month. A client session with a short timeout.
async fn a_slow_restore_beside_the_worker_loses_nothing(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('monthly', ttl => '30 days')").await?;
    for key in ["m0", "m1"] {
        connection.execute("monthly", key, "1").await?;
    }
    connection
        .text(
            "WITH moved AS (DELETE FROM idempotence.outcome_0 WHERE key = 'm1' RETURNING *)
             INSERT INTO idempotence.outcome_1 SELECT * FROM moved",
        )
        .await?;
    let client = register(&connection, "c", "4 s").await?;
    let send = |number| {
        format!(
            "BEGIN; SELECT FROM idem_begin('{client}', {number}); SELECT FROM idem_record('{client}', {number}); COMMIT"
        )
    };
    connection.text(&send(1)).await?;
    let dump = run(server.program("pg_dump").arg("-d").arg(server.connect_string(DATABASE, "postgres")), None)?;
    let slow = "COPY idempotence.outcome_1 ";
    ensure!(dump.contains(slow), "the dump has no second segment");
    let dump = dump.replace(slow, &format!("SELECT pg_sleep(6);\n{slow}"));
    server.psql("postgres", "CREATE DATABASE restored TEMPLATE template0")?;
    server.psql("restored", &dump)?;

    let restored = server.connect("restored").await?;
    restored.text(&send(2)).await?;
    for age in ["4 days", "8 days", "4 days"] {
        restored
            .text(&format!(
                "UPDATE idempotence.segment SET opened_at = opened_at - interval '{age}', closed_at = closed_at - interval '{age}'"
            ))
            .await?;
        for _ in 0..2 {
            restored.text("CALL idem_sweep()").await?;
        }
        for key in ["m0", "m1"] {
            ensure!(restored.lookup("monthly", key).await? == "succeeded", "{key} is lost after {age} more");
        }
    }
    ensure!(restored.text(CURRENT).await? != "0", "the ring has not turned");
    Ok(())
}

// Goal: while a transaction that restores is open the ring stands still, and who it is is told.
// Method: an insert by SQL that is not committed; the ring is due. Then it is rolled back.
async fn the_sweep_rests_beside_an_open_restore_and_names_it(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s')").await?;
    connection.execute("s", "k", "1").await?;
    let restorer = server.connect(DATABASE).await?;
    restorer.text("BEGIN; INSERT INTO idempotence.outcome_1 SELECT * FROM idempotence.outcome_0 WHERE false").await?;
    connection.text(HURRY).await?;
    let name = format!("a sweep by hand, or a restore, is at work: held by process {}", restorer.pid().await?);
    server.wait_for_log(&name).await?;
    ensure!(connection.text(CURRENT).await? == "0", "the ring has turned");
    // Requests are not concerned.
    connection.execute("s", "meanwhile", "1").await?;
    restorer.text("ROLLBACK").await?;
    server.wait_for(DATABASE, CURRENT, "1").await
}

// Goal: sessions that are silent but in use keep no others from being ended, however many they are.
// Method: batches of one; a prepared transaction uses the first session, two more are silent.
async fn sessions_in_use_do_not_shade_silent_ones(version: Version) -> Result<()> {
    let server = start(version)?;
    server.conf("idempotence.sweep_batch", "1")?;
    server.reload()?;
    let connection = server.connect(DATABASE).await?;
    let in_use = register(&connection, "in use", "2 s").await?;
    let holder = server.connect(DATABASE).await?;
    holder.text(&format!("BEGIN; SELECT idem_heartbeat('{in_use}'); PREPARE TRANSACTION 'p'")).await?;
    let silent = [register(&connection, "a", "2 s").await?, register(&connection, "b", "2 s").await?];
    server.wait_for(DATABASE, &at_work(&[&silent[0], &silent[1]]), "0").await?;
    ensure!(connection.text(&at_work(&[&in_use])).await? == "1");
    holder.text("ROLLBACK PREPARED 'p'").await?;
    server.wait_for(DATABASE, &at_work(&[&in_use]), "0").await
}

// Goal: a session that has ended answers nothing more, also while a sweep has it in hand.
// Method: 500 sessions with an outcome each, all silent; requests and their duplicates are sent to each of
// them, over and over, while sweeps by hand end them. The worker stays out of it.
async fn a_session_that_was_refused_stays_refused_while_it_is_swept(version: Version) -> Result<()> {
    const SESSIONS: usize = 500;
    let server = start(version)?;
    server.conf("idempotence.databases", "''")?;
    server.reload()?;
    let connection = server.connect(DATABASE).await?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let session = connection.register("timeout => '2 s'").await?;
        connection.execute(&session, "1", "1").await?;
        sessions.push(session);
    }
    connection.text("UPDATE idempotence.session_live SET last_seen = '-infinity'").await?;
    connection.silence(&sessions[0]).await?;
    let senders = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    let swept = AtomicBool::new(false);
    let send = async |sender: &Connection| {
        loop {
            let last_round = swept.load(Relaxed);
            for (n, session) in sessions.iter().enumerate() {
                let answer = sender.answer(session, if n % 8 == 0 { "2" } else { "1" }).await?;
                ensure!(answer == "ID004", "session {n} answers {answer}");
            }
            if last_round {
                return anyhow::Ok(());
            }
        }
    };
    let sweep = async || {
        while connection.text("SELECT idempotence.sweep_step('end')").await? == "t"
            || connection.text("SELECT count(*) FROM idempotence.session_live").await? != "0"
        {}
        swept.store(true, Relaxed);
        anyhow::Ok(())
    };
    tokio::try_join!(send(&senders[0]), send(&senders[1]), sweep())?;
    let ended = connection.text("SELECT count(*) FROM idempotence.session WHERE ended = 'e'").await?;
    ensure!(ended == SESSIONS.to_string(), "{ended} sessions were ended");
    Ok(())
}

// Goal: a table that somebody has locked is named with the holder, and steps that do not need it are taken.
// Method: a lock on session_live; the ring turns meanwhile; then it is let go, and silent sessions end.
async fn a_locked_table_is_named_and_delays_its_own_steps_only(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s')").await?;
    connection.execute("s", "k", "1").await?;
    let silent = register(&connection, "c", "2 s").await?;
    let holder = server.connect(DATABASE).await?;
    holder.text("BEGIN; LOCK TABLE idempotence.session_live IN ACCESS EXCLUSIVE MODE").await?;
    connection.text(HURRY).await?;
    server.wait_for(DATABASE, CURRENT, "1").await?;
    server
        .wait_for_log(&format!("table idempotence.session_live is locked: held by process {}", holder.pid().await?))
        .await?;
    holder.text("ROLLBACK").await?;
    server.wait_for(DATABASE, &at_work(&[&silent]), "0").await?;
    server.wait_for_log("nothing delays the sweep any more").await
}

// Goal: a session that is being made, for however long, delays neither the turn nor others that make one.
// Method: it is prepared; the ring is due.
async fn a_session_that_is_being_made_keeps_nothing_waiting(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 hour')").await?;
    connection.execute("s", "k", "1").await?;
    connection
        .text("BEGIN; SELECT idem_create_session('long', ttl => '3650 days'); PREPARE TRANSACTION 'made'")
        .await?;
    connection.text("SET idempotence.wait = '2 s'; SELECT idem_create_session('longer', ttl => '3650 days')").await?;
    connection.text("SELECT idem_alter_session('s', ttl => '1 year')").await?;
    connection.text(HURRY).await?;
    server.wait_for(DATABASE, CURRENT, "1").await?;
    connection.text("COMMIT PREPARED 'made'").await?;
    ensure!(connection.text("SELECT keep FROM idempotence.segments WHERE state = 'current'").await? == "01:06:00");
    Ok(())
}

// Goal: a ring that was turned under a clock that was years ahead goes on once the clock is right, and what
// was recorded under it is kept as it was promised.
// Method: moments in the future, in the current segment and in a closed one, with an outcome of then.
async fn a_clock_that_was_wrong_once_is_overcome(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 hour')").await?;
    connection.execute("s", "k", "1").await?;
    connection.text(HURRY).await?;
    server.wait_for(DATABASE, CURRENT, "1").await?;
    connection.execute("s", "now", "1").await?;
    let closed = "SELECT closed_at IS NOT NULL FROM idempotence.segment WHERE number = 0";
    server.wait_for(DATABASE, closed, "t").await?;
    connection
        .text(
            "UPDATE idempotence.segment SET restored = false, opened_at = opened_at + interval '10 years', closed_at = closed_at + interval '10 years';
             UPDATE idempotence.outcome_0 SET expires_at = expires_at + interval '10 years'",
        )
        .await?;
    server.wait_for_log("looked at in the future, which counts as now").await?;
    let ahead = "SELECT count(*) FROM idempotence.segment WHERE greatest(opened_at, closed_at) > now()";
    server.wait_for(DATABASE, ahead, "0").await?;
    // It turns again, and keeps what lives.
    connection.text(HURRY).await?;
    server.wait_for(DATABASE, CURRENT, "2").await?;
    connection
        .text("UPDATE idempotence.segment SET closed_at = closed_at - interval '1 year' WHERE number = 0")
        .await?;
    connection.text("CALL idem_sweep()").await?;
    ensure!(connection.lookup("s", "k").await? == "succeeded", "an outcome that lives is lost");
    // Alone it keeps nothing.
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "empty").await?;
    ensure!(connection.text("SELECT key FROM idempotence.outcome_long").await? == "k");
    Ok(())
}

// Goal: tables of many pages are gone through in parts, by the worker, to their end.
// Method: saved sessions on some hundred pages, of which none is at work and a few are silent, as after a
// crash; all are at work again, and in the end none.
async fn large_tables_are_swept_in_parts(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection
        .text(
            "INSERT INTO idempotence.session (id, created_at, owner, window_size, require_payload, inbox, time_keys, ordering, timeout, client)
             SELECT gen_random_uuid(), now(), current_user::regrole, 5, false, false, false, 'a', interval '15 s', lpad(n::text, 200, 'c')
               FROM generate_series(1, 12000) n;
             TRUNCATE idempotence.sweep",
        )
        .await?;
    let pages = "SELECT pg_relation_size('idempotence.session') / 8192 > 256 FROM idempotence.segments LIMIT 1";
    ensure!(connection.text(pages).await? == "t", "they fit into one part");
    server.wait_for(DATABASE, "SELECT count(*) FROM idempotence.session_live", "12000").await?;
    server.wait_for(DATABASE, "SELECT count(*) FROM idempotence.session_live", "0").await?;
    ensure!(connection.text("SELECT count(*) FROM idempotence.session WHERE ended = 'e'").await? == "12000");
    Ok(())
}
