//! What is left of client sessions when a backend or the whole server is killed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::client::{Brief, UP};
use idempotence_cluster_tests::senders::Senders;
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use rand::RngExt;
use tokio::sync::Barrier;
use tokio::time::{Duration, Instant, sleep};

on_each_version!(
    a_session_without_an_outcome_is_gone_after_a_crash,
    a_session_with_an_outcome_goes_on_after_a_crash,
    whatever_saves_a_session_lets_it_go_on_after_a_crash,
    a_late_registration_of_a_lost_session_fences_no_newer_one,
    an_ended_session_stays_ended_through_crashes,
    a_fenced_session_stays_fenced_through_crashes,
    a_crash_gives_a_saved_session_its_full_timeout_anew,
    an_orderly_restart_ends_no_session_for_those_who_watch_either,
    signs_of_life_that_restore_a_session_do_not_wait_for_each_other,
    a_prepared_first_outcome_keeps_its_session_through_a_crash,
    a_prepared_registration_keeps_the_former_session_through_a_crash,
    no_number_is_allocated_twice_whatever_crashes,
    crashes_at_random_lose_no_answer_and_repeat_no_numbered_request,
);

const DATABASE: &str = "shop";

fn start(version: Version) -> Result<Cluster> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
    Ok(server)
}

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    /// All processes at once.
    Server,
    /// One backend; the server ends the others, and recovers by itself.
    Backend,
}

const EITHER: [Killed; 2] = [Killed::Server, Killed::Backend];

async fn crash(server: &Cluster, killed: Killed) -> Result<Connection> {
    match killed {
        Killed::Server => {
            server.kill9()?;
            server.start()?;
        }
        Killed::Backend => {
            let (doomed, witness) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
            ensure!(server.kill9_backend(doomed.pid().await?), "there is no such backend");
            // Until the server has noticed, it lets clients in and has the dead one's locks.
            witness.wait_for_end().await?;
        }
    }
    server.reconnect(DATABASE).await
}

/// Calls that need a session alive, with what they must be answered with.
async fn all_refuse(connection: &Connection, session: &str, state: &str) -> Result<()> {
    for call in [
        format!("SELECT status FROM idem_begin('{session}', 1)"),
        format!("SELECT status FROM idem_begin('{session}', 2)"),
        format!("SELECT idem_heartbeat('{session}')"),
        format!("SELECT idem_ack('{session}', 7)"),
        format!("SELECT idem_allocate('{session}', 1)"),
    ] {
        let found = connection.outcome_of(&call).await?;
        ensure!(found == state, "{call} gives {found} instead of {state}");
    }
    let close = connection.outcome_of(&format!("SELECT idem_close('{session}')")).await?;
    let wanted = if state == "ID005" { state } else { "f" };
    ensure!(close == wanted, "closing it gives {close} instead of {wanted}");
    Ok(())
}

// Goal: what a crash voids is just what had no outcome: the session is gone, and says so.
// Method: registered, used in every way that records nothing, and in use when the crash comes.
async fn a_session_without_an_outcome_is_gone_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let id = before.text("SELECT idem_generate_id()").await?;
        let client = format!("client => 'c {killed:?}', request_id => '{id}'");
        let session = before.register(&client).await?;
        before
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT FROM idem_record('{session}', 1); ROLLBACK;
                 BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT idem_release('{session}', 1); COMMIT;
                 SELECT idem_heartbeat('{session}');
                 BEGIN; SELECT FROM idem_begin('{session}', 2); SELECT FROM idem_record('{session}', 2)"
            ))
            .await?;

        let after = crash(&server, killed).await?;
        all_refuse(&after, &session, "ID004").await?;
        let lookup = after.sqlstate(&format!("SELECT FROM idem_lookup('{session}', 1)")).await?;
        ensure!(lookup == "ID004", "looked up: {lookup}");
        // Its client starts over.
        let again = after.text(&format!("SELECT resumed, next_number, session FROM idem_register({client})")).await?;
        let again = again.strip_prefix("f|1|").with_context(|| format!("registered anew: {again}"))?;
        ensure!(again != session, "a session came back");
        after.execute(again, "1", "1").await?;
    }
    Ok(())
}

// Goal: a crash takes nothing from a session with an outcome: neither answers, nor what is past, nor its place.
// Method: both orders, with numbers kept, overwritten, acknowledged and half done; the same answers after.
async fn a_session_with_an_outcome_goes_on_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        before.text("CHECKPOINT").await?;
        let any = before.register("window_size => 3").await?;
        for number in 1..=6 {
            before.execute(&any, &number.to_string(), &number.to_string()).await?;
        }
        before.text(&format!("SELECT idem_ack('{any}', 4)")).await?;
        before
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('{any}', 7, payload => '1'); SELECT idem_checkpoint('{any}', 7, 'p', '2'); COMMIT;
                 BEGIN; SELECT FROM idem_begin('{any}', 8); SELECT FROM idem_record('{any}', 8)"
            ))
            .await?;
        let other = server.reconnect(DATABASE).await?;
        let strict = other.register("window_size => 2, ordering => 'strict'").await?;
        for (first, last) in [(1, 3), (4, 4), (5, 9)] {
            other.execute_range(&strict, first, last, &first.to_string()).await?;
        }

        let after = crash(&server, killed).await?;
        for (session, request, wanted) in [
            (&any, "5", "succeeded|5"),
            (&any, "6", "succeeded|6"),
            (&any, "4", "ID003"),
            (&any, "1", "ID003"),
            (&any, "11", "ID006"),
            (&any, "7, payload => '3'", "ID001"),
            (&any, "7", "started|"),
            (&any, "8", "started|"),
            (&strict, "5, last => 9", "succeeded|5"),
            (&strict, "4", "succeeded|4"),
            (&strict, "1, last => 3", "ID003"),
            (&strict, "9, last => 10", "ID006"),
            (&strict, "11", "ID006"),
            (&strict, "10, last => 12", "started|"),
        ] {
            let answer = after.answer(session, request).await?;
            ensure!(answer == wanted, "{killed:?}: begin {request} gives {answer} instead of {wanted}");
        }
        let point = format!("BEGIN; SELECT point, state FROM idem_begin('{any}', 7, payload => '1'); ROLLBACK");
        ensure!(after.text(&point).await? == "p|2");
        after.execute(&any, "7", "7").await?;
        after.execute(&any, "8", "8").await?;
        after.execute_range(&strict, 10, 12, "10").await?;
        ensure!(after.text(&format!("SELECT * FROM idem_position('{any}')")).await? == "8|9|4|0");
        ensure!(after.text(&format!("SELECT * FROM idem_position('{strict}')")).await? == "12|13|0|0");
        ensure!(after.text(&format!("SELECT idem_close('{any}'), idem_close('{strict}')")).await? == "t|t");
    }
    Ok(())
}

// Goal: it takes no outcome to make a session durable: all that its client was promised does.
// Method: a checkpoint, an acknowledgement, an allocation, each the first of a session, then a crash.
async fn whatever_saves_a_session_lets_it_go_on_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut sessions = Vec::new();
        for saving in [
            "BEGIN; SELECT FROM idem_begin('$', 1); SELECT idem_checkpoint('$', 1, 'p'); COMMIT",
            "SELECT idem_ack('$', 1, 'elsewhere')",
            "SELECT idem_allocate('$', 1, 'elsewhere')",
            "BEGIN; SELECT FROM idem_begin('$', 1, stream => 'elsewhere'); SELECT FROM idem_record('$', 1, stream => 'elsewhere', failed => true); COMMIT",
        ] {
            let session = before.register("").await?;
            before.text(&saving.replace('$', &session)).await?;
            sessions.push(session);
        }
        let after = crash(&server, killed).await?;
        for session in &sessions {
            after.text(&format!("SELECT idem_heartbeat('{session}')")).await?;
            after.execute(session, "1", "1").await?;
        }
        let [_, acked, allocated, recorded] = &sessions[..] else { unreachable!() };
        ensure!(after.answer(acked, "1, stream => 'elsewhere'").await? == "ID003");
        ensure!(after.text(&format!("SELECT idem_allocate('{allocated}', 1, 'elsewhere')")).await? == "2");
        ensure!(after.answer(recorded, "1, stream => 'elsewhere'").await? == "failed|");
    }
    Ok(())
}

// Goal: a registration that arrives after a crash, and after its client has registered anew, fences nobody.
// Method: the first session is unused when the crash comes. Ids with a time in them and ids without; the
// newer session is registered with such an id, with another, and with none.
async fn a_late_registration_of_a_lost_session_fences_no_newer_one(version: Version) -> Result<()> {
    const IDS: [&str; 3] = ["idem_generate_id()", "gen_random_uuid()", "NULL"];
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut late = Vec::new();
        for first in &IDS[..2] {
            for newer in IDS {
                let client = format!("c {first} {newer} {killed:?}");
                let id = before.text(&format!("SELECT {first}")).await?;
                let registration = format!("client => '{client}', request_id => '{id}'");
                let session = before.register(&registration).await?;
                late.push((client, registration, newer, session));
            }
        }
        let after = crash(&server, killed).await?;
        for (client, registration, newer, lost) in &late {
            let session = after.register(&format!("client => '{client}', request_id => {newer}")).await?;
            let state = after.sqlstate(&format!("SELECT FROM idem_register({registration})")).await?;
            ensure!(state == "ID005", "{client}: the late registration gives {state}");
            after.execute(&session, "1", "1").await?;
            let former = after.answer(lost, "1").await?;
            ensure!(["ID004", "ID005"].contains(&former.as_str()), "{client}: the former session answers {former}");
        }
    }
    Ok(())
}

// Goal: no crash brings a session back that was ended.
// Method: closed and expired ones, with an outcome and without; the crash twice, for recovery's own sake.
async fn an_ended_session_stays_ended_through_crashes(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let id = before.text("SELECT gen_random_uuid()").await?;
        let closed = before.register("").await?;
        before.execute(&closed, "1", "1").await?;
        let closed_unused = before.register(&format!("request_id => '{id}'")).await?;
        let client = format!("client => 'c {killed:?}', timeout => '2 s'");
        let expired = before.register(&client).await?;
        before.execute(&expired, "1", "1").await?;
        for session in [&closed, &closed_unused] {
            ensure!(before.text(&format!("SELECT idem_close('{session}')")).await? == "t");
        }
        before.silence(&expired).await?;
        // This finds it past its end.
        before.register(&client).await?;
        // An end that is not committed is none.
        let spared = before.register("").await?;
        before.execute(&spared, "1", "1").await?;
        ensure!(before.text(&format!("BEGIN; SELECT idem_close('{spared}')")).await? == "t");

        for _ in 0..2 {
            let after = crash(&server, killed).await?;
            for session in [&closed, &expired] {
                all_refuse(&after, session, "ID004").await?;
                ensure!(after.lookup(session, "1").await? == "succeeded", "its owner is not answered any more");
            }
            all_refuse(&after, &closed_unused, "ID004").await?;
            let again = after.sqlstate(&format!("SELECT FROM idem_register(request_id => '{id}')")).await?;
            ensure!(again == "ID004", "the registration of the ended session, sent again: {again}");
            ensure!(after.replay(&spared, "1").await? == "succeeded|1");
        }
    }
    Ok(())
}

// Goal: who was fenced never gets in again, through any crash, and who fenced stays in.
// Method: formers with an outcome and without; the registration of a fenced one arrives late, after each crash.
async fn a_fenced_session_stays_fenced_through_crashes(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut trios = Vec::new();
        for recorded in [true, false] {
            let (first, second) = (before.text("SELECT idem_generate_id()").await?, format!("{recorded} {killed:?}"));
            let client = format!("client => 'c {second}'");
            let late = format!("{client}, request_id => '{first}'");
            let former = before.register(&late).await?;
            if recorded {
                before.execute(&former, "1", "1").await?;
            }
            let current = before.register(&client).await?;
            before.execute(&current, "1", "1").await?;
            trios.push((former, current, late, client));
        }
        for round in 2..4 {
            let after = crash(&server, killed).await?;
            for (former, current, late, _) in &trios {
                all_refuse(&after, former, "ID005").await?;
                let state = after.sqlstate(&format!("SELECT FROM idem_register({late})")).await?;
                ensure!(state == "ID005", "a fenced one's registration, arriving late: {state}");
                after.execute(current, &round.to_string(), "1").await?;
            }
        }
        // A former one without an outcome is still fenced when the one that fenced it is gone as well.
        let mut fenced = Vec::new();
        for (_, current, _, client) in &trios {
            let unsaved = before_last(&server, client, &mut fenced, current).await?;
            fenced.push((unsaved, "ID004"));
        }
        let after = crash(&server, killed).await?;
        for (session, state) in &fenced {
            all_refuse(&after, session, state).await?;
        }
        for (_, _, late, client) in &trios {
            after.register(client).await?;
            ensure!(after.sqlstate(&format!("SELECT FROM idem_register({late})")).await? == "ID005");
        }
    }
    Ok(())
}

/// Fences twice more; gives the newest session, which has no outcome.
async fn before_last(
    server: &Cluster,
    client: &str,
    fenced: &mut Vec<(String, &'static str)>,
    current: &str,
) -> Result<String> {
    let connection = server.reconnect(DATABASE).await?;
    let next = connection.register(client).await?;
    let newest = connection.register(client).await?;
    fenced.extend([(current.to_owned(), "ID005"), (next, "ID005")]);
    Ok(newest)
}

// Goal: silence that a crash imposes is not the client's: a saved session gets its full timeout from when
// the server came up, and no more.
// Method: see `Brief`.
async fn a_crash_gives_a_saved_session_its_full_timeout_anew(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let sessions = Brief::register(&server.reconnect(DATABASE).await?).await?;
        sessions.check_full_timeout(&crash(&server, killed).await?).await?;
    }
    Ok(())
}

// Goal: nobody's time passes while the server is down, for the calls, and for those who watch or count.
// Method: an orderly restart long after the last signs of life of two sessions, one of them saved.
async fn an_orderly_restart_ends_no_session_for_those_who_watch_either(version: Version) -> Result<()> {
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

// Goal: the first signs of life after a crash, two at once, do not wait for each other, and one row comes of them.
// Method: one is kept between its sign and the end of its commit, by a standby that does not exist, while
// others come; then many pairs at once, for a session whose row is taken away again as by a crash.
async fn signs_of_life_that_restore_a_session_do_not_wait_for_each_other(version: Version) -> Result<()> {
    let server = start(version)?;
    let before = server.connect(DATABASE).await?;
    // A sign is due 2 seconds after the crash, and the rest must be done 18 seconds after it.
    let session = before.register("timeout => '16 s'").await?;
    before.execute(&session, "1", "1").await?;
    crash(&server, Killed::Server).await?;
    let is_due = format!("SELECT clock_timestamp() >= {UP} + '2 s'::interval");
    server.wait_for(DATABASE, &is_due, "t").await?;

    server.psql(DATABASE, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()")?;
    let committing = server.connect(DATABASE).await?;
    server.wait_for(DATABASE, "SHOW synchronous_standby_names", "nobody").await?;
    // It is the checkpointer that tells the others; before this it reads the setting.
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
    let rows = format!("SELECT count(*) FROM idempotence.session_live WHERE id = '{session}'");
    ensure!(other.text(&rows).await? == "0", "the first sign has been committed, or another given beside it");
    ensure!(other.text(&waits).await? == "SyncRep", "the first one did not wait that long");
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

// Goal: a session whose first outcome is prepared is neither gone nor there, until that is decided.
// Method: a crash takes the registration; then one is committed and one rolled back.
async fn a_prepared_first_outcome_keeps_its_session_through_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut sessions = Vec::new();
        for name in ["kept", "undone"] {
            let session = before.register("").await?;
            before
                .text(&format!(
                    "BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT FROM idem_record('{session}', 1, '1'); PREPARE TRANSACTION '{name}'"
                ))
                .await?;
            sessions.push(session);
        }
        let after = crash(&server, killed).await?;
        after.text("SET idempotence.wait = '10 ms'").await?;
        for session in &sessions {
            ensure!(after.answer(session, "1").await? == "in_progress|");
            ensure!(after.answer(session, "2").await? == "in_progress|");
            ensure!(after.lookup(session, "1").await? == "in_progress");
            for call in ["heartbeat('$')", "ack('$', 1)", "allocate('$', 1)", "close('$')"] {
                let state = after.sqlstate(&format!("SELECT idem_{}", call.replace('$', session))).await?;
                ensure!(state == "55P03", "idem_{call}: {state}");
            }
        }
        after.text("COMMIT PREPARED 'kept'").await?;
        after.text("ROLLBACK PREPARED 'undone'").await?;
        let [kept, undone] = &sessions[..] else { unreachable!() };
        ensure!(after.replay(kept, "1").await? == "succeeded|1");
        after.execute(kept, "2", "2").await?;
        all_refuse(&after, undone, "ID004").await?;
    }
    Ok(())
}

// Goal: a fencing that is prepared is no fencing yet, but nobody works in the former session meanwhile.
// Method: two prepared, a crash; one is committed, the other rolled back.
async fn a_prepared_registration_keeps_the_former_session_through_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut formers = Vec::new();
        for name in ["fencing", "undone"] {
            let client = format!("client => '{name} {killed:?}'");
            let former = before.register(&client).await?;
            before.execute(&former, "1", "1").await?;
            before.text(&format!("BEGIN; SELECT FROM idem_register({client}); PREPARE TRANSACTION '{name}'")).await?;
            formers.push((former, client));
        }
        let after = crash(&server, killed).await?;
        after.text("SET idempotence.wait = '10 ms'").await?;
        for (former, client) in &formers {
            ensure!(after.replay(former, "1").await? == "succeeded|1");
            ensure!(after.answer(former, "2").await? == "in_progress|");
            let state = after.sqlstate(&format!("SELECT FROM idem_register({client})")).await?;
            ensure!(state == "55P03", "registered beside one that is prepared: {state}");
        }
        after.text("COMMIT PREPARED 'fencing'").await?;
        after.text("ROLLBACK PREPARED 'undone'").await?;
        let [(fenced, _), (spared, client)] = &formers[..] else { unreachable!() };
        all_refuse(&after, fenced, "ID005").await?;
        after.execute(spared, "2", "2").await?;
        after.register(client).await?;
        all_refuse(&after, spared, "ID005").await?;
    }
    Ok(())
}

// Goal: a number whose allocation was committed is never handed out again.
// Method: connections allocate in two streams of a session, rolling back now and then, through crashes of
// either sort; what they were told is held together.
async fn no_number_is_allocated_twice_whatever_crashes(version: Version) -> Result<()> {
    const CONNECTIONS: usize = 6;
    const STREAMS: [&str; 2] = ["", "s"];
    let server = start(version)?;
    let session = server.connect(DATABASE).await?.register("").await?;
    server.psql(DATABASE, &format!("SELECT idem_allocate('{session}', 1), idem_allocate('{session}', 1, 's')"))?;
    let (told, finished) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let count = || told.lock().map_or(0, |told| told.len());

    let allocate = try_join_all((0..CONNECTIONS).map(async |_| {
        let mut connection = server.reconnect(DATABASE).await?;
        while !finished.load(Relaxed) {
            let (stream, n) = (rand::rng().random_range(0..STREAMS.len()), rand::rng().random_range(1..5));
            let commits = rand::rng().random_bool(0.9);
            let allocate = format!("BEGIN; SELECT idem_allocate('{session}', {n}, '{}')", STREAMS[stream]);
            let done = async {
                let first = connection.try_text(&allocate).await?;
                connection.try_text(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
                Ok::<_, tokio_postgres::Error>(first)
            };
            match done.await {
                Ok(first) if commits => {
                    let first: i64 = first.parse()?;
                    told.lock().expect("nobody panics with it").push((stream, first, first + n));
                }
                Ok(_) => {}
                Err(error) if error.is_closed() || error.code().is_none_or(|state| state.code().starts_with("57P")) => {
                    connection = server.reconnect(DATABASE).await?;
                }
                Err(error) => return Err(error).context("allocating"),
            }
        }
        Ok(())
    }));
    let crashes = async {
        for round in 0..10 {
            let (start, wanted) = (Instant::now(), count() + rand::rng().random_range(1..200));
            while count() < wanted {
                ensure!(start.elapsed() <= LIMIT, "the allocations do not get on");
                sleep(Duration::from_millis(1)).await;
            }
            crash(&server, EITHER[round % 2]).await?;
        }
        finished.store(true, Relaxed);
        Ok(())
    };
    tokio::try_join!(allocate, crashes)?;

    let mut owners = BTreeMap::new();
    for (stream, first, next) in told.into_inner().expect("nobody panicked with it") {
        for number in first..next {
            ensure!(number > 1 && owners.insert((stream, number), first).is_none(), "{number} was handed out twice");
        }
    }
    let position =
        server.connect(DATABASE).await?.text(&format!("SELECT allocated FROM idem_position('{session}')")).await?;
    let greatest = owners.keys().filter(|(stream, _)| *stream == 0).map(|(_, number)| *number).max();
    ensure!(greatest <= Some(position.parse()?), "{greatest:?} was handed out, up to {position} is known");
    Ok(())
}

// Goal: no answer of a numbered request is lost and no effect repeated, whenever the server dies.
// Method: see `senders`; eight crashes of either sort, each after a random number of answers.
async fn crashes_at_random_lose_no_answer_and_repeat_no_numbered_request(version: Version) -> Result<()> {
    let server = start(version)?;
    // One session with three lanes, two with one.
    let senders = Senders::register(&server, DATABASE, 1, 3, 2).await?;
    let crashes = async {
        for round in 0..8 {
            senders.progress(rand::rng().random_range(1..200)).await?;
            crash(&server, EITHER[round % 2]).await?;
        }
        Ok(())
    };
    tokio::try_join!(senders.send(500), crashes)?;
    senders.prove().await?;
    ensure!(senders.tally.disconnected.load(Relaxed) > 0, "no client noticed any of the crashes");
    Ok(())
}
