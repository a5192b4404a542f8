//! A backend that knows a table to be empty does not look into it. It must learn of a row that comes meanwhile, however that
//! comes.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::c_module::CModule;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use tokio::time::Instant;

use std::time::Duration;

on_each_version!(
    the_first_row_of_a_table_is_met,
    rows_that_a_restore_brings_are_met,
    rows_that_come_and_go_are_met,
    a_promoted_standby_knows_nothing,
    a_database_with_the_number_of_a_dropped_one_is_another,
    what_a_transaction_has_emptied_is_not_known_to_be_empty,
    a_begin_meets_an_import_that_has_not_ended,
    a_key_that_is_newer_than_a_closed_segment_is_met_there_all_the_same,
    the_ring_announces_where_it_turns_to,
    an_outcome_is_met_before_the_message_that_the_ring_has_turned,
);

/// For how long leases and outcomes come and go.
const STORM: Duration = Duration::from_secs(5);

async fn start(version: Version) -> Result<(Cluster, Connection, Connection)> {
    warmed(shop::start_preloaded(version)?).await
}

async fn warmed(server: Cluster) -> Result<(Cluster, Connection, Connection)> {
    let warm = server.connect(DATABASE).await?;
    warm.text("SELECT idem_create_session('s'), idem_create_session('years', ttl => '3650 days')").await?;
    let other = server.connect(DATABASE).await?;
    warm_up(&warm, "warm").await?;
    Ok((server, warm, other))
}

/// Has the connection find out which tables are empty.
async fn warm_up(warm: &Connection, key: &str) -> Result<()> {
    for round in 0..2 {
        warm.execute("s", &format!("{key} {round}"), "1").await?;
    }
    Ok(())
}

async fn begun(connection: &Connection, key: &str) -> Result<String> {
    begun_in(connection, "s", key).await
}

async fn begun_in(connection: &Connection, session: &str, key: &str) -> Result<String> {
    let status = format!("SELECT status, point FROM idem_begin('{session}', '{key}', wait => '0')");
    connection.text(&format!("BEGIN; {status}; ROLLBACK")).await
}

// Goal: whoever has found the tables empty meets the first row in them, once it is committed.
// Method: a connection finds them empty; another one writes the first row, in each way in which rows are written; VACUUM
// makes the tables empty again.
async fn the_first_row_of_a_table_is_met(version: Version) -> Result<()> {
    let (_server, warm, other) = start(version).await?;
    let lease = "SELECT FROM idem_begin('s', 'k', lease => '1 min')";
    let checkpoint = "SELECT FROM idem_begin('s', 'k'); SELECT idem_checkpoint('s', 'k', 'p')";
    let outcome = "SELECT FROM idem_begin('years', 'k'); SELECT idem_record('years', 'k', '1')";
    let leased = (
        "s",
        "in_progress|",
        "SELECT idem_force_release('s', 'k', 'a test', live => true); TRUNCATE idempotence.lease",
    );
    let stopped = ("s", "started|p", "SELECT idem_forget('s', 'k', 'a test')");
    let done = ("years", "succeeded|", "SELECT idem_forget('years', 'k', 'a test')");
    for (round, (write, (session, answer, undo))) in
        [(lease, leased), (checkpoint, stopped), (outcome, done)].repeat(2).into_iter().enumerate()
    {
        for (number, (way, commit)) in [
            ("", "COMMIT"),
            ("SAVEPOINT a; ROLLBACK TO a;", "COMMIT"),
            ("", "PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'"),
        ]
        .into_iter()
        .enumerate()
        {
            ensure!(begun_in(&warm, session, "k").await? == "started|", "round {round}: nothing is there yet");
            other.text(&format!("BEGIN; {way} {write}")).await?;
            // The claim is held. A rolled back row leaves no trace.
            ensure!(begun_in(&warm, session, "k").await? == "in_progress|", "round {round}, {write}, held");
            warm_up(&warm, &format!("{round} {number}")).await?;
            for statement in commit.split("; ") {
                other.text(statement).await?;
            }
            ensure!(begun_in(&warm, session, "k").await? == answer, "round {round}, {write}, {commit}");
            other.text(undo).await?;
            for table in ["lease", "checkpoint", "outcome_long"] {
                other.text(&format!("VACUUM idempotence.{table}")).await?;
            }
        }
    }
    Ok(())
}

// Goal: rows that come by SQL, as a restore brings them, are met in every table.
// Method: a connection finds the tables empty; rows are moved out of the way and back by a superuser, into segments that
// the ring has not come to.
async fn rows_that_a_restore_brings_are_met(version: Version) -> Result<()> {
    let (_server, warm, other) = start(version).await?;
    warm.execute("s", "k", "1").await?;
    for segment in [1, 2] {
        warm_up(&warm, &format!("segment {segment}")).await?;
        other
            .text(&format!(
                "WITH moved AS (DELETE FROM idempotence.outcome_{} WHERE key = 'k' RETURNING *)
                 INSERT INTO idempotence.outcome_{segment} SELECT * FROM moved",
                segment - 1
            ))
            .await?;
        ensure!(warm.replay("s", "k").await? == "succeeded|1", "segment {segment}");
    }
    for (table, session, write, answer) in [
        ("outcome_long", "years", "SELECT FROM idem_run('years', 'l', 'SELECT 1')", "succeeded|"),
        ("lease", "s", "SELECT FROM idem_begin('s', 'l', lease => '1 min')", "in_progress|"),
        (
            "checkpoint",
            "s",
            "BEGIN; SELECT FROM idem_begin('s', 'l'); SELECT idem_checkpoint('s', 'l', 'p'); COMMIT",
            "started|p",
        ),
    ] {
        other.text(write).await?;
        other
            .text(&format!(
                "CREATE TEMP TABLE kept AS TABLE idempotence.{table}; TRUNCATE idempotence.{table}; TRUNCATE idempotence.restore"
            ))
            .await?;
        warm_up(&warm, table).await?;
        ensure!(begun_in(&warm, session, "l").await? == "started|");
        // The look at the table falls between the trigger and the rows.
        other.text(&format!("BEGIN; INSERT INTO idempotence.{table} SELECT * FROM kept WHERE false")).await?;
        ensure!(begun_in(&warm, session, "l").await? == "started|");
        other.text(&format!("INSERT INTO idempotence.{table} SELECT * FROM kept; COMMIT; DROP TABLE kept")).await?;
        ensure!(begun_in(&warm, session, "l").await? == answer, "{table}");
        other.text(&format!("TRUNCATE idempotence.{table}, idempotence.restore")).await?;
    }
    Ok(())
}

// Goal: while the tables of leases and of long-lived outcomes become empty again and again, no committed row is passed over.
// Method: pairs of connections, of which one leases or records a request and the other must be told so; others find the
// tables empty, and VACUUM makes them so.
async fn rows_that_come_and_go_are_met(version: Version) -> Result<()> {
    let (server, warm, other) = start(version).await?;
    let end = Instant::now() + STORM;
    let mut pairs = Vec::new();
    for pair in 0..4 {
        let (worker, asker) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
        pairs.push(tokio::spawn(async move {
            let mut rounds = 0;
            while Instant::now() < end {
                let key = format!("{pair} {rounds}");
                let (session, write, answer) = match pair % 2 {
                    0 => ("s", format!("SELECT token FROM idem_begin('s', '{key}', lease => '1 min')"), "in_progress|"),
                    _ => ("years", format!("SELECT status FROM idem_run('years', '{key}', 'SELECT 1')"), "succeeded|"),
                };
                let written = worker.text(&write).await?;
                let told = begun_in(&asker, session, &key).await?;
                ensure!(told == answer, "{key} of {session} is there, and a begin says {told}");
                let undo = match pair % 2 {
                    0 => format!("SELECT idem_release('s', '{key}', token => {written})"),
                    _ => format!("SELECT idem_forget('years', '{key}', 'a test')"),
                };
                worker.text(&undo).await?;
                rounds += 1;
            }
            Ok(rounds)
        }));
    }
    let mut looks = 0;
    while Instant::now() < end {
        warm_up(&warm, &format!("look {looks}")).await?;
        for table in ["lease", "outcome_long"] {
            other.text(&format!("VACUUM idempotence.{table}")).await?;
        }
        looks += 1;
    }
    for pair in pairs {
        ensure!(pair.await?? > 10, "the pairs have hardly begun");
    }
    ensure!(looks > 10, "the tables were hardly looked at");
    Ok(())
}

// Goal: what a standby found empty before a promotion, and what came by replication, is looked for.
// Method: lookups on a standby, then a lease on the primary, then a promotion.
async fn a_promoted_standby_knows_nothing(version: Version) -> Result<()> {
    let (primary, warm, _) = start(version).await?;
    let standby = primary.standby()?;
    standby.catch_up_with(&primary)?;
    let reader = standby.connect(DATABASE).await?;
    ensure!(reader.lookup("s", "k").await? == "not_here");
    warm.text("SELECT FROM idem_begin('s', 'k', lease => '10 min')").await?;
    warm.execute("years", "k", "1").await?;
    standby.catch_up_with(&primary)?;
    ensure!(reader.lookup("years", "k").await? == "succeeded");
    ensure!(reader.lookup("s", "k").await? == "in_progress");
    drop(primary);
    standby.promote()?;
    let promoted = standby.reconnect(DATABASE).await?;
    ensure!(begun(&promoted, "k").await? == "in_progress|");
    ensure!(begun_in(&promoted, "years", "k").await? == "succeeded|");
    Ok(())
}

// Goal: what was known of a dropped database does not count for one that gets its number.
// Method: a database is found empty and dropped; another one with its number is made of a template that has a lease and a
// checkpoint.
async fn a_database_with_the_number_of_a_dropped_one_is_another(version: Version) -> Result<()> {
    let server = shop::start_unvisited(version)?;
    let dba = server.connect("postgres").await?;
    let session = "SELECT idem_create_session('s'), idem_create_session('years', ttl => '3650 days')";
    for (name, of) in [("template", ""), ("first", "OID = 77777")] {
        dba.text(&format!("CREATE DATABASE {name} {of}")).await?;
        server.psql(name, &format!("CREATE EXTENSION idempotence; {session}"))?;
    }
    server.psql("template", "SELECT FROM idem_begin('s', 'l', lease => '1 hour')")?;
    let stopped = "BEGIN; SELECT FROM idem_begin('s', 'c'); SELECT idem_checkpoint('s', 'c', 'p'); COMMIT";
    server.psql("template", stopped)?;
    server.psql("template", "SELECT FROM idem_run('years', 'o', 'SELECT 1')")?;
    let first = server.connect("first").await?;
    warm_up(&first, "warm").await?;
    drop(first);
    dba.text("DROP DATABASE first WITH (FORCE)").await?;
    dba.text("CREATE DATABASE second TEMPLATE template OID = 77777").await?;
    let second = server.connect("second").await?;
    ensure!(begun(&second, "l").await? == "in_progress|");
    ensure!(begun(&second, "c").await? == "started|p");
    ensure!(begun_in(&second, "years", "o").await? == "succeeded|");
    Ok(())
}

// Goal: a table that an open transaction has emptied may be full again.
// Method: TRUNCATE and a begin in one transaction; another connection looks for a checkpoint before its end and after.
async fn what_a_transaction_has_emptied_is_not_known_to_be_empty(version: Version) -> Result<()> {
    let (_server, warm, other) = start(version).await?;
    warm.text("BEGIN; SELECT FROM idem_begin('s', 'k'); SELECT idem_checkpoint('s', 'k', 'p'); COMMIT").await?;
    other
        .text("BEGIN; TRUNCATE idempotence.checkpoint, idempotence.lease; SELECT FROM idem_begin('s', 'other')")
        .await?;
    warm.text("SET lock_timeout = '200ms'").await?;
    ensure!(warm.sqlstate("BEGIN; SELECT FROM idem_begin('s', 'k')").await? == "55P03");
    other.text("ROLLBACK").await?;
    ensure!(begun(&warm, "k").await? == "started|p");
    Ok(())
}

// Goal: of a request that is imported while somebody wants to execute it, one outcome is kept, also if the ring moves on in
// between, and whatever table each of the two would go to.
// Method: begins beside an import that has not ended, with and without a lease, in each isolation level; a turn of the ring
// beside it; the import's commit, and its rollback.
async fn a_begin_meets_an_import_that_has_not_ended(version: Version) -> Result<()> {
    let (server, warm, other) = start(version).await?;
    let dba = server.connect(DATABASE).await?;
    let current = "SELECT segment FROM idempotence.segments WHERE state = 'current'";
    for (number, (session, end)) in [("s", "COMMIT"), ("years", "COMMIT"), ("s", "ROLLBACK")].into_iter().enumerate() {
        let key = format!("k{number}");
        // It expires sooner than what the session records: in 'years' it goes to a segment, and a record does not.
        let import = format!(
            "SELECT * FROM idem_import('{session}', $$SELECT '{key}' AS key, '\"imported\"'::jsonb AS response,
                                       now() + interval '1 hour' AS expires_at$$, 'a test')"
        );
        other.text(&format!("BEGIN; {import}")).await?;
        if number == 0 {
            // The ring goes on beside an import.
            let before = dba.text(current).await?;
            dba.text("UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current").await?;
            let turned = format!("SELECT count(*) FROM ({current} AND segment <> {before}) s");
            server.wait_for(DATABASE, &turned, "1").await?;
        }
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            for lease in ["", ", lease => '1 min'"] {
                let begin =
                    format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM idem_begin('{session}', '{key}'{lease})");
                ensure!(warm.sqlstate(&begin).await? == "40001", "{level}{lease}");
                warm.text("ROLLBACK").await?;
            }
        }
        ensure!(warm.lookup(session, &key).await? == "unknown");
        other.text(end).await?;
        let answer = if end == "COMMIT" { "succeeded|" } else { "started|" };
        ensure!(begun_in(&warm, session, &key).await? == answer);
    }
    Ok(())
}

/// A UUIDv7 that a clock makes which is ahead by `minutes`.
async fn key_of(connection: &Connection, minutes: i32) -> Result<String> {
    let ms =
        format!("lpad(to_hex((extract(epoch FROM now() + interval '{minutes} minutes') * 1000)::bigint), 12, '0')");
    let rest = "'-7' || substr(gen_random_uuid()::text, 16, 4) || 'a' || substr(gen_random_uuid()::text, 21)";
    connection.text(&format!("SELECT left({ms}, 8) || '-' || right({ms}, 4) || {rest}")).await
}

/// How often a begin of a new key looks into the segment.
async fn looks_into(connection: &Connection, segment: &str, key: &str) -> Result<u64> {
    // The statistics also have what earlier transactions did, until that is handed on.
    let looks =
        format!("SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_xact_all_tables WHERE relname = 'outcome_{segment}'");
    let told =
        connection.text(&format!("BEGIN; {looks}; SELECT FROM idem_begin('s', '{key}'); {looks}; ROLLBACK")).await?;
    let counts: Vec<u64> = told.lines().filter_map(|line| line.parse().ok()).collect();
    ensure!(counts.len() == 2, "{told}");
    Ok(counts[1] - counts[0])
}

// Goal: an outcome in a closed segment is met, however new its key is, and whoever put it there; and where no key is as new,
// the segment is not looked into.
// Method: keys of clocks that are ahead; a turn of the ring; rows that a superuser moves into the closed segment, with our
// triggers and without them. What was looked into is what the statistics of the transaction say.
async fn a_key_that_is_newer_than_a_closed_segment_is_met_there_all_the_same(version: Version) -> Result<()> {
    let (server, warm, other) = start(version).await?;
    let dba = server.connect(DATABASE).await?;
    let (now, ahead) = (key_of(&dba, 0).await?, key_of(&dba, 60).await?);
    warm.execute("s", &now, "1").await?;
    warm.execute("s", &ahead, "2").await?;
    warm.execute("s", "no uuid", "3").await?;

    let of = |state: &str| format!("SELECT segment FROM idempotence.segments WHERE state = '{state}'");
    let former = dba.text(&of("current")).await?;
    dba.text("UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current").await?;
    server.wait_for(DATABASE, &of("closed"), &former).await?;
    let current = dba.text(&of("current")).await?;
    ensure!(current != former);

    for connection in [&warm, &other, &server.connect(DATABASE).await?] {
        for (key, response) in [(now.as_str(), "1"), (ahead.as_str(), "2"), ("no uuid", "3")] {
            ensure!(connection.replay("s", key).await? == format!("succeeded|{response}"), "{key}");
        }
        // After a replay, a begin looks twice.
        connection.text("BEGIN; SELECT FROM idem_begin('s', 'k'); ROLLBACK").await?;
        // The segment was closed just now, and the newest key there is an hour ahead.
        for (minutes, looks) in [(0, 1), (30, 0), (120, 1)] {
            let key = key_of(&dba, minutes).await?;
            ensure!(looks_into(connection, &former, &key).await? == looks, "{minutes} minutes ahead");
        }
        ensure!(looks_into(connection, &former, "another that is no uuid").await? == 1);
    }

    for (minutes, before, after) in [
        (20, String::new(), String::new()),
        (
            40,
            format!("ALTER TABLE idempotence.outcome_{former} DISABLE TRIGGER ALL"),
            format!("ALTER TABLE idempotence.outcome_{former} ENABLE TRIGGER ALL"),
        ),
    ] {
        let key = key_of(&dba, minutes).await?;
        warm.execute("s", &key, "4").await?;
        let moved = format!(
            "WITH taken AS (DELETE FROM idempotence.outcome_{current} WHERE key = '{key}' RETURNING *)
             INSERT INTO idempotence.outcome_{former} SELECT * FROM taken"
        );
        dba.text(&format!("BEGIN; {before}; {moved}; {after}; COMMIT")).await?;
        for connection in [&warm, &other] {
            ensure!(connection.replay("s", &key).await? == "succeeded|4", "{minutes} minutes ahead");
        }
    }
    Ok(())
}

// Goal: the ring says in a transaction of its own where it turns to, before it turns.
// Method: the step, one transaction at a time and two at once, on a server whose worker stays away.
async fn the_ring_announces_where_it_turns_to(version: Version) -> Result<()> {
    let (server, warm, _other) = warmed(shop::start_unvisited(version)?).await?;
    let dba = server.connect(DATABASE).await?;
    dba.text("CALL idem_sweep()").await?;
    warm.execute("s", "k", "1").await?;
    dba.text("UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current").await?;
    let ring = "SELECT string_agg(CASE WHEN current THEN 'current' WHEN opening THEN 'opening' ELSE '-' END, ' ' ORDER BY number) FROM idempotence.segment";
    let turn = "SELECT idempotence.sweep_step('turn')";
    // In one transaction the second step waits for the commit of the first.
    ensure!(dba.text(&format!("BEGIN; {turn}; {turn}; COMMIT")).await? == "t\nf");
    ensure!(dba.text(ring).await? == "current opening -");
    ensure!(dba.text(turn).await? == "f");
    ensure!(dba.text(ring).await? == "- current -");
    Ok(())
}

// Goal: what was recorded in the next segment is met by a connection that has not heard of the turn.
// Method: a module keeps the turn's messages back when the turn can be seen already. A connection that knows nothing yet
// reads the new pointer and records; one that knows the former pointer begins the same request.
async fn an_outcome_is_met_before_the_message_that_the_ring_has_turned(version: Version) -> Result<()> {
    let (server, warm, _other) = warmed(shop::start_unvisited(version)?).await?;
    let late = CModule::build(version, "late_messages", &[])?;
    let dba = server.connect(DATABASE).await?;
    dba.text("CALL idem_sweep()").await?;
    dba.text("UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current").await?;
    let turn = "SELECT idempotence.sweep_step('turn')";
    // The announcement.
    ensure!(dba.text(turn).await? == "t");
    warm_up(&warm, "after the announcement").await?;

    let file = late.beside("wait");
    dba.text(&format!("LOAD '{}'; SET late_messages.file = '{file}'", late.library())).await?;
    std::fs::write(&file, "")?;
    let turned = async {
        dba.text(turn).await?;
        Ok::<_, anyhow::Error>(())
    };
    let meanwhile = async {
        server.wait_for(DATABASE, "SELECT number FROM idempotence.segment WHERE current", "1").await?;
        let fresh = server.connect(DATABASE).await?;
        fresh.execute("s", "k", "1").await?;
        let recorded = "SELECT tableoid::regclass FROM idempotence.outcome_1 WHERE key = 'k'";
        ensure!(fresh.text(recorded).await? == "idempotence.outcome_1");
        let met = warm.replay("s", "k").await;
        std::fs::remove_file(&file)?;
        ensure!(met? == "succeeded|1");
        Ok(())
    };
    tokio::try_join!(turned, meanwhile)?;
    ensure!(warm.replay("s", "k").await? == "succeeded|1");
    Ok(())
}
