//! A private server that checks its own log at the end of the test.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use idempotence_demo::server::{SUPERUSER, Server};
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::limits::LIMIT;
use crate::version::Version;

const LOG_LINES_SHOWN: usize = 60;

/// Whether a server runs whose files were copied. All copies have one identifier, so a second server is made by initdb.
static COPIED: AtomicBool = AtomicBool::new(false);

/// A private server. When it is dropped, its log must not have a line that no server may log.
#[derive(Debug)]
pub struct Cluster {
    server: Server,
    copied: bool,
}

impl Deref for Cluster {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Cluster {
    /// Starts a new server.
    pub fn start(version: Version) -> Result<Self> {
        Self::start_with(version, &[])
    }

    /// Starts a new server with the background worker, which visits each database every second.
    pub fn start_preloaded(version: Version) -> Result<Self> {
        Self::start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1s")])
    }

    /// Starts a new server with these settings.
    pub fn start_with(version: Version, settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_in(version, settings, &[])
    }

    /// Starts a new server with these settings, and with these variables in its environment.
    pub fn start_in(version: Version, settings: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Self> {
        // The tests kill processes, never the machine. So everything written is there even without fsync.
        let builder = Server::builder(version.pg_config()?)
            .conf("fsync", "off")
            .conf("max_prepared_transactions", "10")
            .conf("allow_in_place_tablespaces", "on");
        let builder = settings.iter().fold(builder, |builder, (name, value)| builder.conf(name, value));
        let builder = environment.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
        match version.cluster_to_copy() {
            Some(cluster) if !COPIED.swap(true, Relaxed) => {
                Ok(Self { server: builder.like(cluster).start()?, copied: true })
            }
            _ => Ok(Self { server: builder.start()?, copied: false }),
        }
    }

    /// Starts a streaming standby of this server.
    pub fn standby(&self) -> Result<Self> {
        Ok(Self { server: self.server.standby()?, copied: false })
    }

    /// Kills all processes of the server at once, and starts it again.
    pub fn crash(&self) -> Result<()> {
        self.kill9()?;
        self.start()
    }

    /// Creates a database with the extension in schema `public`.
    pub fn create_database(&self, name: &str) -> Result<()> {
        self.psql("postgres", &format!("CREATE DATABASE {name}"))?;
        self.psql(name, "CREATE EXTENSION idempotence")?;
        Ok(())
    }

    /// Connects as the superuser.
    pub async fn connect(&self, database: &str) -> Result<Connection> {
        self.connect_as(database, SUPERUSER).await
    }

    /// Connects as this role.
    pub async fn connect_as(&self, database: &str, role: &str) -> Result<Connection> {
        Ok(Connection::open(&self.connect_string(database, role)).await?)
    }

    /// Tries to connect until the server accepts the connection, for example after a crash.
    pub async fn reconnect(&self, database: &str) -> Result<Connection> {
        let start = Instant::now();
        loop {
            match self.connect(database).await {
                Ok(connection) => return Ok(connection),
                Err(error) if start.elapsed() > LIMIT => return Err(error),
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Waits until the server's log contains these words.
    pub async fn wait_for_log(&self, words: &str) -> Result<()> {
        let start = Instant::now();
        while !self.log().contains(words) {
            ensure!(start.elapsed() < LIMIT, "the log never has {words:?}");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until `query` returns `wanted`.
    pub async fn wait_for(&self, database: &str, query: &str, wanted: &str) -> Result<()> {
        let connection = self.connect(database).await?;
        let start = Instant::now();
        loop {
            let found = connection.text(query).await?;
            if found == wanted {
                return Ok(());
            }
            ensure!(start.elapsed() <= LIMIT, "{query} still gives {found:?} instead of {wanted:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.copied {
            COPIED.store(false, Relaxed);
        }
        // On a fast stop, backends write their last messages. It fails if the server no longer runs.
        let _ = self.stop_fast();
        let log = self.log();
        let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
        // The test harness shows this only if the test fails.
        println!("the end of {}:", self.home().display());
        log.lines().skip(skipped).for_each(|line| println!("  {line}"));
        let bad = bad_lines(&log);
        if !bad.is_empty() && !thread::panicking() {
            panic!("the server's log has:\n{}", bad.join("\n"));
        }
    }
}

/// The lines of a server's log that no server may ever log. The stack of a failed assertion follows it.
pub fn bad_lines(log: &str) -> Vec<&str> {
    let mut in_stack = false;
    let bad = |line: &&str| {
        in_stack = line.contains("TRAP:") || in_stack && !line.starts_with("20");
        in_stack || is_bad(line)
    };
    log.lines().filter(bad).collect()
}

/// Whether no server may ever log this line, whatever happens to it. Signal 9 comes from the tests.
fn is_bad(line: &str) -> bool {
    let leak = ["leak", "not closed", "still referenced", "you don't own a lock"];
    line.contains("TRAP:")
        || line.contains("PANIC:")
        || line.contains("XX000")
        || line.contains("terminated by signal") && !line.contains("terminated by signal 9")
        || line.contains("WARNING:") && leak.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::{bad_lines, is_bad};

    #[test]
    fn bad_lines_are_told_from_the_traces_of_our_own_doings() {
        assert!(is_bad("TRAP: failed Assert(\"!TransactionIdIsValid(xid)\")"));
        assert!(is_bad("WARNING:  relcache reference leak: relation \"outcome_0\" not closed"));
        assert!(is_bad("WARNING:  resource was not closed: lock"));
        assert!(is_bad("LOG:  server process (PID 1) was terminated by signal 11: Segmentation fault"));
        assert!(!is_bad("LOG:  server process (PID 1) was terminated by signal 9: Killed"));
        assert!(!is_bad("WARNING:  terminating connection because of crash of another server process"));
        let trap = "2026 LOG:  fine\nTRAP: failed Assert\npostgres: worker(ExceptionalCondition+0x6e)\n2026 LOG:  fine";
        assert_eq!(bad_lines(trap), ["TRAP: failed Assert", "postgres: worker(ExceptionalCondition+0x6e)"]);
    }
}
