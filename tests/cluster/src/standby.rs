//! Hot standbys: a synchronous standby, and the proof that a replay writes nothing.

use anyhow::{Result, anyhow, ensure};
use tokio::pin;
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::frozen::Frozen;
use crate::limits::LIMIT;

/// How often a standby or a commit is looked at.
const PAUSE: Duration = Duration::from_millis(20);

/// Starts a standby that every commit of the primary waits for, as `synchronous_commit` says.
pub async fn start_synchronous(primary: &Cluster, synchronous_commit: &str) -> Result<Cluster> {
    let standby = primary.standby()?;
    primary.conf("synchronous_standby_names", "*")?;
    primary.conf("synchronous_commit", synchronous_commit)?;
    primary.reload()?;
    let sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    primary.wait_for("postgres", sync, "1").await?;
    let (probe, watch) = (primary.connect("postgres").await?, primary.connect("postgres").await?);
    watch.text("CHECKPOINT").await?;
    let on_standby = standby.connect("postgres").await?;
    ensure!(
        commits_wait(&probe, &watch, &on_standby).await?,
        "a commit was acknowledged without the synchronous standby"
    );
    Ok(standby)
}

/// Whether a commit waits for this standby: it must not be acknowledged while the standby's receiver is frozen.
///
/// That `pg_stat_replication` shows the standby as `sync` proves nothing. Commits wait only when the checkpointer has
/// read the setting, which a CHECKPOINT before this call makes sure of. `probe` and `watch` are connections to the
/// primary.
pub async fn commits_wait(probe: &Connection, watch: &Connection, standby: &Connection) -> Result<bool> {
    let pid = receiver(standby).await?;
    let waits =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND wait_event = 'SyncRep'", probe.pid().await?);
    let frozen = Frozen::stop(pid);
    // A transaction without a record of its own in the log would not wait.
    let answer = probe.text("SELECT FROM pg_logical_emit_message(true, 'probe', '')");
    pin!(answer);
    let start = Instant::now();
    let found = loop {
        match timeout(PAUSE, &mut answer).await {
            Ok(answered) => break answered.map(|_| false),
            Err(_) => match watch.text(&waits).await {
                Ok(count) if count == "1" => break Ok(true),
                Ok(_) if start.elapsed() <= LIMIT => {}
                Ok(_) => break Err(anyhow!("the probe neither commits nor waits")),
                Err(error) => break Err(error),
            },
        }
    };
    drop(frozen);
    if found.as_ref().is_ok_and(|waits| *waits) {
        answer.await?;
    }
    found
}

/// The process of a standby that receives the primary's log. Where it has just ended, another one is started.
pub async fn receiver(standby: &Connection) -> Result<i32> {
    let start = Instant::now();
    loop {
        let pid = standby.text("SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'").await?;
        if !pid.is_empty() {
            return Ok(pid.parse()?);
        }
        ensure!(start.elapsed() <= LIMIT, "the standby receives nothing");
        sleep(PAUSE).await;
    }
}

/// Replays a request, and checks that its open transaction has neither a transaction id nor a lock of the
/// extension.
pub async fn check_traceless(connection: &Connection, session: &str, request: &str) -> Result<()> {
    let left = connection
        .text(&format!(
            "BEGIN; SELECT FROM idem_begin('{session}', {request});
             SELECT pg_current_xact_id_if_assigned(), count(*) FROM pg_locks
              WHERE pid = pg_backend_pid() AND (locktype = 'advisory' OR relation IN (SELECT oid FROM pg_class WHERE relnamespace = 'idempotence'::regnamespace));
             COMMIT"
        ))
        .await?;
    ensure!(left == "|0", "a replay left {left}");
    Ok(())
}
