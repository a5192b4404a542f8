//! Hot standbys: a synchronous standby, and the proof that a replay writes nothing.

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::connection::Connection;

/// Starts a standby that every commit of the primary waits for, as `synchronous_commit` says.
pub async fn start_synchronous(primary: &Cluster, synchronous_commit: &str) -> Result<Cluster> {
    let standby = primary.standby()?;
    primary.conf("synchronous_standby_names", "*")?;
    primary.conf("synchronous_commit", synchronous_commit)?;
    primary.reload()?;
    let sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    primary.wait_for("postgres", sync, "1").await?;
    Ok(standby)
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
