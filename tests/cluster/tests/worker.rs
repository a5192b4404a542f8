//! The background worker: it does its work, wherever it is wanted, and is in nobody's way.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::bank::Bank;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

on_each_version!(
    silent_sessions_end_in_time_and_others_do_not,
    ended_sessions_are_deleted_a_retention_later,
    saved_sessions_are_back_at_work_after_a_crash,
    databases_and_extensions_come_and_go,
    nobody_is_held_up,
    a_stop_is_heeded_at_once,
    only_the_databases_named_are_visited,
    a_database_left_out_may_be_swept_once_a_day,
    an_error_in_one_database_is_logged_once_and_stops_no_other,
    what_delays_the_ring_is_named,
    a_standby_rests_until_it_is_promoted,
    random_kills_under_load_leave_everything_right,
);

const DATABASE: &str = "shop";

/// Nobody may be held up for longer.
const PROMPT: Duration = Duration::from_secs(2);

const LAUNCHERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'";

/// Whether this database was swept since the statement began to be waited for.
const SWEPT: &str = "SELECT idempotence.last_sweep() > pg_postmaster_start_time()";

fn start(version: Version) -> Result<Cluster> {
    let server = Cluster::start_preloaded(version)?;
    server.create_database(DATABASE)?;
    Ok(server)
}

async fn register(connection: &Connection, client: &str) -> Result<String> {
    connection.text(&format!("SELECT session FROM idem_register('{client}', timeout => '2 s')")).await
}

/// Sends a request of a client session, so that it is saved.
fn send(session: &str, number: i32) -> String {
    format!(
        "BEGIN; SELECT FROM idem_begin('{session}', {number});
         SELECT FROM idem_record('{session}', {number}, '1'); COMMIT"
    )
}

const ROUNDS: u32 = 8;

fn at_work(session: &str) -> String {
    format!("SELECT count(*) FROM idempotence.session_live WHERE id = '{session}'")
}

// Goal: the launcher ends with the server, also where it is told so while it waits for a visit.
// Method: a naptime that nobody waits for; a database is announced, visited, and the server stopped just then.
async fn a_stop_is_heeded_at_once(version: Version) -> Result<()> {
    let server =
        Cluster::start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1h")])?;
    for number in 0..8 {
        server.create_database(&format!("stopped_{number}"))?;
        server.stop_fast()?;
        server.start()?;
    }
    Ok(())
}

// Goal: an idle session is gone within 9/8 of its timeout, a naptime and a second, and not before its
// timeout; one in an open transaction, a prepared one or one that gives signs of life stays.
// Method: sessions with a timeout of two seconds, one of each sort, watched. Never too early; in time in
// one round at least, for a busy machine can hold up any.
async fn silent_sessions_end_in_time_and_others_do_not(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    let (open, busy) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    let [in_use, prepared, alive] = [
        register(&connection, "in use").await?,
        register(&connection, "prepared").await?,
        register(&connection, "alive").await?,
    ];
    open.text(&format!("BEGIN; SELECT FROM idem_begin('{in_use}', 1)")).await?;
    busy.text(&format!("BEGIN; SELECT idem_heartbeat('{prepared}'); PREPARE TRANSACTION 'p'")).await?;

    let mut in_time = false;
    for round in 0..ROUNDS {
        if in_time && round >= 2 {
            break;
        }
        let start = Instant::now();
        let (idle, saved) = (register(&connection, "idle").await?, register(&connection, "saved").await?);
        connection.text(&send(&saved, 1)).await?;
        let last_heard_of = Instant::now();
        let gone = format!("SELECT count(*) FROM idempotence.session_live WHERE id IN ('{idle}', '{saved}')");
        while connection.text(&gone).await? != "0" {
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
        ensure!(connection.text(&at_work(session)).await? == "1");
    }
    open.text(&format!("SELECT FROM idem_record('{in_use}', 1, '1'); COMMIT")).await?;
    connection.text("COMMIT PREPARED 'p'").await?;
    for session in [&in_use, &prepared, &alive] {
        server.wait_for(DATABASE, &at_work(session), "0").await?;
    }
    Ok(())
}

// Goal: an ended session is deleted a retention later, with its replies and marks, in small batches too.
// Method: closed sessions with more rows than a batch; until then their replies are found, then nothing is.
async fn ended_sessions_are_deleted_a_retention_later(version: Version) -> Result<()> {
    let server = start(version)?;
    server.conf("idempotence.sweep_batch", "7")?;
    server.conf("idempotence.retention", "3s")?;
    server.reload()?;
    let connection = server.connect(DATABASE).await?;
    let kept = register(&connection, "kept").await?;
    connection.text(&send(&kept, 1)).await?;
    let mut sessions = Vec::new();
    for client in 0..4 {
        let session = register(&connection, &format!("client {client}")).await?;
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
    let all = sessions.join("','");
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

// Goal: after a crash saved sessions go on, with a full fresh timeout, and end when their clients do not.
// Method: sessions saved and not, a crash of the server; their rows and their replies, and the end of the silent one.
async fn saved_sessions_are_back_at_work_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    let [saved, unsaved] = [register(&connection, "saved").await?, register(&connection, "unsaved").await?];
    let lasting = connection.text("SELECT session FROM idem_register('lasting', timeout => '1 hour')").await?;
    for session in [&saved, &lasting] {
        connection.text(&send(session, 1)).await?;
    }
    server.kill9()?;
    server.start()?;
    let up = Instant::now();
    let connection = server.reconnect(DATABASE).await?;
    server.wait_for(DATABASE, &at_work(&lasting), "1").await?;
    ensure!(connection.replay(&lasting, "1").await? == "succeeded|1");
    connection.text(&send(&lasting, 2)).await?;
    ensure!(connection.sqlstate(&format!("SELECT FROM idem_begin('{unsaved}', 1)")).await? == "ID004");
    let ended = format!("SELECT ended FROM idempotence.sessions WHERE session = '{saved}'");
    server.wait_for(DATABASE, &ended, "expired").await?;
    ensure!(up.elapsed() >= Duration::from_secs(2), "it ended {:?} after the start", up.elapsed());
    Ok(())
}

// Goal: databases and extensions that are new are found, and those that are gone are not missed.
// Method: an extension made in a database that was visited before without one; dropped and made again;
// databases made and dropped; nothing of that is an error.
async fn databases_and_extensions_come_and_go(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    server.psql("postgres", "CREATE DATABASE later")?;
    // It has been visited, without the extension, and is due again in half a minute.
    server.create_database(DATABASE)?;
    server.wait_for(DATABASE, SWEPT, "t").await?;
    let connection = server.connect("later").await?;
    for _ in 0..2 {
        connection.text("CREATE EXTENSION idempotence").await?;
        let start = Instant::now();
        register(&connection, "first").await?;
        server.wait_for("later", "SELECT count(*) FROM idempotence.session_live", "0").await?;
        ensure!(start.elapsed() < Duration::from_secs(15), "found after {:?}", start.elapsed());
        connection.text("DROP EXTENSION idempotence").await?;
        server.wait_for("postgres", LAUNCHERS, "1").await?;
    }
    ensure!(!server.log().contains("ERROR:"), "the log has errors");
    Ok(())
}

// Goal: DROP DATABASE, CREATE DATABASE … TEMPLATE, DROP, ALTER and CREATE EXTENSION and a fast stop are not held up.
// Method: each of them many times while every database is visited every second; the slowest is measured.
async fn nobody_is_held_up(version: Version) -> Result<()> {
    let server = start(version)?;
    let mut slowest = Vec::new();
    for round in 0..8 {
        // The visits are on their way at some other point each time.
        let connection = server.connect(DATABASE).await?;
        register(&connection, &format!("client {round}")).await?;
        drop(connection);
        let idle = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{DATABASE}' AND backend_type = 'client backend'"
        );
        server.wait_for("postgres", &idle, "0").await?;
        sleep(Duration::from_millis(rand::rng().random_range(0..1000))).await;
        for (database, sql) in [
            ("postgres", format!("CREATE DATABASE copy TEMPLATE {DATABASE}")),
            ("copy", "CALL idem_sweep()".into()),
            // As an update's script would.
            ("copy", "BEGIN; LOCK TABLE ONLY idempotence.session, idempotence.session_live, idempotence.segment, idempotence.sweep; COMMIT".into()),
            ("copy", "ALTER EXTENSION idempotence UPDATE".into()),
            ("copy", "DROP EXTENSION idempotence".into()),
            ("copy", "CREATE EXTENSION idempotence".into()),
            ("postgres", "ALTER DATABASE copy RENAME TO other".into()),
            ("postgres", "DROP DATABASE other".into()),
        ] {
            let start = Instant::now();
            server.psql(database, &sql)?;
            slowest.push((start.elapsed(), sql));
        }
        let start = Instant::now();
        server.stop_fast()?;
        slowest.push((start.elapsed(), "a fast stop".into()));
        server.start()?;
    }
    slowest.sort();
    let (took, what) = slowest.pop().context("nothing was measured")?;
    ensure!(took < PROMPT, "{what} took {took:?}");
    Ok(())
}

// Goal: idempotence.databases says which databases are visited, from the next reload on.
// Method: two databases; the one not named keeps its silent session; a name without a database is told once.
async fn only_the_databases_named_are_visited(version: Version) -> Result<()> {
    let server = start(version)?;
    server.create_database("other")?;
    for database in [DATABASE, "other"] {
        server.wait_for(database, SWEPT, "t").await?;
    }
    server.conf("idempotence.databases", &format!("{DATABASE}, missing"))?;
    server.reload()?;
    server.wait_for_log("finds no database \"missing\"").await?;
    let (named, other) = (server.connect(DATABASE).await?, server.connect("other").await?);
    let (ends, stays) = (register(&named, "c").await?, register(&other, "c").await?);
    server.wait_for(DATABASE, &at_work(&ends), "0").await?;
    ensure!(other.text(&at_work(&stays)).await? == "1");
    server.conf("idempotence.databases", "*")?;
    server.reload()?;
    server.wait_for("other", &at_work(&stays), "0").await?;
    ensure!(server.log().matches("finds no database").count() == 1);
    Ok(())
}

// Goal: where the setting leaves a database out, somebody else sweeps it: the view health asks for that once
// a day, and where it was not done, it names the setting.
// Method: the last sweep by hand is made older.
async fn a_database_left_out_may_be_swept_once_a_day(version: Version) -> Result<()> {
    let server = start(version)?;
    server.wait_for(DATABASE, SWEPT, "t").await?;
    ensure!(server.connect(DATABASE).await?.text("SELECT idempotence.is_visited()").await? == "t");
    server.conf("idempotence.databases", "another")?;
    // The worker's visits are forgotten.
    server.restart()?;
    let health = "SELECT string_agg(name || ' ' || status, ', ') FROM idempotence.health WHERE status <> 'ok'";
    server.wait_for(DATABASE, LAUNCHERS, "1").await?;
    let dba = server.connect(DATABASE).await?;
    ensure!(dba.text("SELECT idempotence.is_visited()").await? == "f");
    dba.text("CALL idem_sweep()").await?;
    for (age, told) in [("20 hours", ""), ("26 hours", "sweep warning")] {
        dba.text(&format!("UPDATE idempotence.sweep SET done_at = now() - interval '{age}'")).await?;
        server.wait_for(DATABASE, health, told).await?;
    }
    let named = "SELECT hint LIKE '%idempotence.databases%' FROM idempotence.health WHERE name = 'sweep'";
    ensure!(dba.text(named).await? == "t");
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(health).await?.is_empty());
    Ok(())
}

// Goal: an error in one database is logged once, with what to do, and other databases are swept as ever;
// once it is mended that one is, too. Nor does a database that cannot be entered stop them.
// Method: a ring without a current segment; sessions in another database; then the ring is mended. Then
// the database is being renamed for a while.
async fn an_error_in_one_database_is_logged_once_and_stops_no_other(version: Version) -> Result<()> {
    let server = start(version)?;
    server.create_database("broken")?;
    server.psql("broken", "UPDATE idempotence.segment SET current = false")?;
    let words = "could not sweep database \"broken\": table \"idempotence.segment\" has no current segment";
    server.wait_for_log(words).await?;
    let connection = server.connect(DATABASE).await?;
    for round in 0..4 {
        let session = register(&connection, &format!("client {round}")).await?;
        server.wait_for(DATABASE, &at_work(&session), "0").await?;
    }
    ensure!(server.log().matches(words).count() == 1, "it is logged again and again");
    ensure!(server.log().contains("HINT:"));
    server.psql("broken", "UPDATE idempotence.segment SET current = true WHERE number = 0")?;
    server.wait_for_log("sweeps database \"broken\" again").await?;

    // A database that cannot be entered at the moment, nor be told to be left alone.
    let dba = server.connect("postgres").await?;
    server.wait_for("postgres", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'broken'", "0").await?;
    dba.text("BEGIN; ALTER DATABASE broken RENAME TO mended").await?;
    for round in 0..4 {
        let session = register(&connection, &format!("other {round}")).await?;
        server.wait_for(DATABASE, &at_work(&session), "0").await?;
    }
    dba.text("COMMIT").await?;
    let session = register(&server.connect("mended").await?, "mended").await?;
    server.wait_for("mended", &at_work(&session), "0").await
}

// Goal: a transaction, a prepared one and a dump that delay the ring are named in the log and in the view
// health, and break nothing.
// Method: each holds the old segment past its time; after its end the ring goes on.
async fn what_delays_the_ring_is_named(version: Version) -> Result<()> {
    let server = start(version)?;
    let (holder, dba) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    let age = "UPDATE idempotence.segment SET opened_at = opened_at - interval '3 hours', closed_at = closed_at - interval '3 hours'";
    let health = "SELECT status <> 'ok' AND hint IS NOT NULL FROM idempotence.health WHERE name = 'ring'";
    dba.text("SELECT idem_create_session('s', ttl => '1 hour')").await?;
    dba.execute("s", "first", "1").await?;
    server.wait_for(DATABASE, SWEPT, "t").await?;

    let record = "SELECT FROM idem_begin('s', 'k'); SELECT FROM idem_record('s', 'k', '1')";
    holder.text(&format!("BEGIN; {record}")).await?;
    dba.text(age).await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "closing").await?;
    dba.text(age).await?;
    let name = format!("held by process {}", holder.pid().await?);
    server.wait_for(DATABASE, health, "t").await?;
    ensure!(dba.text("SELECT detail FROM idempotence.health WHERE name = 'ring'").await?.contains(&name));
    server.wait_for_log(&name).await?;
    // Others work, and the ring has turned.
    dba.execute("s", "meanwhile", "1").await?;
    holder.text("PREPARE TRANSACTION 'held'").await?;
    let named = "SELECT held_by LIKE '%prepared transaction \"held\"%' FROM idempotence.segments WHERE segment = 0";
    server.wait_for(DATABASE, named, "t").await?;
    holder.text("COMMIT PREPARED 'held'").await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "closed").await?;
    server.wait_for_log("nothing delays the sweep any more").await?;
    ensure!(dba.replay("s", "k").await? == "succeeded|1");

    // As pg_dump holds it.
    holder.text("BEGIN; LOCK idempotence.outcome_0 IN ACCESS SHARE MODE").await?;
    dba.text("UPDATE idempotence.outcome_0 SET expires_at = expires_at - interval '6 hours'").await?;
    dba.text(age).await?;
    server.wait_for(DATABASE, health, "t").await?;
    server.wait_for_log("segment 0 cannot be emptied yet: held by process").await?;
    holder.text("ROLLBACK").await?;
    server.wait_for(DATABASE, "SELECT state FROM idempotence.segments WHERE segment = 0", "empty").await?;
    server.wait_for(DATABASE, health, "f").await
}

/// Has the ring turn with the next visit.
const HURRY: &str = "UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current";

// Goal: nothing runs on a standby; once promoted it sweeps, and sessions are back at work; no acknowledged
// outcome is lost and no effect repeated, whatever the worker was just doing.
// Method: a synchronous standby of a preloaded server; its primary is killed under load, with the ring being
// hurried on, there as here.
async fn a_standby_rests_until_it_is_promoted(version: Version) -> Result<()> {
    let primary = start(version)?;
    let standby = primary.standby()?;
    primary.conf("synchronous_standby_names", "*")?;
    primary.conf("synchronous_commit", "remote_apply")?;
    primary.reload()?;
    let sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    primary.wait_for("postgres", sync, "1").await?;
    let connection = primary.connect(DATABASE).await?;
    let lasting = connection.text("SELECT session FROM idem_register('lasting', timeout => '1 hour')").await?;
    connection.text(&send(&lasting, 1)).await?;
    let mut bank = Bank::open(&primary, 4)?;
    for _ in 0..5 {
        primary.psql("bank", HURRY)?;
        bank.progress(100).await?;
    }
    ensure!(standby.connect(DATABASE).await?.text(LAUNCHERS).await? == "0");
    let health = "SELECT count(*) FROM idempotence.health WHERE status <> 'ok'";
    ensure!(standby.connect(DATABASE).await?.text(health).await? == "0");
    ensure!(standby.connect(DATABASE).await?.sqlstate("CALL idem_sweep()").await? == "25006");

    primary.kill9()?;
    standby.promote()?;
    bank.move_to(&standby);
    standby.wait_for(DATABASE, &at_work(&lasting), "1").await?;
    ensure!(standby.connect(DATABASE).await?.text(LAUNCHERS).await? == "1");
    ensure!(standby.connect(DATABASE).await?.replay(&lasting, "1").await? == "succeeded|1");
    for _ in 0..5 {
        standby.psql("bank", HURRY)?;
        bank.progress(100).await?;
    }
    bank.close(&standby).await?;
    Ok(())
}

/// Processes to be killed: the worker's, and those of clients at work.
const VICTIMS: &str = "
    SELECT pid FROM pg_stat_activity
     WHERE backend_type LIKE 'idempotence%' OR backend_type = 'client backend' AND state LIKE '%active%' AND pid <> pg_backend_pid()
     ORDER BY backend_type LIKE 'idempotence%' DESC, random()";

// Goal: whichever process is killed, at whatever moment: the server and the worker come back by themselves,
// and no effect is repeated, no acknowledged outcome lost.
// Method: clients transfer money and the ring is hurried on, while workers, launcher, clients' backends and
// whole servers are killed at random, a hundred times.
async fn random_kills_under_load_leave_everything_right(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    let mut bank = Bank::open(&server, 4)?;
    let mut killed = 0;
    while killed < 100 {
        bank.progress(rand::rng().random_range(1..30)).await?;
        if rand::rng().random_ratio(1, 8) {
            server.kill9()?;
            server.start()?;
            killed += 1;
            continue;
        }
        let witness = server.reconnect("bank").await?;
        // The connection may be cut while it is asked.
        let Ok(victims) = witness.try_text(VICTIMS).await else { continue };
        let _ = witness.try_text(HURRY).await;
        let victims: Vec<i32> = victims.lines().filter_map(|pid| pid.parse().ok()).collect();
        let Some(&victim) = victims.choose(&mut rand::rng()) else { continue };
        // One that was just ending by itself brings nobody down with it.
        if server.kill9_backend(victim) && timeout(PROMPT, witness.wait_for_end()).await.is_ok() {
            killed += 1;
        }
    }
    let connection = server.reconnect("bank").await?;
    let session = register(&connection, "at last").await?;
    server.wait_for("bank", &at_work(&session), "0").await?;
    server.wait_for("bank", LAUNCHERS, "1").await?;
    drop(connection);
    bank.progress(100).await?;
    let retries = bank.close(&server).await?;
    ensure!(retries > 0, "no client noticed any of the crashes");
    Ok(())
}
