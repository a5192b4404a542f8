//! The two kinds of crash, and the check that a session has ended.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection};

/// What a crash kills.
#[derive(Clone, Copy, Debug)]
pub enum Killed {
    /// All processes of the server at once.
    Server,
    /// One backend. The server then ends the other backends, and recovers by itself.
    Backend,
}

pub const EITHER: [Killed; 2] = [Killed::Server, Killed::Backend];

pub async fn crash(server: &Cluster, killed: Killed) -> Result<Connection> {
    match killed {
        Killed::Server => {
            server.crash()?;
        }
        Killed::Backend => {
            let (doomed, witness) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
            ensure!(server.kill9_backend(doomed.pid().await?), "there is no such backend");
            // Until the server has noticed the crash, it accepts clients, and the dead backend's locks are
            // still held.
            witness.wait_for_end().await?;
        }
    }
    server.reconnect(DATABASE).await
}

/// Checks that each call that needs a living session is refused with this SQLSTATE.
pub async fn all_refuse(connection: &Connection, session: &str, state: &str) -> Result<()> {
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
