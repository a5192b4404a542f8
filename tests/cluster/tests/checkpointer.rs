//! `synchronous_standby_names` was changed, and the checkpointer has not read it yet. PostgreSQL then acknowledges
//! commits without the standby. A transaction that records a request is not acknowledged, and no outcome is replayed
//! that the standby has not confirmed.

use std::future::Future;

use anyhow::{Result, ensure};
use idempotence_cluster_tests::frozen::Frozen;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::receiver;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use tokio::pin;
use tokio::time::{Duration, timeout};

on_each_version!(
    a_record_is_not_acknowledged_without_its_standby,
    a_commit_that_cannot_wait_for_its_standby_is_refused,
    a_caller_that_asks_for_no_standby_does_not_wait,
    a_replay_waits_for_the_standby_before_the_checkpointer_does,
    health_is_critical_until_the_checkpointer_has_read_the_setting,
);

/// For so long a commit is watched that must not be acknowledged.
const WATCHED: Duration = Duration::from_secs(1);

/// A primary whose checkpointer is stopped. Its standby has just been made synchronous, and receives nothing.
struct Late {
    // In the order in which they go on: a server whose checkpointer stands still cannot be stopped.
    checkpointer: Frozen,
    receiver: Frozen,
    _standby: Cluster,
    primary: Cluster,
}

async fn late(version: Version) -> Result<Late> {
    let primary = shop::start(version)?;
    primary.psql(
        DATABASE,
        "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true);
         CREATE TABLE effect (key text)",
    )?;
    let standby = primary.standby()?;
    standby.catch_up_with(&primary)?;
    let watch = primary.connect(DATABASE).await?;
    let checkpointer = watch.text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").await?;
    let checkpointer = Frozen::stop(checkpointer.parse()?);
    primary.conf("synchronous_standby_names", "*")?;
    primary.reload()?;
    primary.wait_for("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1").await?;
    let receiver = Frozen::stop(receiver(&standby.connect(DATABASE).await?).await?);
    Ok(Late { checkpointer, receiver, _standby: standby, primary })
}

/// A transaction that executes a request.
fn executes(key: &str, end: &str) -> String {
    format!(
        "BEGIN; SELECT FROM idem_begin('payments', '{key}'); INSERT INTO effect VALUES ('{key}');
         SELECT FROM idem_record('payments', '{key}', '1'); {end}"
    )
}

/// Checks that a call has no answer for a while.
async fn is_silent<T>(what: &str, call: impl Future<Output = Result<T>>) -> Result<()> {
    ensure!(timeout(WATCHED, call).await.is_err(), "{what}: it was answered");
    Ok(())
}

// Goal: a request that is recorded is not acknowledged before its commit is on the standby.
// Method: the commit waits for the checkpointer first, and then for the standby.
async fn a_record_is_not_acknowledged_without_its_standby(version: Version) -> Result<()> {
    let Late { primary, _standby, receiver, checkpointer } = late(version).await?;
    let client = primary.connect(DATABASE).await?;
    client.text("SET idempotence.wait = -1").await?;
    let sql = executes("k", "COMMIT");
    let call = client.text(&sql);
    pin!(call);
    is_silent("while the checkpointer stands still", &mut call).await?;
    drop(checkpointer);
    is_silent("while the standby receives nothing", &mut call).await?;
    drop(receiver);
    call.await?;
    ensure!(client.replay("payments", "k").await? == "succeeded|1");
    Ok(())
}

// Goal: at the end of idempotence.wait the commit is refused. Nothing of the request is kept, and a retry executes it.
// Method: each way to commit a record; a cancel during the wait; then the checkpointer goes on.
async fn a_commit_that_cannot_wait_for_its_standby_is_refused(version: Version) -> Result<()> {
    let late = late(version).await?;
    let client = late.primary.connect(DATABASE).await?;
    client.text("SET idempotence.wait = '50 ms'").await?;
    for call in [
        executes("k", "COMMIT"),
        executes("k", "PREPARE TRANSACTION 'k'"),
        "SELECT idem_run('payments', 'k', $$INSERT INTO effect VALUES ('k')$$)".into(),
        "SELECT idem_once('mails', 'k')".into(),
        "BEGIN; SELECT FROM idem_begin('payments', 'k', lease => '1 min'); COMMIT".into(),
    ] {
        let error = client.error(&call).await?;
        client.text("ROLLBACK").await?;
        ensure!(error.code().code() == "55P03", "{call}: {error:?}");
        ensure!(error.message() == "the commit would not wait for its synchronous standby", "{call}: {error:?}");
        ensure!(
            error.detail().is_some_and(|detail| detail.starts_with("synchronous_standby_names is set")),
            "{error:?}"
        );
        ensure!(error.hint().is_some_and(|hint| hint.contains("CHECKPOINT")), "{error:?}");
    }
    ensure!(client.lookup("payments", "k").await? == "unknown");
    ensure!(client.text("SELECT count(*) FROM effect").await? == "0");
    // Without a record PostgreSQL commits as it always does.
    client.text("INSERT INTO effect VALUES ('without a request')").await?;

    client.text("SET idempotence.wait = -1").await?;
    let pid = client.pid().await?;
    let sql = executes("k", "COMMIT");
    let cancel = async {
        let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'Extension'");
        late.primary.wait_for("postgres", &waits, "1").await?;
        late.primary.psql("postgres", &format!("SELECT pg_cancel_backend({pid})"))
    };
    let (cancelled, done) = tokio::join!(client.sqlstate(&sql), cancel);
    done?;
    ensure!(cancelled? == "57014");
    let Late { primary, _standby, receiver, checkpointer } = late;
    drop(receiver);
    drop(checkpointer);
    primary.psql("postgres", "CHECKPOINT")?;
    client.text(&executes("k", "COMMIT")).await?;
    ensure!(client.text("SELECT count(*) FROM effect WHERE key = 'k'").await? == "1");
    Ok(())
}

// Goal: whoever asks for no standby is not held up.
// Method: commits and replays with synchronous_commit off and local.
async fn a_caller_that_asks_for_no_standby_does_not_wait(version: Version) -> Result<()> {
    let late = late(version).await?;
    for level in ["off", "local"] {
        let client = late.primary.connect(DATABASE).await?;
        client.text(&format!("SET idempotence.wait = 0; SET synchronous_commit = {level}")).await?;
        client.text(&executes(level, "COMMIT")).await?;
        ensure!(client.replay("payments", level).await? == "succeeded|1");
    }
    Ok(())
}

// Goal: an outcome is replayed once the standby has confirmed it, whatever the checkpointer knows.
// Method: an outcome that was committed without the standby. A caller that asks for the standby gets it when the
// standby receives again, while the checkpointer still stands still.
async fn a_replay_waits_for_the_standby_before_the_checkpointer_does(version: Version) -> Result<()> {
    let Late { primary, _standby, receiver, checkpointer } = late(version).await?;
    let recorder = primary.connect(DATABASE).await?;
    recorder.text("SET synchronous_commit = local").await?;
    recorder.text(&executes("k", "COMMIT")).await?;
    recorder.text("SELECT idem_once('mails', 'm')").await?;
    let client = primary.connect(DATABASE).await?;
    let calls = [
        ("SELECT status FROM idem_begin('payments', 'k')", "in_progress", "succeeded"),
        ("SELECT status FROM idem_lookup('payments', 'k')", "in_progress", "succeeded"),
        ("SELECT status FROM idem_run('payments', 'k', 'SELECT 1')", "55P03", "succeeded"),
        ("SELECT idem_once('mails', 'm')", "55P03", "f"),
    ];
    client.text("SET idempotence.wait = '50 ms'").await?;
    for (call, early, _) in calls {
        let answer = client.outcome_of(call).await?;
        ensure!(answer == early, "{call} without the standby: {answer}");
    }
    drop(receiver);
    client.text("SET idempotence.wait = -1").await?;
    for (call, _, confirmed) in calls {
        let answer = client.outcome_of(call).await?;
        ensure!(answer == confirmed, "{call} with the standby: {answer}");
    }
    drop(checkpointer);
    Ok(())
}

// Goal: health is critical while commits do not wait for the standby that the setting names.
// Method: the row before and after the checkpointer goes on.
async fn health_is_critical_until_the_checkpointer_has_read_the_setting(version: Version) -> Result<()> {
    let Late { primary, _standby, receiver, checkpointer } = late(version).await?;
    drop(receiver);
    let watch: Connection = primary.connect(DATABASE).await?;
    let row = "SELECT level, detail FROM idempotence.health WHERE name = 'standby'";
    let found = watch.text(row).await?;
    let wanted = "2|synchronous_standby_names is set, but commits do not wait for a standby: \
                  the checkpointer has not read the setting yet";
    ensure!(found == wanted, "{found}");
    let hint = watch.text("SELECT hint FROM idempotence.health WHERE name = 'standby'").await?;
    ensure!(hint.contains("CHECKPOINT"), "{hint}");
    drop(checkpointer);
    watch.text("CHECKPOINT").await?;
    primary.wait_for(DATABASE, row, "0|1 of 1 synchronous standbys are there; 0 commits wait for them").await
}
