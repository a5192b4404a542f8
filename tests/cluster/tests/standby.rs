//! Requests on a hot standby, and after its promotion.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::bank::Bank;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::{check_traceless, start_synchronous};
use idempotence_cluster_tests::{Cluster, Version, on_each_version};
use rand::RngExt;

on_each_version!(
    a_standby_replays_and_refuses_what_would_have_to_be_executed,
    a_warm_backend_of_a_standby_follows_the_primary,
    a_standby_that_is_promoted_executes,
    a_standby_replays_out_of_a_journal,
    a_former_primary_replays_nothing_that_the_new_one_may_lack,
    a_standby_that_reads_an_archive_replays,
    a_failover_under_load_loses_no_acknowledged_outcome_and_repeats_no_effect,
);

fn start(version: Version) -> Result<(Cluster, Cluster)> {
    let primary = shop::start(version)?;
    primary.psql(
        DATABASE,
        "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true);
         SELECT idem_create_session('timed', ttl => '1 day', time_keys => true)",
    )?;
    let standby = primary.standby()?;
    Ok((primary, standby))
}

// Goal: a standby answers what was done, says plainly what it cannot do, and never hangs.
// Method: each function on the standby, while the primary holds a claim that the standby cannot see.
async fn a_standby_replays_and_refuses_what_would_have_to_be_executed(version: Version) -> Result<()> {
    let (primary, standby) = start(version)?;
    let on_primary = primary.connect(DATABASE).await?;
    on_primary.execute("payments", "done", r#"{"n": 1}"#).await?;
    on_primary
        .text(
            "SELECT idem_once('mails', 'known');
             BEGIN; SELECT FROM idem_begin('payments', 'refused', payload => '1'); SELECT FROM idem_record('payments', 'refused', '2', failed => true); COMMIT;
             BEGIN; SELECT FROM idem_begin('payments', 'half'); SELECT idem_checkpoint('payments', 'half', 'p', '3'); COMMIT",
        )
        .await?;
    let time_key = on_primary.text("SELECT idem_generate_id()").await?;
    on_primary.execute("timed", &time_key, "4").await?;
    on_primary.text("BEGIN; SELECT FROM idem_begin('payments', 'open')").await?;
    standby.catch_up_with(&primary)?;

    let on_standby = standby.connect(DATABASE).await?;
    on_standby.text("SET idempotence.wait = -1").await?;
    ensure!(on_standby.replay("payments", "done").await? == r#"succeeded|{"n": 1}"#);
    ensure!(on_standby.replay("timed", &time_key).await? == "succeeded|4");
    let replay = "SELECT replayed, status, response FROM idem_begin('payments', 'refused', payload => '1')";
    ensure!(on_standby.text(replay).await? == "t|failed|2");
    let replay = "SELECT replayed, response FROM idem_run('payments', 'done', 'SELECT 1')";
    ensure!(on_standby.text(replay).await? == r#"t|{"n": 1}"#);
    ensure!(
        on_standby
            .text("SELECT idem_once('mails', 'known'), count(*) FROM idem_once_many('mails', '{known,known}')")
            .await?
            == "f|0"
    );
    check_traceless(&on_standby, "payments", "'done'").await?;

    for (key, known) in
        [("done", "succeeded"), ("refused", "failed"), ("half", "not_here"), ("open", "not_here"), ("new", "not_here")]
    {
        ensure!(on_standby.lookup("payments", key).await? == known, "{key}");
    }
    // An explanation foresees what a begin answers here, and tells that it cannot see who is at work on the primary.
    for (key, foreseen, unfinished) in [
        ("done", "succeeded", ""),
        ("refused", "failed", ""),
        ("half", "25006", "suspended"),
        ("open", "25006", ""),
        ("new", "25006", ""),
    ] {
        let explain = format!(
            "SELECT e #>> '{{of,server}}', e -> 'now', coalesce(e #>> '{{begin_answers,status}}', e #>> '{{begin_answers,sqlstate}}'), e #>> '{{unfinished,state}}'
             FROM idem_explain('payments', '{key}') e"
        );
        ensure!(on_standby.text(&explain).await? == format!("standby|null|{foreseen}|{unfinished}"), "{key}");
    }
    ensure!(on_standby.text("SELECT string_agg(request, ' ') FROM idem_outcomes('payments')").await? == "refused done");
    for (call, state) in [
        ("begin('payments', 'new')", "25006"),
        ("begin('payments', 'open')", "25006"),
        ("begin('payments', 'half')", "25006"),
        ("begin('payments', 'refused', payload => '2')", "ID001"),
        ("begin('typo', 'new')", "42704"),
        ("run('payments', 'new', 'SELECT 1')", "25006"),
        ("once('mails', 'new')", "25006"),
        ("once_many('mails', '{known,new}')", "25006"),
        ("record('payments', 'new')", "ID007"),
        ("checkpoint('payments', 'half', 'q')", "ID007"),
        ("create_session('another')", "25006"),
        ("alter_session('payments', ttl => '1 hour')", "25006"),
        ("drop_session('payments')", "25006"),
        ("forget('payments', 'done', 'a test')", "25006"),
    ] {
        let found = on_standby.sqlstate(&format!("SELECT FROM idem_{call}")).await?;
        ensure!(found == state, "idem_{call} gives {found} instead of {state}");
    }
    check_traceless(&on_standby, "payments", "'done'").await?;
    ensure!(on_standby.text("SELECT count(*) FROM idempotence.outcomes").await? == "4");
    ensure!(on_standby.text("SELECT count(*) FROM idempotence.sessions").await? == "3");
    Ok(())
}

// Goal: a backend of a standby forgets what it remembers when the primary changes it.
// Method: the same connection asks again after each change. The last change is a new extension.
async fn a_warm_backend_of_a_standby_follows_the_primary(version: Version) -> Result<()> {
    let (primary, standby) = start(version)?;
    let on_primary = primary.connect(DATABASE).await?;
    let warm = standby.connect(DATABASE).await?;
    on_primary.execute("payments", "a", "1").await?;
    standby.catch_up_with(&primary)?;
    ensure!(warm.replay("payments", "a").await? == "succeeded|1");

    // A longer ttl also changes the row of the segment.
    on_primary.text("SELECT idem_alter_session('payments', ttl => '100 days', require_payload => true)").await?;
    on_primary.text("VACUUM FULL idempotence.outcome_0").await?;
    on_primary.text("REINDEX SCHEMA CONCURRENTLY idempotence").await?;
    standby.catch_up_with(&primary)?;
    ensure!(warm.sqlstate("SELECT FROM idem_begin('payments', 'a')").await? == "22004");
    ensure!(warm.text("SELECT response FROM idem_begin('payments', 'a', payload => '1')").await? == "1");

    on_primary.text("SELECT idem_drop_session('payments')").await?;
    standby.catch_up_with(&primary)?;
    ensure!(warm.sqlstate("SELECT FROM idem_begin('payments', 'a')").await? == "42704");

    on_primary.text("DROP EXTENSION idempotence").await?;
    standby.catch_up_with(&primary)?;
    ensure!(warm.sqlstate("SELECT FROM idem_begin('payments', 'a')").await? == "42883");
    on_primary.text("CREATE EXTENSION idempotence; SELECT idem_create_session('payments')").await?;
    on_primary.execute("payments", "a", "2").await?;
    standby.catch_up_with(&primary)?;
    ensure!(warm.replay("payments", "a").await? == "succeeded|2");
    Ok(())
}

// Goal: a promoted standby is a primary, also for backends that were connected before.
// Method: replay and refusal before the promotion, replay and execution after it, on the same connection.
async fn a_standby_that_is_promoted_executes(version: Version) -> Result<()> {
    let (primary, standby) = start(version)?;
    let on_primary = primary.connect(DATABASE).await?;
    on_primary.execute("payments", "done", "1").await?;
    on_primary.text("SELECT idem_once('mails', 'known')").await?;
    standby.catch_up_with(&primary)?;
    let warm = standby.connect(DATABASE).await?;
    ensure!(warm.replay("payments", "done").await? == "succeeded|1");
    ensure!(warm.sqlstate("SELECT FROM idem_begin('payments', 'new')").await? == "25006");

    primary.kill9()?;
    standby.promote()?;
    ensure!(warm.replay("payments", "done").await? == "succeeded|1");
    warm.execute("payments", "new", "2").await?;
    ensure!(warm.replay("payments", "new").await? == "succeeded|2");
    ensure!(warm.text("SELECT idem_once('mails', 'known'), idem_once('mails', 'new')").await? == "f|t");
    Ok(())
}

// Goal: a journal is read on a standby as our tables are, and written after a promotion.
// Method: outcomes, a lease and a checkpoint in a journal. Each call on the standby, then what was refused there, on
// the same connection, after the promotion.
async fn a_standby_replays_out_of_a_journal(version: Version) -> Result<()> {
    let primary = shop::start(version)?;
    primary.psql(
        DATABASE,
        "SELECT idem_create_journal('payment', 'account', 'bigint');
         SELECT idem_create_session('payments', journal => 'payment')",
    )?;
    let standby = primary.standby()?;
    let of = "stream => '7'";
    let on_primary = primary.connect(DATABASE).await?;
    on_primary
        .text(&format!(
            "BEGIN; SELECT FROM idem_begin('payments', 'done', '1', {of}); SELECT FROM idem_record('payments', 'done', '2', {of}); COMMIT;
             BEGIN; SELECT FROM idem_begin('payments', 'half', {of}); SELECT idem_checkpoint('payments', 'half', 'p', {of}); COMMIT;
             BEGIN; SELECT FROM idem_begin('payments', 'leased', lease => '1 hour', {of}); COMMIT;
             BEGIN; SELECT FROM idem_begin('payments', 'open', {of})"
        ))
        .await?;
    standby.catch_up_with(&primary)?;

    let on_standby = standby.connect(DATABASE).await?;
    on_standby.text("SET idempotence.wait = -1").await?;
    let replay = format!("SELECT status, replayed, response FROM idem_begin('payments', 'done', '1', {of})");
    ensure!(on_standby.text(&replay).await? == "succeeded|t|2");
    ensure!(on_standby.text(&format!("BEGIN READ ONLY; {replay}; COMMIT")).await? == "succeeded|t|2");
    for (call, told) in [
        ("lookup('payments', 'done', ", "succeeded"),
        ("lookup('payments', 'half', ", "not_here"),
        ("lookup('payments', 'leased', ", "in_progress"),
        ("lookup('payments', 'open', ", "not_here"),
        ("lookup('payments', 'new', ", "not_here"),
        ("run('payments', 'done', 'SELECT 1', ", "succeeded"),
        ("settle('payments', 'done', ", "succeeded"),
        ("begin('payments', 'done', '3', ", "ID001"),
        ("begin('payments', 'half', ", "25006"),
        ("begin('payments', 'open', ", "25006"),
        ("begin('payments', 'new', ", "25006"),
        ("begin('payments', 'new', lease => '1 hour', ", "25006"),
        ("run('payments', 'new', 'SELECT 1', ", "25006"),
        ("settle('payments', 'new', ", "25006"),
    ] {
        let found = on_standby.outcome_of(&format!("SELECT status FROM idem_{call}{of})")).await?;
        ensure!(found == told, "idem_{call}{of}) gives {found} instead of {told}");
    }
    ensure!(on_standby.sqlstate("SELECT idem_create_journal('another')").await? == "25006");

    primary.kill9()?;
    standby.promote()?;
    ensure!(on_standby.text(&replay).await? == "succeeded|t|2");
    let begin = |key: &str| format!("SELECT status, point FROM idem_begin('payments', '{key}', wait => '10 ms', {of})");
    let record = |key: &str| format!("SELECT FROM idem_record('payments', '{key}', {of})");
    for (key, begun) in [("half", "started|p"), ("open", "started|"), ("new", "started|")] {
        let done = on_standby.text(&format!("BEGIN; {}; {}; COMMIT", begin(key), record(key))).await?;
        ensure!(done == begun, "{key}: {done}");
        ensure!(on_standby.text(&begin(key)).await? == "succeeded|", "{key}");
    }
    ensure!(on_standby.text(&begin("leased")).await? == "in_progress|");
    Ok(())
}

// Goal: a former primary that is started as a standby replays no outcome that the new primary may lack. It replays
// again when it has proved to have no more than the new one, also while that is away.
// Method: an outcome that only the former primary has. Without a rewind it cannot follow the new one. Then the new
// primary is shut down in good order, when its standby has all that it has, and follows that one.
async fn a_former_primary_replays_nothing_that_the_new_one_may_lack(version: Version) -> Result<()> {
    let (former, new) = start(version)?;
    former.connect(DATABASE).await?.execute("payments", "both", "1").await?;
    new.catch_up_with(&former)?;
    new.stop_fast()?;
    let recorder = former.connect(DATABASE).await?;
    recorder.execute("payments", "lost", "1").await?;
    recorder.text("SELECT idem_once('mails', 'lost')").await?;
    former.kill9()?;
    new.start()?;
    new.promote()?;
    ensure!(new.psql(DATABASE, "SELECT status FROM idem_lookup('payments', 'lost')")?.trim_end() == "unknown");

    former.follow(&new)?;
    former.start()?;
    let calls = [
        ("SELECT status FROM idem_begin('payments', 'lost')", "in_progress", "succeeded"),
        ("SELECT status FROM idem_lookup('payments', 'lost')", "in_progress", "succeeded"),
        ("SELECT status FROM idem_run('payments', 'lost', 'SELECT 1')", "55P03", "succeeded"),
        ("SELECT idem_once('mails', 'lost')", "55P03", "f"),
    ];
    let client = former.connect(DATABASE).await?;
    client.text("SET idempotence.wait = '50 ms'").await?;
    // Before it reaches the new primary, and after it has tried.
    for followed in [false, true] {
        if followed {
            former.wait_for_log("forked off current database system timeline").await?;
        }
        for (call, answer, _) in calls {
            let found = client.outcome_of(call).await?;
            ensure!(found == answer, "{call} on the former primary, followed {followed}: {found}");
        }
    }
    let error = client.error("SELECT idem_run('payments', 'lost', 'SELECT 1')").await?;
    ensure!(error.detail().is_some_and(|detail| detail.contains("the new primary may lack it")), "{error:?}");
    let advice = client.text("SELECT idem_explain('payments', 'lost') ->> 'what_to_do_next'").await?;
    ensure!(advice.starts_with("Ask the primary"), "{advice}");
    // A caller that asks for no standby gets what is flushed here.
    client.text("SET synchronous_commit = local").await?;
    for (call, _, answer) in calls {
        let found = client.outcome_of(call).await?;
        ensure!(found == answer, "{call} with synchronous_commit = local: {found}");
    }

    former.stop_fast()?;
    let next = new.standby()?;
    next.catch_up_with(&new)?;
    new.stop_fast()?;
    next.promote()?;
    new.follow(&next)?;
    new.start()?;
    let client = new.connect(DATABASE).await?;
    ensure!(client.replay("payments", "both").await? == "succeeded|1");
    next.stop_fast()?;
    ensure!(client.replay("payments", "both").await? == "succeeded|1");
    Ok(())
}

// Goal: a standby that reads the log from an archive, and follows no server, replays what it has.
// Method: a standby is started anew with restore_command alone.
async fn a_standby_that_reads_an_archive_replays(version: Version) -> Result<()> {
    let (primary, standby) = start(version)?;
    primary.connect(DATABASE).await?.execute("payments", "done", "1").await?;
    standby.catch_up_with(&primary)?;
    standby.psql("postgres", "ALTER SYSTEM RESET primary_conninfo; ALTER SYSTEM SET restore_command = 'false'")?;
    standby.restart()?;
    let client = standby.connect(DATABASE).await?;
    ensure!(client.replay("payments", "done").await? == "succeeded|1");
    // Without an archive it has nothing that could confirm what it shows.
    standby.psql("postgres", "ALTER SYSTEM RESET restore_command")?;
    standby.restart()?;
    let client = standby.connect(DATABASE).await?;
    client.text("SET idempotence.wait = 0").await?;
    ensure!(client.lookup("payments", "done").await? == "in_progress");
    Ok(())
}

// Goal: with synchronous replication, a failover loses no acknowledged outcome and repeats no effect.
// Method: clients transfer money with keys. The primary is killed, the standby is promoted, and the clients
// go to it.
async fn a_failover_under_load_loses_no_acknowledged_outcome_and_repeats_no_effect(version: Version) -> Result<()> {
    for open in [Bank::open, Bank::open_with_journal] {
        let primary = Cluster::start(version)?;
        let standby = start_synchronous(&primary, "remote_apply").await?;

        let mut bank = open(&primary, 6)?;
        bank.progress(rand::rng().random_range(200..500)).await?;
        primary.kill9()?;
        standby.promote()?;
        bank.move_to(&standby);
        bank.progress(200).await?;
        let retries = bank.close(&standby).await?;
        ensure!(retries > 0, "no client noticed the failover");
    }
    Ok(())
}
