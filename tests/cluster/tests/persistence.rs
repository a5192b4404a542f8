//! What a DBA has chosen to be logged or unlogged: leases (`claims`) and client sessions at work (`sessions`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use idempotence_cluster_tests::crashes::Crash;
use idempotence_cluster_tests::dump::{dump, restore};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::upgrade::upgrade;
use idempotence_cluster_tests::workers::Workers;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use rand::RngExt;
use tokio::time::{sleep, timeout};

on_each_version!(
    what_is_unlogged_waits_for_no_flush,
    a_crash_takes_unlogged_claims_away_and_nothing_else,
    a_crash_takes_no_logged_claim_away,
    a_logged_claim_survives_a_crash_whatever_synchronous_commit_says,
    a_crash_takes_only_unlogged_sessions_away,
    a_standby_does_without_unlogged_claims,
    a_choice_under_load_is_made_or_refused_and_never_hangs,
    a_choice_survives_restarts_crashes_and_restores,
);

const APPLICATION: &str = "holder";

async fn start(version: Version, choices: &[(&str, &str)]) -> Result<(Cluster, Connection)> {
    let server = shop::start(version)?;
    server.psql(DATABASE, "SELECT idem_create_session('jobs')")?;
    let connection = server.connect(DATABASE).await?;
    for (what, how) in choices {
        ensure!(choose(&connection, what, how).await? == "t", "{what} were {how} before");
    }
    Ok((server, connection))
}

/// Makes a choice. Returns whether the table has changed, or the SQLSTATE.
async fn choose(connection: &Connection, what: &str, how: &str) -> Result<String> {
    connection.outcome_of(&format!("SELECT idem_set_persistence('{what}', '{how}')")).await
}

/// How the two tables are kept: `p` for logged, `u` for unlogged.
const KEPT: &str = "SELECT string_agg(relpersistence, '' ORDER BY relname) FROM pg_class
                     WHERE oid IN ('idempotence.lease'::regclass, 'idempotence.session_live'::regclass)";

const LEVEL: &str = "SELECT status FROM idempotence.health WHERE name = 'persistence'";

/// Begins a request with a lease. Returns its token.
async fn lease(connection: &Connection, key: &str, length: &str) -> Result<i64> {
    let token = connection.text(&format!("SELECT token FROM idem_begin('jobs', '{key}', lease => '{length}')")).await?;
    token.parse().with_context(|| format!("request {key} has the token {token:?}"))
}

fn record(key: &str, token: i64) -> String {
    format!("SELECT FROM idem_record('jobs', '{key}', '{token}', token => {token})")
}

// Goal: where claims are unlogged, no call that is about a lease alone waits for a flush. The same for sessions and
// their registration. Where they are logged, each call waits for one.
// Method: the position up to which the log is flushed, before and after each of many calls. Nobody else is at work.
async fn what_is_unlogged_waits_for_no_flush(version: Version) -> Result<()> {
    const CALLS: usize = 100;
    /// The server itself may flush now and then.
    const OWN: usize = 2;
    let quiet = [("wal_writer_delay", "10s"), ("autovacuum", "off"), ("checkpoint_timeout", "1h")];
    let server = shop::start_with(version, &quiet)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('jobs'); SET synchronous_commit = on").await?;
    for (claims, sessions) in [("logged", "unlogged"), ("unlogged", "logged")] {
        choose(&connection, "claims", claims).await?;
        choose(&connection, "sessions", sessions).await?;
        // What the first call after a change writes is not counted.
        connection.text("SELECT idem_register()").await?;
        lease(&connection, &format!("first {claims}"), "10 min").await?;
        let calls: [(&str, &str); 5] = [
            (claims, "SELECT token FROM idem_begin('jobs', '$', lease => '10 min')"),
            (
                claims,
                "SELECT idem_extend('jobs', l.request, l.token, '20 min') FROM idempotence.lease l WHERE request = '$'",
            ),
            (
                claims,
                "SELECT idem_release('jobs', l.request, token => l.token) FROM idempotence.lease l WHERE request = '$'",
            ),
            (sessions, "SELECT idem_register()"),
            ("logged", "BEGIN; SELECT FROM idem_begin('jobs', '$'); SELECT FROM idem_record('jobs', '$'); COMMIT"),
        ];
        for (kept, call) in calls {
            let mut flushes = 0;
            for number in 0..CALLS {
                let flushed = connection.text("SELECT pg_current_wal_flush_lsn()").await?;
                connection.text(&call.replace('$', &format!("{claims} {number}"))).await?;
                flushes += usize::from(connection.text("SELECT pg_current_wal_flush_lsn()").await? != flushed);
            }
            let as_wanted = if kept == "logged" { flushes == CALLS } else { flushes <= OWN };
            ensure!(as_wanted, "{kept}: {flushes} flushes in {CALLS} times {call}");
        }
    }
    Ok(())
}

/// Has requests in all states, on a connection that a crash may hit. Returns the tokens of two that are leased.
async fn lease_all(server: &Cluster) -> Result<[i64; 2]> {
    let holder = server.connect(DATABASE).await?;
    holder.text(&format!("SET application_name = '{APPLICATION}'")).await?;
    let (plain, held) = (lease(&holder, "plain", "10 min").await?, lease(&holder, "held", "10 ms").await?);
    holder.text(&format!("SELECT idem_checkpoint('jobs', 'held', 'half', '7', token => {held})")).await?;
    let done = lease(&holder, "done", "10 min").await?;
    holder.text(&record("done", done)).await?;
    holder.text("SELECT FROM idem_settle('jobs', 'cancelled')").await?;
    holder.text("BEGIN; SELECT FROM idem_begin('jobs', 'in a claim')").await?;
    // The holder stays connected, so that there is a backend to kill.
    tokio::spawn(async move { holder.wait_for_end().await });
    Ok([plain, held])
}

const FORGET: &str = "SELECT idem_forget('jobs', request, 'a test') FROM idempotence.outcomes WHERE session = 'jobs'";

// Goal: where claims are unlogged, a crash takes all leases away. Former holders are refused, requests start anew
// or go on from their checkpoint, and outcomes and checkpoints stay.
// Method: requests in each state, and each kind of crash.
async fn a_crash_takes_unlogged_claims_away_and_nothing_else(version: Version) -> Result<()> {
    let (server, _) = start(version, &[("claims", "unlogged")]).await?;
    for crash in Crash::ALL {
        let [plain, held] = lease_all(&server).await?;
        crash.of(&server, DATABASE, APPLICATION).await?;
        let after = server.reconnect(DATABASE).await?;
        for (key, known) in
            [("plain", "unknown"), ("held", "suspended"), ("done", "succeeded"), ("cancelled", "cancelled")]
        {
            let found = after.lookup("jobs", key).await?;
            ensure!(found == known, "{crash:?}: request {key} is {found} instead of {known}");
        }
        for (key, token) in [("plain", plain), ("held", held)] {
            for call in [record(key, token), format!("SELECT idem_extend('jobs', '{key}', {token}, '1 min')")] {
                let state = after.sqlstate(&call).await?;
                ensure!(state == "ID005", "{crash:?}: {call} gives {state}");
            }
        }
        let begin = async |key: &str, than: i64| {
            let begin = format!(
                "SELECT status, attempt, point, state, token > {than}
                   FROM idem_begin('jobs', '{key}', lease => '10 min')"
            );
            after.text(&begin).await
        };
        ensure!(begin("plain", plain).await? == "started|1|||t", "{crash:?}");
        ensure!(begin("held", held).await? == "started|1|half|7|t", "{crash:?}");
        ensure!(after.sqlstate(&record("held", held)).await? == "ID005", "{crash:?}");
        after.text("SELECT idem_record('jobs', request, token => token) FROM idempotence.lease").await?;
        after.text(FORGET).await?;
    }
    Ok(())
}

// Goal: where claims are logged, as they are by default, a crash changes nothing about leases.
// Method: the same requests and crashes.
async fn a_crash_takes_no_logged_claim_away(version: Version) -> Result<()> {
    let (server, _) = start(version, &[]).await?;
    for crash in Crash::ALL {
        let [plain, held] = lease_all(&server).await?;
        crash.of(&server, DATABASE, APPLICATION).await?;
        let after = server.reconnect(DATABASE).await?;
        for (key, known) in [("plain", "in_progress"), ("held", "in_progress"), ("done", "succeeded")] {
            ensure!(after.lookup("jobs", key).await? == known, "{crash:?}: request {key}");
        }
        let ticket = "SELECT status FROM idem_begin('jobs', 'plain', wait => '0', lease => '1 min')";
        ensure!(after.text(ticket).await? == "in_progress", "{crash:?}");
        let ticket = "SELECT status, attempt, point, state FROM idem_begin('jobs', 'held', lease => '1 min')";
        ensure!(after.text(ticket).await? == "taken_over|2|half|7", "{crash:?}");
        ensure!(after.sqlstate(&record("held", held)).await? == "ID005", "{crash:?}");
        after.text(&record("plain", plain)).await?;
        after.text("SELECT idem_record('jobs', request, token => token) FROM idempotence.lease").await?;
        after.text(FORGET).await?;
    }
    Ok(())
}

// Goal: where claims are logged, a lease that was answered outlives a crash, and so do its extension and a take-over,
// even if the caller's commits wait for no flush.
// Method: no process flushes by itself for a while. A crash right after the answer.
async fn a_logged_claim_survives_a_crash_whatever_synchronous_commit_says(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[("wal_writer_delay", "10s"), ("synchronous_commit", "off")])?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('jobs'); CHECKPOINT").await?;
    let first = lease(&connection, "j", "10 ms").await?;
    server.crash()?;
    let connection = server.connect(DATABASE).await?;
    let newer = connection.text("SELECT token FROM idem_begin('jobs', 'j', wait => '1 min', lease => '10 ms')").await?;
    server.crash()?;
    let connection = server.connect(DATABASE).await?;
    ensure!(connection.sqlstate(&record("j", first)).await? == "ID005", "the crash took the take-over away");
    connection.text(&format!("SELECT idem_extend('jobs', 'j', {newer}, '10 min')")).await?;
    server.crash()?;
    let connection = server.connect(DATABASE).await?;
    let ticket = "SELECT status, expires_at > now() + '5 min' FROM idem_begin('jobs', 'j', wait => '0')";
    ensure!(connection.text(ticket).await? == "in_progress|t", "the crash took the extension away");
    Ok(())
}

// Goal: a client session that has done nothing yet survives a crash if sessions are logged, and only then.
// Method: a registration, a crash of each kind, the first request and a resumption.
async fn a_crash_takes_only_unlogged_sessions_away(version: Version) -> Result<()> {
    for (how, answer) in [("logged", "started|"), ("unlogged", "ID004")] {
        let (server, connection) = start(version, &[]).await?;
        choose(&connection, "sessions", how).await?;
        for crash in Crash::ALL {
            let holder = server.reconnect(DATABASE).await?;
            holder.text(&format!("SET application_name = '{APPLICATION}'")).await?;
            let client = format!("client => '{crash:?}'");
            let session = holder.register(&client).await?;
            crash.of(&server, DATABASE, APPLICATION).await?;
            let after = server.reconnect(DATABASE).await?;
            let found = after.answer(&session, "1").await?;
            ensure!(found == answer, "{how}, {crash:?}: a first request gives {found}");
            let resumed = after.register(&format!("{client}, resume => true")).await?;
            ensure!((resumed == session) == (how == "logged"), "{how}, {crash:?}: resumed as {resumed}");
            after.execute(&resumed, "1", "1").await?;
        }
    }
    Ok(())
}

// Goal: a standby has no unlogged claims, and fails at nothing because of that. After its promotion requests start
// anew.
// Method: look-ups and views on the standby, and begins after the promotion.
async fn a_standby_does_without_unlogged_claims(version: Version) -> Result<()> {
    let (primary, on_primary) = start(version, &[("claims", "unlogged"), ("sessions", "logged")]).await?;
    let standby = primary.standby()?;
    let token = lease(&on_primary, "j", "10 min").await?;
    let session = on_primary.register("").await?;
    standby.catch_up_with(&primary)?;
    let on_standby = standby.connect(DATABASE).await?;
    ensure!(on_standby.lookup("jobs", "j").await? == "not_here");
    ensure!(on_standby.text("SELECT count(*) FROM idempotence.unfinished").await? == "0");
    on_standby.text("SELECT * FROM idempotence.health; SELECT * FROM idempotence.sessions").await?;
    for call in ["begin('jobs', 'j', lease => '1 min')", "begin('jobs', 'j')", "settle('jobs', 'j')"] {
        ensure!(on_standby.sqlstate(&format!("SELECT FROM idem_{call}")).await? == "25006", "{call}");
    }
    primary.kill9()?;
    standby.promote()?;
    ensure!(on_standby.lookup("jobs", "j").await? == "unknown");
    ensure!(on_standby.sqlstate(&record("j", token)).await? == "ID005");
    let begin = "SELECT status, attempt FROM idem_begin('jobs', 'j', lease => '1 min')";
    ensure!(on_standby.text(begin).await? == "started|1");
    let answer = on_standby.answer(&session, "1").await?;
    ensure!(answer == "started|", "a logged session gives {answer} after the promotion");
    Ok(())
}

// Goal: a choice under load is made or refused (55006), soon in either case, and no claim gets lost by it.
// Method: see `workers`. Beside them the choice goes back and forth; now and then somebody keeps the table in use.
async fn a_choice_under_load_is_made_or_refused_and_never_hangs(version: Version) -> Result<()> {
    const REQUESTS: usize = 300;
    const SOON: Duration = Duration::from_secs(10);
    let (server, dba) = start(version, &[]).await?;
    server.psql(DATABASE, "SELECT idem_drop_session('jobs')")?;
    let workers = Workers::new(&server, DATABASE, REQUESTS)?;
    let (user, finished) = (server.connect(DATABASE).await?, AtomicBool::new(false));
    let (mut made, mut refused) = (0, 0);
    let choices = async {
        for turn in 0.. {
            if finished.load(Relaxed) {
                break;
            }
            let kept_in_use = turn % 4 == 3;
            if kept_in_use {
                user.text("BEGIN; SELECT count(*) FROM idempotence.lease, idempotence.session_live").await?;
            }
            for what in ["claims", "sessions"] {
                let how = if turn % 2 == 0 { "unlogged" } else { "logged" };
                let answer = timeout(SOON, choose(&dba, what, how)).await.context("a choice hangs")??;
                match answer.as_str() {
                    "t" if kept_in_use => bail!("a table was changed that was in use"),
                    "t" => made += 1,
                    "f" => {}
                    "55006" => refused += 1,
                    _ => bail!("a choice is answered {answer}"),
                }
            }
            user.text("ROLLBACK").await?;
            let pause = Duration::from_millis(rand::rng().random_range(0..20));
            sleep(pause).await;
        }
        Ok(())
    };
    let work = async {
        let worked = workers.work().await;
        finished.store(true, Relaxed);
        worked
    };
    tokio::try_join!(work, choices)?;
    workers.prove().await?;
    println!("{made} choices made, {refused} refused");
    ensure!(made > 2 && refused > 2, "{made} choices were made, {refused} refused");
    Ok(())
}

async fn check_chosen(server: &Cluster, database: &str, moment: &str) -> Result<()> {
    let connection = server.reconnect(database).await?;
    let (kept, level) = (connection.text(KEPT).await?, connection.text(LEVEL).await?);
    ensure!(kept == "up" && level == "ok", "{moment}, the tables are {kept}, and health says {level}");
    Ok(())
}

// Goal: a choice holds through restarts and crashes, a rollback takes it back, and a restore brings it along.
// Method: the reverse of both defaults; dump and restore, with what `health` says before the next sweep.
async fn a_choice_survives_restarts_crashes_and_restores(version: Version) -> Result<()> {
    let (server, connection) = start(version, &[]).await?;
    connection.text("BEGIN; SELECT idem_set_persistence('claims', 'unlogged'); ROLLBACK").await?;
    ensure!(connection.text(KEPT).await? == "pu");
    for (what, how) in [("claims", "unlogged"), ("sessions", "logged")] {
        ensure!(choose(&connection, what, how).await? == "t" && choose(&connection, what, how).await? == "f");
    }
    lease(&connection, "j", "10 min").await?;
    check_chosen(&server, DATABASE, "at first").await?;
    server.restart()?;
    check_chosen(&server, DATABASE, "after a restart").await?;
    // An orderly stop takes no lease away.
    ensure!(server.connect(DATABASE).await?.lookup("jobs", "j").await? == "in_progress");
    server.crash()?;
    check_chosen(&server, DATABASE, "after a crash").await?;

    let elsewhere = Cluster::start(version)?;
    let dumped = dump(&server, &server, DATABASE, &[])?;
    restore(&elsewhere, "new", &dumped)?;
    let restored = elsewhere.connect("new").await?;
    ensure!(restored.text(KEPT).await? == "pu", "CREATE EXTENSION makes the tables as they are by default");
    let told = restored.text("SELECT status, detail FROM idempotence.health WHERE name = 'persistence'").await?;
    ensure!(told.starts_with("warning|leases are logged") && told.contains("sessions"), "health says {told}");
    restored.text("CALL idem_sweep()").await?;
    check_chosen(&elsewhere, "new", "after the sweep").await?;
    // A dump that leaves the unlogged leases out is as complete as one after a crash.
    restore(&elsewhere, "bare", &dump(&server, &server, DATABASE, &["--no-unlogged-table-data"])?)?;
    let bare = elsewhere.connect("bare").await?;
    ensure!(bare.text("SELECT status FROM idem_begin('jobs', 'j', lease => '1 min')").await? == "started");
    // What was chosen by default since then is dumped, too.
    ensure!(choose(&restored, "claims", "logged").await? == "t");
    restore(&elsewhere, "newer", &dump(&elsewhere, &elsewhere, "new", &[])?)?;
    elsewhere.psql("newer", "CALL idem_sweep()")?;
    ensure!(elsewhere.psql("newer", KEPT)? == "pp\n");
    Ok(())
}

// Goal: an upgraded cluster has what was chosen, and the leases.
// Method: pg_upgrade from 15 to 18, which stops the old server in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_keeps_the_choice_and_the_leases() -> Result<()> {
    let (old, connection) = start(Version::Pg15, &[("claims", "unlogged"), ("sessions", "logged")]).await?;
    let (live, out) = (lease(&connection, "live", "10 min").await?, lease(&connection, "out", "10 ms").await?);
    let new = Cluster::start(Version::Pg18)?;
    upgrade(&old, &new, "--copy")?;
    check_chosen(&new, DATABASE, "after the upgrade").await?;
    let after = new.connect(DATABASE).await?;
    ensure!(after.text("SELECT status FROM idem_begin('jobs', 'live', wait => '0')").await? == "in_progress");
    after.text(&record("live", live)).await?;
    let begin = format!("SELECT status, token > {out} FROM idem_begin('jobs', 'out', lease => '1 min')");
    ensure!(after.text(&begin).await? == "taken_over|t");
    ensure!(after.sqlstate(&record("out", out)).await? == "ID005");
    Ok(())
}
