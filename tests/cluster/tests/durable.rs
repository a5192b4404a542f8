//! A replay is as durable as a commit of the same client would be. An outcome that a crash or a failover can
//! still take back is not replayed.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::start_synchronous;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(
    what_a_failover_would_take_back_is_in_progress,
    what_a_failover_took_back_executes_on_the_new_primary,
    a_replay_waits_for_standbys_no_longer_than_they_are_asked_for,
    what_is_not_flushed_is_flushed_before_it_is_replayed,
    a_frozen_outcome_is_replayed_where_the_log_ends_with_a_page,
);

/// A primary whose synchronous standby is down. Recorders were terminated while their COMMIT waited for the
/// standby, so their outcomes are visible, but only the primary has them.
struct Lagging {
    primary: Cluster,
    standby: Cluster,
    session: String,
}

async fn lagging(version: Version) -> Result<Lagging> {
    let primary = shop::start(version)?;
    let app = primary.connect(DATABASE).await?;
    app.text("SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true)").await?;
    app.text("CREATE TABLE effect (what text)").await?;
    app.execute("payments", "old", "0").await?;
    let session = app.register("client => 'c'").await?;
    app.execute(&session, "1", "1").await?;
    let standby = start_synchronous(&primary, "on").await?;
    standby.catch_up_with(&primary)?;
    standby.stop_fast()?;
    let request = |session: &str, request: &str| {
        format!(
            "BEGIN; SELECT FROM idem_begin('{session}', {request}); INSERT INTO effect VALUES ('{session}');
             SELECT FROM idem_record('{session}', {request}, '\"lagging\"'); COMMIT"
        )
    };
    for commit in [request("payments", "'k'"), request(&session, "2"), "SELECT idem_once('mails', 'm')".into()] {
        commit_and_terminate(&primary, &app, &commit).await?;
    }
    Ok(Lagging { primary, standby, session })
}

/// Sends a commit, and terminates its backend while the commit waits for the standby.
async fn commit_and_terminate(primary: &Cluster, app: &Connection, commit: &str) -> Result<()> {
    let recorder = primary.connect(DATABASE).await?;
    let pid = recorder.pid().await?;
    let terminate = async {
        let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'");
        primary.wait_for(DATABASE, &waits, "1").await?;
        app.text(&format!("SELECT pg_terminate_backend({pid})")).await?;
        let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        primary.wait_for(DATABASE, &gone, "0").await
    };
    // The server answers the commit with a warning, or not at all.
    let (_, terminated) = tokio::join!(recorder.try_text(commit), terminate);
    terminated
}

impl Lagging {
    /// Every call that may replay an outcome: what it returns while the outcome may be lost, and what it
    /// returns afterwards.
    fn calls(&self) -> [(String, &'static str, &'static str); 7] {
        let session = &self.session;
        [
            ("SELECT status FROM idem_begin('payments', 'k')".into(), "in_progress", "succeeded"),
            (format!("SELECT status FROM idem_begin('{session}', 2)"), "in_progress", "succeeded"),
            ("SELECT status FROM idem_lookup('payments', 'k')".into(), "in_progress", "succeeded"),
            (format!("SELECT status FROM idem_lookup('{session}', 2)"), "in_progress", "succeeded"),
            ("SELECT status FROM idem_run('payments', 'k', 'SELECT 1')".into(), "55P03", "succeeded"),
            ("SELECT idem_once('mails', 'm')".into(), "55P03", "f"),
            ("SELECT count(*) FROM idem_once_many('mails', '{m,m}')".into(), "55P03", "0"),
        ]
    }

    /// Sends every call, after the statements in `settings`.
    async fn ask(&self, settings: &str, safe: bool) -> Result<()> {
        let retry = self.primary.connect(DATABASE).await?;
        retry.text(settings).await?;
        for (call, lost, kept) in self.calls() {
            let (answer, wanted) = (retry.outcome_of(&call).await?, if safe { kept } else { lost });
            ensure!(answer == wanted, "{settings} {call}: {answer} instead of {wanted}");
        }
        Ok(())
    }
}

// Goal: an outcome that only the primary has is not replayed for a client that asks for the durability of a
// standby.
// Method: see `lagging`. Every call that replays, on new connections, before and after the standby came back.
async fn what_a_failover_would_take_back_is_in_progress(version: Version) -> Result<()> {
    let lagging = lagging(version).await?;
    let retry = lagging.primary.connect(DATABASE).await?;
    ensure!(retry.text("SELECT count(*) FROM effect").await? == "2", "the recorders' commits cannot be seen");
    for level in ["on", "remote_write", "remote_apply"] {
        lagging.ask(&format!("SET idempotence.wait = '50ms'; SET synchronous_commit = {level}"), false).await?;
    }
    let read_only = "SET idempotence.wait = 0; SET default_transaction_read_only = on";
    lagging.ask(read_only, false).await?;
    // For a client that asks for no standby, a replay waits for none.
    lagging.ask("SET idempotence.wait = 0; SET synchronous_commit = local", true).await?;
    lagging.ask("SET idempotence.wait = 0; SET synchronous_commit = off", true).await?;

    lagging.standby.start()?;
    for level in ["on", "remote_write", "remote_apply"] {
        lagging.ask(&format!("SET idempotence.wait = -1; SET synchronous_commit = {level}"), true).await?;
    }
    Ok(())
}

// Goal: an outcome that was not replayed is not missed: after the failover, the retry executes the request.
// Method: see `lagging`. A retry on the primary; then the standby is promoted.
async fn what_a_failover_took_back_executes_on_the_new_primary(version: Version) -> Result<()> {
    let lagging = lagging(version).await?;
    lagging.ask("SET idempotence.wait = '50ms'", false).await?;
    lagging.primary.kill9()?;
    lagging.standby.start()?;
    lagging.standby.promote()?;
    let successor = lagging.standby.connect(DATABASE).await?;
    ensure!(successor.text("SELECT count(*) FROM effect").await? == "0");
    ensure!(successor.replay("payments", "old").await? == "succeeded|0");
    successor.execute("payments", "k", "1").await?;
    successor.execute(&lagging.session, "2", "2").await?;
    ensure!(successor.text("SELECT idem_once('mails', 'm')").await? == "t");
    Ok(())
}

// Goal: a replay stops waiting for standbys when the server is told to do without them.
// Method: see `lagging`. A retry waits without a limit, until the setting is emptied.
async fn a_replay_waits_for_standbys_no_longer_than_they_are_asked_for(version: Version) -> Result<()> {
    let lagging = lagging(version).await?;
    let retry = lagging.primary.connect(DATABASE).await?;
    retry.text("SET idempotence.wait = -1").await?;
    let pid = retry.pid().await?;
    let without = async {
        let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'Extension'");
        lagging.primary.wait_for(DATABASE, &waits, "1").await?;
        lagging.primary.conf("synchronous_standby_names", "")?;
        lagging.primary.reload()
    };
    let (replay, without) = tokio::join!(retry.replay("payments", "k"), without);
    without?;
    ensure!(replay? == "succeeded|\"lagging\"");
    lagging.ask("SET idempotence.wait = 0", true).await
}

/// Where the last record of the log ends. If it fills its page, the next one begins behind the header of a page, which is
/// not written yet.
const END_OF_LOG: &str = "SELECT next - CASE WHEN mod(next - '0/0', 16777216) = 40 THEN 40 WHEN mod(next - '0/0', 8192) = 24 THEN 24 ELSE 0 END
    FROM pg_current_wal_insert_lsn() next";

// Goal: an outcome that was committed without waiting for its flush is flushed before it is replayed.
// Method: a recorder with synchronous_commit off, a retry, and a crash at once. The WAL writer sleeps in the
// meantime.
async fn what_is_not_flushed_is_flushed_before_it_is_replayed(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[("wal_writer_delay", "10s")])?;
    let (recorder, retry) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    recorder.text("SELECT idem_create_session('payments'); SET synchronous_commit = off").await?;
    for round in 0..5 {
        let key = format!("k{round}");
        recorder.execute("payments", &key, "1").await?;
        let committed = recorder.text(END_OF_LOG).await?;
        ensure!(retry.replay("payments", &key).await? == "succeeded|1");
        let flushed = retry.text(&format!("SELECT pg_current_wal_flush_lsn() >= '{committed}'")).await?;
        ensure!(flushed == "t", "round {round}: replayed, and not flushed up to {committed}");
    }
    server.crash()?;
    let after = server.connect(DATABASE).await?;
    ensure!(after.replay("payments", "k4").await? == "succeeded|1");
    Ok(())
}

// Goal: a replay of a frozen outcome that flushes the log does not ask for more of the log than there is.
// Method: the log is filled up to the end of a page, so that the place of the next record is behind a page
// header that is not written yet. A retry on a new connection for each call. The test checks that nothing was
// logged in the meantime.
async fn a_frozen_outcome_is_replayed_where_the_log_ends_with_a_page(version: Version) -> Result<()> {
    const FILL_PAGE: &str = "
        CREATE FUNCTION fill_page() RETURNS pg_lsn LANGUAGE plpgsql AS $$
        DECLARE
          page    CONSTANT int := 8192;
          header  CONSTANT int := 24;
          -- The bytes that a message of 256 bytes or more takes in the log besides its text.
          wrapper CONSTANT int := 54;
          used int;
        BEGIN
          LOOP
            used := mod(pg_current_wal_insert_lsn() - '0/0', page);
            EXIT WHEN used = header;
            PERFORM pg_logical_emit_message(false, '', repeat('x', greatest(page - used - wrapper, 256)));
          END LOOP;
          RETURN pg_current_wal_insert_lsn();
        END $$";
    let server = shop::start_with(version, &[("autovacuum", "off"), ("checkpoint_timeout", "1h")])?;
    let app = server.connect(DATABASE).await?;
    app.text("SELECT idem_create_session('payments'), idem_create_session('mails', inbox => true)").await?;
    app.execute("payments", "k", "1").await?;
    app.text("SELECT idem_once('mails', 'm')").await?;
    for segment in 0..3 {
        app.text(&format!("VACUUM (FREEZE) idempotence.outcome_{segment}")).await?;
    }
    app.text(FILL_PAGE).await?;
    let calls = [
        ("SELECT status FROM idem_begin('payments', 'k')", "succeeded"),
        ("SELECT status FROM idem_lookup('payments', 'k')", "succeeded"),
        ("SELECT idem_once('mails', 'm')", "f"),
    ];
    for (call, wanted) in calls {
        let mut at_the_end = 0;
        // Now and then the server logs something by itself.
        while at_the_end < 3 {
            let retry = server.connect(DATABASE).await?;
            let before = retry.text("SELECT fill_page()").await?;
            let answer = retry.outcome_of(call).await?;
            ensure!(answer == wanted, "{call} where the log ends at {before}: {answer}");
            at_the_end += usize::from(retry.text("SELECT pg_current_wal_insert_lsn()").await? == before);
        }
    }
    Ok(())
}
