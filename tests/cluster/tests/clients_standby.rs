//! Client sessions on a hot standby, after its promotion, and after an orderly restart.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::client::Brief;
use idempotence_cluster_tests::fixture::{self, Fixture};
use idempotence_cluster_tests::senders::Senders;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::{check_traceless, start_synchronous};
use idempotence_cluster_tests::{Cluster, Version, on_each_version};
use rand::RngExt;

on_each_version!(
    a_standby_answers_what_was_numbered_and_refuses_what_would_have_to_be_executed,
    a_promoted_standby_goes_on_with_every_session_that_has_an_outcome,
    a_promotion_gives_a_saved_session_its_full_timeout_anew,
    a_failover_under_load_loses_no_answer_and_repeats_no_numbered_request,
    an_orderly_restart_keeps_sessions_with_an_outcome_and_without,
);

/// Starts a primary with the fixture, and a standby that has all of it.
async fn start(version: Version) -> Result<(Cluster, Cluster, Fixture)> {
    let primary = Cluster::start(version)?;
    fixture::create_roles(&primary)?;
    primary.create_database(DATABASE)?;
    let standby = primary.standby()?;
    let fixture = fixture::fill(&primary, DATABASE).await?;
    standby.catch_up_with(&primary)?;
    Ok((primary, standby, fixture))
}

// Goal: a standby answers what was done, tells which sessions have ended, says plainly what it cannot do, and
// writes nothing.
// Method: every request of the fixture, each function, and a request that is open on the primary.
async fn a_standby_answers_what_was_numbered_and_refuses_what_would_have_to_be_executed(
    version: Version,
) -> Result<()> {
    let (primary, standby, fixture) = start(version).await?;
    let on_primary = primary.connect_as(DATABASE, "app").await?;
    let session = on_primary.register("client => 'standby'").await?;
    on_primary.execute(&session, "1", "1").await?;
    on_primary
        .text(&format!("BEGIN; SELECT FROM idem_begin('{session}', 2); SELECT FROM idem_record('{session}', 2, '2')"))
        .await?;
    standby.catch_up_with(&primary)?;

    let on_standby = standby.connect_as(DATABASE, "app").await?;
    on_standby.text("SET idempotence.wait = -1").await?;
    ensure!(on_standby.replay(&session, "1").await? == "succeeded|1");
    for (number, known) in [("1", "succeeded"), ("2", "not_here"), ("3", "not_here")] {
        ensure!(on_standby.lookup(&session, number).await? == known, "{number}");
    }
    ensure!(on_standby.text(&format!("SELECT * FROM idem_position('{session}')")).await? == "1|2|0|0");
    for call in [
        "begin('$', 2)",
        "begin('$', 3)",
        "begin('$', 6)",
        "begin('$', 1, stream => 's')",
        "heartbeat('$')",
        "ack('$', 1)",
        "allocate('$', 1)",
        "close('$')",
        "register()",
        "register(client => 'standby', resume => true)",
        "register(client => 'another')",
    ] {
        let state = on_standby.sqlstate(&format!("SELECT FROM idem_{}", call.replace('$', &session))).await?;
        ensure!(state == "25006", "idem_{call} gives {state} instead of 25006");
    }
    for call in ["record('$', 1)", "checkpoint('$', 2, 'p')", "release('$', 2)"] {
        let state = on_standby.sqlstate(&format!("SELECT FROM idem_{}", call.replace('$', &session))).await?;
        ensure!(state == "ID007", "idem_{call} gives {state} instead of ID007");
    }
    check_traceless(&on_standby, &session, "1").await?;
    fixture_is_readable(&standby, &fixture).await?;

    // A session that ends on the primary also ends on the standby.
    on_primary.text("ROLLBACK").await?;
    on_primary.register("client => 'standby'").await?;
    standby.catch_up_with(&primary)?;
    ensure!(on_standby.answer(&session, "1").await? == "ID005");
    ensure!(on_standby.lookup(&session, "1").await? == "succeeded");
    Ok(())
}

/// Checks that the standby replays all that the primary replays, and that the views show what is logged.
async fn fixture_is_readable(standby: &Cluster, fixture: &Fixture) -> Result<()> {
    let app = fixture::connect(standby, DATABASE, "app").await?;
    for (request, wanted) in [("4", "ID001"), ("1", "ID003"), ("3", "ID003")] {
        let payload = if wanted == "ID001" { ", payload => '0'" } else { "" };
        let answer = fixture.clients.answer(&app, &format!("{request}{payload}")).await?;
        ensure!(answer == wanted, "request {request} gives {answer} instead of {wanted}");
    }
    fixture.clients.check_answers(&app).await?;
    // The primary may well have the unlogged session.
    ensure!(app.answer(&fixture.clients.unsaved, "1").await? == "25006");
    ensure!(app.lookup(&fixture.clients.unsaved, "1").await? == "not_here");
    let watcher = fixture::connect(standby, DATABASE, "watcher").await?;
    let shown = "SELECT count(*) FILTER (WHERE ended IS NULL), count(*) FILTER (WHERE ended = 'closed'),
                        count(*) FILTER (WHERE ended = 'expired'), count(*) FILTER (WHERE ended = 'fenced'),
                        every(saved AND last_seen IS NULL)
                 FROM idempotence.sessions WHERE kind = 'client'";
    let shown = watcher.text(shown).await?;
    ensure!(shown == "3|1|1|2|t", "the view shows {shown}");
    ensure!(watcher.text("SELECT count(*) FROM idempotence.outcomes WHERE stream IS NOT NULL").await? == "9");
    Ok(())
}

// Goal: a promoted standby continues all that was committed: answers, refusals and positions.
// Method: every request of the fixture, on connections from before the promotion and from after it.
async fn a_promoted_standby_goes_on_with_every_session_that_has_an_outcome(version: Version) -> Result<()> {
    let (primary, standby, fixture) = start(version).await?;
    let warm = fixture::connect(&standby, DATABASE, "app").await?;
    fixture.clients.check_answers(&warm).await?;
    primary.kill9()?;
    standby.promote()?;
    fixture.check_replays(&warm).await?;
    ensure!(warm.answer(&fixture.clients.unsaved, "1").await? == "ID004");
    fixture.check(&standby, DATABASE).await
}

// Goal: no timeout runs on a standby, and a promotion gives each session a full timeout.
// Method: a session has ended on the primary before the failover, but no call has noted it; see `Brief`.
async fn a_promotion_gives_a_saved_session_its_full_timeout_anew(version: Version) -> Result<()> {
    let primary = shop::start(version)?;
    let standby = primary.standby()?;
    let on_primary = primary.connect(DATABASE).await?;
    let sessions = Brief::register(&on_primary).await?;
    standby.catch_up_with(&primary)?;
    sessions.wait_for_end(&on_primary).await?;
    let on_standby = standby.connect(DATABASE).await?;
    primary.kill9()?;
    standby.promote()?;
    sessions.check_full_timeout(&on_standby).await
}

// Goal: with synchronous replication, a failover loses no answer to a numbered request and repeats no effect.
// Method: see `senders`. The primary is killed, the standby is promoted, and the clients go to it.
async fn a_failover_under_load_loses_no_answer_and_repeats_no_numbered_request(version: Version) -> Result<()> {
    let primary = shop::start(version)?;
    let standby = start_synchronous(&primary, "remote_apply").await?;

    let senders = Senders::register(&primary, DATABASE, 1, 3, 2).await?;
    let failover = async {
        senders.progress(rand::rng().random_range(100..300)).await?;
        primary.kill9()?;
        standby.promote()?;
        senders.move_to(&standby);
        Ok(())
    };
    tokio::try_join!(senders.send(200), failover)?;
    senders.prove().await?;
    ensure!(senders.tally.disconnected.load(Relaxed) > 0, "no client noticed the failover");
    Ok(())
}

// Goal: an orderly restart loses nothing, not even what is unlogged, and no timeout runs while the server is
// down.
// Method: sessions with an outcome and without, whose last sign of life was long ago, as after a long pause.
async fn an_orderly_restart_keeps_sessions_with_an_outcome_and_without(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let before = server.connect(DATABASE).await?;
    let (saved, unsaved) = (before.register("").await?, before.register("client => 'c'").await?);
    before.execute(&saved, "1", "1").await?;
    before.text("UPDATE idempotence.session_live SET last_seen = last_seen - '8 days'::interval").await?;
    server.restart()?;
    let after = server.connect(DATABASE).await?;
    ensure!(after.replay(&saved, "1").await? == "succeeded|1");
    after.execute(&saved, "2", "2").await?;
    let resumed = after.register("client => 'c', resume => true").await?;
    ensure!(resumed == unsaved, "the session without an outcome is another");
    after.execute(&unsaved, "1", "1").await.context("after a resumption")
}
