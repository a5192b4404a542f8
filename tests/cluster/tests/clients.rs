//! Client sessions under load: requests run side by side, each has one effect, and signs of life come in
//! between.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::client::id_of;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::load::{LEVELS, check_happened, disturb};
use idempotence_cluster_tests::senders::{APPLICATION, Senders};
use idempotence_cluster_tests::shop::{DATABASE, start};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use tokio::sync::Barrier;
use tokio::time::{Duration, Instant, sleep, timeout};

on_each_version!(
    requests_of_one_session_run_side_by_side_and_keep_it_alive,
    requests_of_different_sessions_do_not_abort_each_other,
    first_outcomes_at_once_all_count,
    late_calls_do_not_keep_each_other_s_session_alive,
    registrations_at_once_leave_one_session,
    numbered_requests_take_effect_once_through_rollbacks_cancels_and_kills,
);

async fn connect(server: &Cluster, count: usize) -> Result<Vec<Connection>> {
    let connections = try_join_all((0..count).map(|_| server.connect(DATABASE))).await?;
    for connection in &connections {
        connection.text(&format!("SET application_name = '{APPLICATION}'")).await?;
    }
    Ok(connections)
}

// Goal: nothing revives a session whose clock has run out, also not many calls that look at it at the same moment.
// Method: eight connections begin and give signs of life, all at once and again and again, after the timeout. Half of them
// have used the session before.
async fn late_calls_do_not_keep_each_other_s_session_alive(version: Version) -> Result<()> {
    let server = start(version)?;
    let superuser = server.connect(DATABASE).await?;
    let session = superuser.register("window_size => 8, timeout => '1 s'").await?;
    superuser.execute(&session, "1", "1").await?;
    let connections = connect(&server, 8).await?;
    for connection in &connections[..4] {
        connection.text(&format!("SELECT idem_heartbeat('{session}')")).await?;
    }
    let is_late = "SELECT bool_and(clock_timestamp() > last_seen + 2 * timeout) FROM idempotence.session_live";
    while superuser.text(is_late).await? == "f" {
        sleep(Duration::from_millis(50)).await;
    }
    try_join_all(connections.iter().zip(1..).map(async |(connection, number)| {
        for _ in 0..100 {
            for call in [format!("idem_begin('{session}', {number})"), format!("idem_heartbeat('{session}')")] {
                ensure!(connection.sqlstate(&format!("SELECT FROM {call}")).await? == "ID004", "{call}");
            }
        }
        Ok(())
    }))
    .await?;
    Ok(())
}

// Goal: a session can run as many requests side by side as its window is wide. At each isolation level, no
// request waits for a lock, not even for a sign of life. The signs of life come often enough to keep the
// session alive, and no more often.
// Method: five connections, each with its own slot, work for longer than the timeout of the session. All the
// time another connection looks for waits.
async fn requests_of_one_session_run_side_by_side_and_keep_it_alive(version: Version) -> Result<()> {
    let server = start(version)?;
    let watcher = server.connect(DATABASE).await?;
    for lane in 0..WINDOW {
        // The effects are not part of the test, so the connections do not even share a page of a table.
        watcher.text(&format!("CREATE TABLE effect_{lane} (number bigint NOT NULL)")).await?;
    }
    let session = watcher.register(&format!("window_size => {WINDOW}, timeout => '2 s'")).await?;
    // The first outcomes of a session do wait for each other, once.
    watcher.execute(&session, &WINDOW.to_string(), "1").await?;

    let connections = connect(&server, WINDOW).await?;
    let finished = AtomicBool::new(false);
    let load = try_join_all(connections.iter().enumerate().map(async |(lane, connection)| {
        let mut number = if lane == 0 { 2 * WINDOW } else { lane };
        let mut executed = 0;
        while !finished.load(Relaxed) {
            let level = LEVELS[executed % LEVELS.len()];
            let begin = format!("SELECT status FROM idem_begin('{session}', {number})");
            ensure!(connection.text(&format!("BEGIN ISOLATION LEVEL {level}; {begin}")).await? == "started", "{begin}");
            connection.text(&format!("INSERT INTO effect_{lane} VALUES ({number})")).await?;
            connection.text(&format!("SELECT FROM idem_record('{session}', {number}, '{number}')")).await?;
            connection.text("COMMIT").await?;
            number += WINDOW;
            executed += 1;
        }
        connection.text("SELECT pg_stat_force_next_flush()").await?;
        Ok(executed)
    }));
    let watch = watch_for_waits(&watcher, &session, &finished);
    let (executed, most) = tokio::try_join!(load, watch)?;

    ensure!(most == WINDOW, "no more than {most} requests were seen side by side");
    println!("{executed:?} requests, of which each lane's ran side by side");
    for (lane, executed) in executed.iter().enumerate() {
        let effects = format!("SELECT count(*), count(DISTINCT number) FROM effect_{lane}");
        ensure!(watcher.text(&effects).await? == format!("{executed}|{executed}"));
    }
    watcher.text(&format!("SELECT idem_heartbeat('{session}')")).await?;
    // Two signs of life are at least an eighth of the timeout apart. The first comes with the registration.
    let signs =
        "SELECT n_tup_upd > 8, n_tup_upd <= 1 + extract(epoch FROM clock_timestamp() - created_at) * 4, n_tup_upd
         FROM pg_stat_user_tables, idempotence.session_live WHERE relname = 'session_live'";
    let signs = watcher.text(signs).await?;
    ensure!(signs.starts_with("t|t|"), "signs of life: {signs}");
    Ok(())
}

/// The number of requests of a session that the test must see at work at once.
const WINDOW: usize = 5;

/// Looks at all senders until the session is more than twice as old as its timeout. Returns the largest
/// number of requests that were at work at once.
async fn watch_for_waits(watcher: &Connection, session: &str, finished: &AtomicBool) -> Result<usize> {
    // A backend that extends a table locks it for that moment. That is the server's own business.
    let waiting = format!(
        "SELECT a.pid, a.wait_event, l.locktype, l.mode, l.relation::regclass, l.objsubid
         FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted
         WHERE application_name = '{APPLICATION}' AND (wait_event_type = 'Lock' OR l.pid IS NOT NULL)
           AND COALESCE(l.locktype, a.wait_event) IS DISTINCT FROM 'extend'"
    );
    // 0x1DE1, see src/lock.rs.
    let at_work =
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 7649 AND granted";
    let is_old = format!(
        "SELECT clock_timestamp() > created_at + 2.5 * timeout FROM idempotence.sessions WHERE session = '{session}'"
    );
    let mut most = 0;
    let looks = async {
        // On a busy machine, it may take longer until all requests are seen at once.
        let start = Instant::now();
        while watcher.text(&is_old).await? == "f" || most < WINDOW && start.elapsed() < LIMIT {
            let waiting = watcher.text(&waiting).await?;
            ensure!(waiting.is_empty(), "waits for a lock: {waiting}");
            most = most.max(watcher.text(at_work).await?.parse()?);
        }
        Ok(most)
    };
    let most = looks.await;
    finished.store(true, Relaxed);
    most
}

// Goal: SERIALIZABLE transactions with requests of different sessions do not abort each other.
// Method: all that a client does, from the registration on, at that level, with new and old rows close
// together.
async fn requests_of_different_sessions_do_not_abort_each_other(version: Version) -> Result<()> {
    const CLIENTS: usize = 8;
    const ROUNDS: i64 = 100;
    let server = start(version)?;
    let connections = connect(&server, CLIENTS).await?;
    connections[0].text("CREATE TABLE effect (session text NOT NULL, stream bigint NOT NULL)").await?;
    try_join_all(connections.iter().enumerate().map(async |(client, connection)| {
        connection.text("SET default_transaction_isolation = 'serializable'").await?;
        let ordering = if client % 2 == 0 { "any" } else { "strict" };
        let session = connection.register(&format!("client => '{client}', ordering => '{ordering}'")).await?;
        for round in 1..=ROUNDS {
            for (stream, number) in [("", round), (&*format!("stream {round}"), 1)] {
                let request = format!("'{session}', {number}, stream => '{stream}'");
                connection.text(&format!("BEGIN; SELECT FROM idem_begin({request}, ack => {})", number - 1)).await?;
                connection.text(&format!("INSERT INTO effect VALUES ('{session}', {round})")).await?;
                connection.text(&format!("SELECT FROM idem_record({request})")).await?;
                connection.text("COMMIT").await?;
            }
            match round % 10 {
                0 => {
                    _ = connection
                        .text(&format!("SELECT idem_heartbeat('{session}'), idem_ack('{session}', {round})"))
                        .await?
                }
                1 if client % 2 == 0 => {
                    connection.text(&format!("SELECT idem_allocate('{session}', 1, 'allocated')")).await?;
                }
                2 => _ = connection.register(&format!("client => 'again {client}'")).await?,
                _ => {}
            }
        }
        Ok::<_, anyhow::Error>(())
    }))
    .await?;
    let effects = connections[0].text("SELECT count(*) FROM effect").await?;
    ensure!(effects == (2 * ROUNDS * CLIENTS as i64).to_string(), "{effects} effects");
    Ok(())
}

// Goal: if the first outcomes of a session come all at once, they make the session durable once, and all of
// them count, at each isolation level.
// Method: rounds, each with a new session and with as many requests at the same instant as its window is
// wide.
async fn first_outcomes_at_once_all_count(version: Version) -> Result<()> {
    const ROUNDS: usize = 60;
    let server = start(version)?;
    let connections = connect(&server, WINDOW).await?;
    let together = Barrier::new(WINDOW);
    for round in 0..ROUNDS {
        let level = LEVELS[round % LEVELS.len()];
        let session = connections[0].register(&format!("window_size => {WINDOW}")).await?;
        try_join_all(connections.iter().enumerate().map(async |(lane, connection)| {
            let number = lane + 1;
            connection
                .text(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM idem_begin('{session}', {number})"))
                .await?;
            together.wait().await;
            connection.text(&format!("SELECT FROM idem_record('{session}', {number}, '1', stream => ''); COMMIT")).await
        }))
        .await
        .with_context(|| format!("round {round}, {level}"))?;
        let position = connections[0].text(&format!("SELECT last_number FROM idem_position('{session}')")).await?;
        ensure!(position == WINDOW.to_string(), "round {round}: the session is at {position}");
        let kept = format!(
            "SELECT (SELECT count(*) FROM idempotence.session WHERE id = '{id}'),
                    (SELECT count(*) FROM idempotence.reply WHERE session = '{id}')",
            id = id_of(&session)
        );
        ensure!(connections[0].text(&kept).await? == format!("1|{WINDOW}"), "round {round}");
    }
    Ok(())
}

// Goal: if several registrations of one client come at once, one session is left. If they have the same
// request id, all of them get the same session.
// Method: rounds of eight registrations at the same instant. The client is new, or has a session with an
// outcome.
async fn registrations_at_once_leave_one_session(version: Version) -> Result<()> {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 40;
    let server = start(version)?;
    let connections = connect(&server, CLIENTS).await?;
    let together = Barrier::new(CLIENTS);
    for round in 0..ROUNDS {
        let by_id = round % 2 == 0;
        let id =
            if by_id { connections[0].text("SELECT quote_literal(gen_random_uuid())").await? } else { "NULL".into() };
        let client = format!("client => 'c {}', request_id => {id}", round / 4);
        let sessions = try_join_all(connections.iter().map(async |connection| {
            together.wait().await;
            connection.register(&client).await
        }))
        .await?;
        let (mut alive, mut fenced) = (HashSet::new(), HashSet::new());
        for session in &sessions {
            match connections[0].answer(session, "1").await?.as_str() {
                "started|" => _ = alive.insert(session),
                "ID005" => _ = fenced.insert(session),
                other => bail!("round {round}: {other}"),
            }
        }
        let wanted = if by_id { 0 } else { CLIENTS - 1 };
        ensure!(alive.len() == 1 && fenced.len() == wanted, "round {round}: of {sessions:?} there live {alive:?}");
        // With this outcome, the next round finds a saved session of the client.
        for session in alive {
            connections[0].execute(session, "1", "1").await?;
        }
    }
    Ok(())
}

// Goal: no double execution of thousands of numbered requests of either order, each sent by two connections,
// whatever ends their attempts.
// Method: see `senders`. The clients roll back at random, and are cancelled and killed from outside.
async fn numbered_requests_take_effect_once_through_rollbacks_cancels_and_kills(version: Version) -> Result<()> {
    let server = start(version)?;
    // Two sessions have two lanes each, and four sessions have one lane: eight lanes, each with two
    // connections.
    let (senders, wanted) = (Senders::register(&server, DATABASE, 2, 2, 4).await?, requests(5_000, 20_000));
    let finished = AtomicBool::new(false);
    let load = async {
        let sent = senders.send(wanted / 8).await;
        finished.store(true, Relaxed);
        sent
    };
    timeout(5 * LIMIT, async { tokio::try_join!(load, disturb(&server, DATABASE, APPLICATION, &finished)) })
        .await
        .context("the clients do not come to an end")??;
    senders.prove().await?;
    ensure!(senders.answered() == wanted);
    let tally = &senders.tally;
    println!("{tally:?}");
    // Each kind of disturbance has happened.
    check_happened(&[
        ("rollback", &tally.rolled_back),
        ("cancel", &tally.cancelled),
        ("lost connection", &tally.disconnected),
        ("serialization failure", &tally.unserializable),
        ("wait that ran out", &tally.in_progress),
        ("replay", &tally.replayed),
    ])
}
