//! What could keep the sweep from its work, or have it do too much: restores, locks, clocks, crowds.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::dump::{dump, restore};
use idempotence_cluster_tests::ring::{CURRENT, HURRY};
use idempotence_cluster_tests::shop::{DATABASE, start_preloaded, start_unvisited, start_with};
use idempotence_cluster_tests::{Connection, Version, on_each_version};

on_each_version!(
    a_slow_restore_beside_the_worker_loses_nothing,
    the_sweep_rests_beside_an_open_restore_and_names_it,
    sessions_in_use_do_not_shade_silent_ones,
    a_session_that_was_refused_stays_refused_while_it_is_swept,
    a_locked_table_is_named_and_delays_its_own_steps_only,
    a_session_that_is_being_made_keeps_nothing_waiting,
    a_clock_that_was_wrong_once_is_overcome,
    large_tables_are_swept_in_parts,
    a_sweep_that_finds_nothing_to_do_writes_nothing,
);

// Goal: whatever the worker does during a slow restore, no outcome is gone before its time, and the timeout
// of a session begins when it is restored.
// Method: outcomes in two segments, with a ttl of a month, are restored with a pause of a few visits between
// them. Then the ring becomes half a month older. There is also a client session with a short timeout.
async fn a_slow_restore_beside_the_worker_loses_nothing(version: Version) -> Result<()> {
    let settings = [
        ("shared_preload_libraries", "idempotence"),
        ("idempotence.naptime", "1s"),
        // So that outcomes that live for a month lie in segments.
        ("idempotence.retention", "31d"),
    ];
    let server = start_with(version, &settings)?;
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
    let client = connection.register_client("c", "4 s").await?;
    let send = |number| {
        format!(
            "BEGIN; SELECT FROM idem_begin('{client}', {number}); SELECT FROM idem_record('{client}', {number}); COMMIT"
        )
    };
    connection.text(&send(1)).await?;
    let dump = dump(&server, &server, DATABASE, &[])?;
    let slow = "COPY idempotence.outcome_1 ";
    ensure!(dump.contains(slow), "the dump has no second segment");
    let dump = dump.replace(slow, &format!("SELECT pg_sleep(6);\n{slow}"));
    restore(&server, "restored", &dump)?;

    let restored = server.connect("restored").await?;
    restored.text(&send(2)).await?;
    for age in ["4 days", "8 days", "4 days"] {
        restored
            .text(&format!(
                "UPDATE idempotence.segment SET opened_at = opened_at - interval '{age}', closed_at = closed_at - interval '{age}', ends_at = ends_at - interval '{age}'"
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

// Goal: while a transaction that restores is open, the ring stands still, and the log names the transaction.
// Method: an insert by SQL that is not committed, while the ring is due to turn. Then the insert is rolled
// back.
async fn the_sweep_rests_beside_an_open_restore_and_names_it(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s')").await?;
    connection.execute("s", "k", "1").await?;
    let restorer = server.connect(DATABASE).await?;
    restorer.text("BEGIN; INSERT INTO idempotence.outcome_1 SELECT * FROM idempotence.outcome_0 WHERE false").await?;
    connection.text(HURRY).await?;
    let name = format!("a sweep by hand, or a restore, is at work: held by process {}", restorer.pid().await?);
    server.wait_for_log(&name).await?;
    ensure!(connection.text(CURRENT).await? == "0", "the ring has turned");
    // Requests go on.
    connection.execute("s", "meanwhile", "1").await?;
    restorer.text("ROLLBACK").await?;
    server.wait_for(DATABASE, CURRENT, "1").await
}

// Goal: silent sessions that are in use do not keep other silent sessions from being ended, however many
// there are.
// Method: batches of one session. A prepared transaction uses the first session, and two more sessions are
// silent.
async fn sessions_in_use_do_not_shade_silent_ones(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.conf("idempotence.sweep_batch", "1")?;
    server.reload()?;
    let connection = server.connect(DATABASE).await?;
    let in_use = connection.register_client("in use", "2 s").await?;
    let holder = server.connect(DATABASE).await?;
    holder.text(&format!("BEGIN; SELECT idem_heartbeat('{in_use}'); PREPARE TRANSACTION 'p'")).await?;
    let silent = [connection.register_client("a", "2 s").await?, connection.register_client("b", "2 s").await?];
    server.wait_for(DATABASE, &at_work(&[&silent[0], &silent[1]]), "0").await?;
    ensure!(connection.text(&at_work(&[&in_use])).await? == "1");
    holder.text("ROLLBACK PREPARED 'p'").await?;
    server.wait_for(DATABASE, &at_work(&[&in_use]), "0").await
}

// Goal: a session that has ended refuses every request, even while a sweep works on it.
// Method: 500 silent sessions with one outcome each. Requests and their duplicates are sent to all of them,
// again and again, while sweeps by hand end the sessions. The worker is switched off.
async fn a_session_that_was_refused_stays_refused_while_it_is_swept(version: Version) -> Result<()> {
    const SESSIONS: usize = 500;
    let server = start_unvisited(version)?;
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

// Goal: if somebody has locked a table, the log names the table and the holder, and the steps that do not
// need the table are done.
// Method: a lock on session_live, while the ring turns. Then the lock is released, and silent sessions end.
async fn a_locked_table_is_named_and_delays_its_own_steps_only(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s')").await?;
    connection.execute("s", "k", "1").await?;
    let silent = connection.register_client("c", "2 s").await?;
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

// Goal: while the creation of a session is not committed, for however long, it delays neither the turn of the
// ring nor the creation of other sessions.
// Method: the creation is prepared, and the ring is due to turn.
async fn a_session_that_is_being_made_keeps_nothing_waiting(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
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

// Goal: a ring that turned under a clock that was years ahead goes on when the clock is right, and keeps its
// outcomes for as long as it promised.
// Method: times in the future, in the current segment and in a closed segment, with an outcome from that
// time, which keeps its segment while the ring turns with the other two.
async fn a_clock_that_was_wrong_once_is_overcome(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
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
            "UPDATE idempotence.segment SET restored = false, looked_to = NULL, opened_at = opened_at + interval '10 years',
                                            closed_at = closed_at + interval '10 years', ends_at = ends_at + interval '10 years';
             UPDATE idempotence.outcome_0 SET expires_at = expires_at + interval '10 years'",
        )
        .await?;
    server.wait_for_log("looked at in the future, which counts as now").await?;
    let ahead = "SELECT count(*) FROM idempotence.segment WHERE greatest(opened_at, closed_at) > now()";
    server.wait_for(DATABASE, ahead, "0").await?;
    let end = "SELECT s.ends_at = o.expires_at FROM idempotence.segment s, idempotence.outcome_0 o WHERE s.number = 0 AND o.key = 'k'";
    server.wait_for(DATABASE, end, "t").await?;
    // The ring turns again and again, past the outcome that lives.
    for (turn, next) in ["2", "1", "2", "1"].iter().enumerate() {
        connection.execute("s", &turn.to_string(), "1").await?;
        connection.text(HURRY).await?;
        server.wait_for(DATABASE, CURRENT, next).await?;
        let emptied = "SELECT count(*) FROM idempotence.segments WHERE state IN ('closing', 'closed')";
        server.wait_for(DATABASE, closed, "t").await?;
        connection
            .text(
                "UPDATE idempotence.segment SET ends_at = now() - interval '2 minutes', looked_to = NULL
                  WHERE number > 0 AND NOT current",
            )
            .await?;
        server.wait_for(DATABASE, emptied, "1").await?;
        ensure!(connection.lookup("s", "k").await? == "succeeded", "an outcome that lives is lost");
    }
    // When its time is over it goes as any.
    connection.text("UPDATE idempotence.segment SET ends_at = ends_at - interval '11 years' WHERE number = 0").await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "empty").await
}

// Goal: the worker goes through tables of many pages in parts, to their end.
// Method: saved sessions on several hundred pages, none of which is at work, as after a crash. First all of
// them must be at work again, and in the end none.
async fn large_tables_are_swept_in_parts(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
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

// Goal: a worker that finds nothing to do takes no transaction id and writes no WAL, and neither does a sweep by hand but
// for the note of its end.
// Method: a database with a session of each kind, outcomes of which some have outlived their segment, a lease and a
// checkpoint. After a few visits, which do what is done once an hour, many more visits leave no trace.
async fn a_sweep_that_finds_nothing_to_do_writes_nothing(version: Version) -> Result<()> {
    let settings = [
        ("shared_preload_libraries", "idempotence"),
        ("idempotence.naptime", "1s"),
        ("autovacuum", "off"),
        ("wal_level", "minimal"),
        ("max_wal_senders", "0"),
    ];
    let server = start_with(version, &settings)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('payments'), idem_create_session('mails', inbox => true)").await?;
    connection.execute("payments", "1", "1").await?;
    let client = connection.register_client("shop", "1 hour").await?;
    connection.execute(&client, "1", "1").await?;
    connection
        .text(
            "SELECT idem_once('mails', '1');
             SELECT status FROM idem_begin('payments', 'leased', lease => '1 hour');
             BEGIN; SELECT status FROM idem_begin('payments', 'half'); SELECT idem_checkpoint('payments', 'half', 'p'); COMMIT;
             INSERT INTO idempotence.outcome_long (digest, session, key, class, recorded_by, recorded_at, expires_at)
               SELECT gen_random_uuid(), id, 'old', 's', 10, now(), now() + interval '1 day' FROM idempotence.session WHERE name = 'payments'",
        )
        .await?;
    let swept = "SELECT idempotence.last_sweep()";
    let visits = async |count: u32| -> Result<()> {
        for _ in 0..count {
            let last = connection.text(swept).await?;
            server
                .wait_for(
                    DATABASE,
                    &format!("SELECT idempotence.last_sweep() IS DISTINCT FROM nullif('{last}', '')::timestamptz"),
                    "t",
                )
                .await?;
        }
        Ok(())
    };
    visits(4).await?;
    let state = "SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn()";
    let before = connection.text(state).await?;
    visits(5).await?;
    let after = connection.text(state).await?;
    ensure!(before == after, "five idle visits went from {before} to {after}");
    Ok(())
}
