//! Crashes of a server that is under load.

use std::time::Duration;

use anyhow::{Result, ensure};
use idempotence_demo::host::run;
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::limits::LIMIT;

/// The ways in which a server crashes.
#[derive(Clone, Copy, Debug)]
pub enum Crash {
    /// All processes of the server are killed at once.
    Killed,
    /// The server is told to stop without finishing anything.
    Stopped,
    /// One backend of a client is killed. The server then ends the others, and recovers by itself.
    Backend,
}

impl Crash {
    /// All of them.
    pub const ALL: [Crash; 3] = [Crash::Killed, Crash::Stopped, Crash::Backend];

    /// Crashes the server, and waits until it is up again. `application` is the name of the clients.
    pub async fn of(self, server: &Cluster, database: &str, application: &str) -> Result<()> {
        match self {
            Crash::Killed => server.crash(),
            Crash::Stopped => {
                let mut stop = server.program("pg_ctl");
                stop.args(["stop", "-w", "-m", "immediate", "-D"]).arg(server.data_dir());
                run(&mut stop, None, LIMIT)?;
                server.start()
            }
            Crash::Backend => {
                let witness = server.reconnect(database).await?;
                let backend = format!(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = '{application}' ORDER BY random() LIMIT 1"
                );
                let start = Instant::now();
                let killed = async || {
                    let pid = witness.text(&backend).await?;
                    anyhow::Ok(!pid.is_empty() && server.kill9_backend(pid.parse()?))
                };
                // A client that was just disconnected is soon back.
                while !killed().await? {
                    ensure!(start.elapsed() <= LIMIT, "there is no backend to kill");
                    sleep(Duration::from_millis(1)).await;
                }
                witness.wait_for_end().await?;
                server.reconnect(database).await.map(drop)
            }
        }
    }
}

/// Whether the error says that the connection or the server is gone, or that the server is not up yet.
pub fn is_disconnected(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|state| matches!(state.code(), "57P01" | "57P02" | "57P03"))
}
