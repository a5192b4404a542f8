//! The ring of segments under load, and under changes of how long outcomes live: no outcome is gone before
//! its time, none is there twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

on_each_version!(
    outcomes_live_for_their_time_while_the_ring_turns,
    changes_of_ttl_and_retention_drop_no_outcome_that_lives,
    a_restored_ring_keeps_what_was_restored,
    a_large_restored_segment_is_looked_through_in_parts,
    a_year_among_days_does_not_keep_the_days,
    many_that_live_for_years_keep_only_so_much_of_others,
    restores_and_sweeps_do_not_meet,
);

const DATABASE: &str = "shop";

/// So often the ring turns in the stress test. The outcomes live for a second, and each segment for that.
const TURNS: usize = 45;

/// Lets segments grow old at once: the current one is due to be turned away from, and what is closed is
/// kept for the ttl alone, without the six minutes on top. So the ring is as quick as it may ever be. What has
/// expired for less than a minute moves all the same, so nearly everything does.
const HURRY: &str = "
    UPDATE idempotence.segment SET opened_at = opened_at - interval '1 hour' WHERE current;
    UPDATE idempotence.segment SET closed_at = closed_at - interval '6 minutes'
     WHERE closed_at > clock_timestamp() - interval '5 minutes'";

/// Executions with the time at which each was begun at the latest, and until when its outcome lived.
const SETUP: &str = "
    SELECT idem_create_session('s', ttl => '1 s'), idem_create_session('in', ttl => '1 s', inbox => true);
    CREATE TABLE effect (session text, key text, begun_at timestamptz, expires_at timestamptz);
    -- The pace that such outcomes have.
    UPDATE idempotence.segment SET keep_us = 361000000";

/// Executions of one request of which the later one was begun while the earlier one's outcome lived.
const DOUBLED: &str = "
    SELECT * FROM (SELECT *, lag(expires_at) OVER w AS earlier FROM effect
                   WINDOW w AS (PARTITION BY session, key ORDER BY begun_at)) e
     WHERE begun_at < earlier";

// Goal: no outcome is lost before its time and none doubled, however segments are turned, closed and emptied.
// Method: clients execute the same few requests again and again, in transactions of random length, some
// rolled back, some prepared; messages come in batches that overlap; meanwhile the ring is hurried on.
async fn outcomes_live_for_their_time_while_the_ring_turns(version: Version) -> Result<()> {
    let server = Cluster::start_with(version, &[("max_prepared_transactions", "20")])?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, SETUP)?;
    let (closing, replays) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for number in 0..6 {
        let connection = server.connect(DATABASE).await?;
        connection.text("SET idempotence.wait = '20 s'").await?;
        let (closing, replays) = (Arc::clone(&closing), Arc::clone(&replays));
        clients.spawn(async move {
            while !closing.load(Relaxed) {
                if number < 4 {
                    replays.fetch_add(usize::from(request(&connection, number).await?), Relaxed);
                } else {
                    messages(&connection).await?;
                }
            }
            anyhow::Ok(())
        });
    }

    let dba = server.connect(DATABASE).await?;
    let pointer = "SELECT number FROM idempotence.segment WHERE current";
    let (mut turns, mut current) = (0, dba.text(pointer).await?);
    while turns < TURNS {
        dba.text(HURRY).await?;
        dba.text("CALL idem_sweep()").await?;
        let now = dba.text(pointer).await?;
        turns += usize::from(now != current);
        current = now;
        if let Some(ended) = clients.try_join_next() {
            ended?.context("a client gave up")?;
        }
        // The pace, not a wait for anything.
        sleep(Duration::from_millis(100)).await;
    }
    closing.store(true, Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended?.context("a client gave up")?;
    }

    let doubled = dba.text(DOUBLED).await?;
    ensure!(doubled.is_empty(), "executed while the outcome lived:\n{doubled}");
    ensure!(dba.text("SELECT count(*) > 0 FROM idempotence.outcome_long").await? == "t", "nothing was moved");
    let kinds = "SELECT count(*) > 100, count(*) FILTER (WHERE session = 'in') > 100 FROM effect";
    ensure!(dba.text(kinds).await? == "t|t", "there was hardly any load");
    ensure!(replays.load(Relaxed) > 100, "hardly anything was replayed");
    Ok(())
}

/// Executes one of a few requests, or gets its answer, which must be that of an execution; whether it was a
/// replay.
async fn request(connection: &Connection, number: usize) -> Result<bool> {
    let key = format!("k{}", rand::rng().random_range(0..40));
    let (nap_ms, fate) = (rand::rng().random_range(0..60), rand::rng().random_range(0..20));
    let begin = format!("BEGIN; SELECT status, replayed, response FROM idem_begin('s', '{key}')");
    let ticket = connection.text(&begin).await?;
    if ticket.contains("|t|") {
        connection.text("COMMIT").await?;
        ensure!(ticket.starts_with("succeeded|t|"), "{key}: {ticket}");
        return Ok(true);
    }
    ensure!(ticket.starts_with("started|f|"), "{key}: {ticket}");
    let long = if fate == 0 { 700 } else { nap_ms };
    let work = format!(
        "INSERT INTO effect SELECT 's', '{key}', clock_timestamp(); SELECT FROM pg_sleep({long} / 1000.0);
         UPDATE effect SET expires_at = idem_record('s', '{key}', '{number}')
          WHERE session = 's' AND key = '{key}' AND expires_at IS NULL"
    );
    connection.text(&work).await?;
    match fate {
        1 | 2 => _ = connection.text("ROLLBACK").await?,
        3 | 4 => {
            connection.text(&format!("PREPARE TRANSACTION 'client {number}'")).await?;
            connection.text(&format!("SELECT FROM pg_sleep({nap_ms} / 100.0)")).await?;
            let end = if fate == 3 { "COMMIT" } else { "ROLLBACK" };
            connection.text(&format!("{end} PREPARED 'client {number}'")).await?;
        }
        _ => _ = connection.text("COMMIT").await?,
    }
    Ok(false)
}

/// Notes a batch of messages; those that are new take effect. Their outcomes live from some moment of the
/// call on, so at least from before it.
async fn messages(connection: &Connection) -> Result<()> {
    let first = rand::rng().random_range(0..60);
    let (nap_ms, fate) = (rand::rng().random_range(0..50), rand::rng().random_range(0..10));
    let batch = format!(
        "BEGIN; CREATE TEMP TABLE before ON COMMIT DROP AS SELECT clock_timestamp() AS at;
         INSERT INTO effect
         SELECT 'in', request, clock_timestamp(), (SELECT at FROM before) + interval '1 s'
           FROM idem_once_many('in', ARRAY(SELECT 'm' || n FROM generate_series({first}, {first} + 9) n));
         SELECT FROM pg_sleep({nap_ms} / 1000.0); {}",
        if fate == 0 { "ROLLBACK" } else { "COMMIT" }
    );
    connection.text(&batch).await.map(drop)
}

/// Lets time pass, for outcomes and segments alike.
fn time_passes(hours: i64) -> String {
    let outcomes: String = ["0", "1", "2", "long"]
        .iter()
        .map(|n| {
            format!(
                "UPDATE idempotence.outcome_{n} SET recorded_at = recorded_at - interval '{hours} hours',
                                                    expires_at = expires_at - interval '{hours} hours';"
            )
        })
        .collect();
    format!(
        "{outcomes} UPDATE idempotence.segment SET opened_at = opened_at - interval '{hours} hours',
                                                   closed_at = closed_at - interval '{hours} hours',
                                                   looked_at = looked_at - interval '{hours} hours';
         UPDATE recorded SET expires_at = expires_at - interval '{hours} hours'"
    )
}

/// Requests whose outcome lives and is not found, or does not and is.
const WRONG: &str = "
    SELECT r.session, r.key, r.expires_at, t.status
      FROM recorded r CROSS JOIN LATERAL idem_lookup(r.session, r.key) t
     WHERE (t.status = 'succeeded') <> (r.expires_at > clock_timestamp())";

// Goal: whatever is done to ttl and retention, up and down, an outcome is found until its time, and not after it.
// Method: a random walk of records, changes, sweeps and passing time, held against a table of what was
// recorded. In the end, once all has expired, one sweep after the other empties every segment.
async fn changes_of_ttl_and_retention_drop_no_outcome_that_lives(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
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
                // This connection reads it with its next statement.
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
    // Keep is at most 700 hours; what turns and is emptied takes three rounds.
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

// Goal: a restore under whatever ttl loses nothing early, though the new ring knows nothing of it.
// Method: outcomes in all three segments, two of them living for a year under a session that has a ttl of
// an hour now, are restored; then time passes, and the ring turns.
async fn a_restored_ring_keeps_what_was_restored(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
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
    let dump = server.home().join("dump");
    idempotence_cluster_tests::run(
        server
            .program("pg_dump")
            .args(["-Fc", "-d"])
            .arg(server.connect_string(DATABASE, "postgres"))
            .arg("-f")
            .arg(&dump),
        None,
    )?;
    server.psql("postgres", "CREATE DATABASE restored")?;
    idempotence_cluster_tests::run(
        server.program("pg_restore").arg("-d").arg(server.connect_string("restored", "postgres")).arg(&dump),
        None,
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
    // It works, and once all has expired it turns and empties as any.
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

/// Puts outcomes into a segment, four a page, of which the last one lives.
fn restore(outcomes: usize) -> String {
    format!(
        "INSERT INTO idempotence.outcome_1 (digest, session, recorded_at, expires_at, recorded_by, class, key)
         SELECT gen_random_uuid(), s.id, now(), now() + CASE n WHEN {outcomes} THEN interval '50 days' ELSE interval '-1 hour' END,
                current_user::regrole, 's', lpad(n::text, 1850, 'x')
           FROM generate_series(1, {outcomes}) n, idempotence.session s WHERE s.name = 's'"
    )
}

// Goal: a segment that is too large for one look is looked through in parts, to its end, whatever was put into
// it meanwhile; from the beginning when its rows were moved.
// Method: a segment of 5000 pages that is due, but for one outcome at its end; some are added after the first
// look; it is packed anew after the next.
async fn a_large_restored_segment_is_looked_through_in_parts(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
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
    // All are told, then what lives moves.
    look("t", "4096").await?;
    look("t", "4096").await?;
    ensure!(connection.text(rows).await? == "20018|2", "what lives has not moved");
    look("f", "5005").await?;
    ensure!(connection.text(rows).await? == "0|2", "expired outcomes stay");
    Ok(())
}

/// Executes so many requests, all of them once.
fn executed(session: &str, round: usize, requests: usize) -> String {
    format!("SELECT count(idem_run('{session}', '{round} ' || n, 'SELECT 1')) FROM generate_series(1, {requests}) n")
}

/// Outcomes in the segments.
const IN_SEGMENTS: &str =
    "SELECT (SELECT count(*) FROM idempotence.outcome_0) + (SELECT count(*) FROM idempotence.outcome_1)
                                + (SELECT count(*) FROM idempotence.outcome_2)";

// Goal: a few outcomes that live for a year, and sessions that were promised ten, keep no others' space.
// Method: laps of the ring with one for a year among fifty for a day; every one for a year is found in the end.
async fn a_year_among_days_does_not_keep_the_days(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
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
        // Three halves of a day, and what was recorded until the next sweep came by.
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

// Goal: a role whose outcomes live for years, and are many, keeps from the others no more than a few times the
// space of its own.
// Method: at first three in four live for ten years, then none; the sweep moves ten at a time only.
async fn many_that_live_for_years_keep_only_so_much_of_others(version: Version) -> Result<()> {
    let server = Cluster::start_with(version, &[("idempotence.sweep_batch", "10")])?;
    server.create_database(DATABASE)?;
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
        // Eight times as many; the time until that is seen, in samples; what is recorded until it is emptied.
        ensure!(kept <= 300 * 8 * 2 + 100 * 10, "{kept} outcomes are kept in segments in round {round}");
    }
    ensure!(most > 1000, "nothing had to be kept");
    ensure!(connection.text(IN_SEGMENTS).await?.parse::<usize>()? <= 100 * 4, "they are still kept");
    let lost =
        "SELECT count(*) FROM generate_series(1, 300) n WHERE (idem_lookup('years', '0 ' || n)).status <> 'succeeded'";
    ensure!(connection.text(lost).await? == "0", "some that live are lost");
    Ok(())
}

// Goal: restores, sessions being made and sweeps at the same time get in nobody's way but by waiting.
// Method: transactions that insert by SQL into each of the tables, makers of sessions and sweeps, in loops.
async fn restores_and_sweeps_do_not_meet(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 s')").await?;
    let closing = Arc::new(AtomicBool::new(false));
    let mut others = JoinSet::new();
    for (number, table) in ["outcome_0", "outcome_1", "outcome_long", "session"].into_iter().enumerate() {
        let (closing, restorer) = (Arc::clone(&closing), server.connect(DATABASE).await?);
        let maker = server.connect(DATABASE).await?;
        let of = Arc::clone(&closing);
        others.spawn(async move {
            while !closing.load(Relaxed) {
                let restore = format!("INSERT INTO idempotence.{table} SELECT * FROM idempotence.{table} WHERE false");
                restorer.text(&format!("BEGIN; {restore}; SELECT FROM pg_sleep(0.01); COMMIT")).await?;
                sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        });
        others.spawn(async move {
            for turn in 0.. {
                if of.load(Relaxed) {
                    break;
                }
                let make = format!("SELECT idem_create_session('{number} {turn}', ttl => '{} days')", turn % 3000 + 1);
                maker.text(&format!("BEGIN; {make}; SELECT FROM pg_sleep(0.01); COMMIT")).await?;
            }
            anyhow::Ok(())
        });
    }
    for turn in 0..200 {
        connection.execute("s", &turn.to_string(), "1").await?;
        connection.text("CALL idem_sweep()").await?;
        if let Some(ended) = others.try_join_next() {
            ended?.context("one gave up")?;
        }
    }
    closing.store(true, Relaxed);
    while let Some(ended) = others.join_next().await {
        ended?.context("one gave up")?;
    }
    Ok(())
}
