//! What the tests of whole clusters share: private servers of each version, connections that take and
//! give text, and two pieces of work to be found again: [`fixture`], a bit of everything that is kept,
//! and [`bank`], clients that go on through whatever is done to their server.
//!
//! The environment names the servers to test, `IDEM_PG15_CONFIG` to `IDEM_PG18_CONFIG`. A test never
//! waits for a time, only for a condition, within [`LIMIT`].

pub mod bank;
pub mod client;
pub mod fixture;
pub mod frozen;
pub mod senders;
pub mod workload;

use std::io::Write;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use idempotence_demo::server::{SUPERUSER, Server};
use tokio::time::{Instant, sleep};
use tokio_postgres::error::DbError;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Whatever is waited for comes within this time, or the test fails.
pub const LIMIT: Duration = Duration::from_secs(120);

const LOG_LINES_SHOWN: usize = 60;

/// Makes of each `async fn(Version) -> Result<()>` one test on the oldest and one on the newest version.
#[macro_export]
macro_rules! on_each_version {
    ($($name:ident),+ $(,)?) => {$(
        $crate::on_versions!($name: pg15 Pg15, pg18 Pg18);
    )+};
}

/// Makes of each one test on each version there is.
#[macro_export]
macro_rules! on_all_versions {
    ($($name:ident),+ $(,)?) => {$(
        $crate::on_versions!($name: pg15 Pg15, pg16 Pg16, pg17 Pg17, pg18 Pg18);
    )+};
}

/// Makes of one `async fn(Version) -> Result<()>` tests on the versions named.
#[doc(hidden)]
#[macro_export]
macro_rules! on_versions {
    ($name:ident: $($test:ident $version:ident),+) => {
        mod $name {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() -> anyhow::Result<()> {
                super::$name($crate::Version::$version).await
            }
        )+}
    };
}

/// A server version under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The oldest.
    Pg15,
    /// In between.
    Pg16,
    /// In between, best built with assertions.
    Pg17,
    /// The newest, best built with assertions.
    Pg18,
}

impl Version {
    /// The installation of this version.
    pub fn pg_config(self) -> Result<PathBuf> {
        let (major, default) = match self {
            Self::Pg15 => (15, Some("/usr/lib/postgresql/15/bin/pg_config")),
            Self::Pg16 => (16, None),
            Self::Pg17 => (17, None),
            Self::Pg18 => (18, None),
        };
        let variable = format!("IDEM_PG{major}_CONFIG");
        let named = std::env::var_os(&variable).map(PathBuf::from).or(default.map(Into::into));
        let path = named.with_context(|| format!("set {variable} to the pg_config of a PostgreSQL {major}"))?;
        let version = run(Command::new(&path).arg("--version"), None)
            .with_context(|| format!("{variable} must name the pg_config of a PostgreSQL {major}"))?;
        let found = version.trim_start_matches(|c: char| !c.is_ascii_digit());
        ensure!(found.starts_with(&major.to_string()), "{variable} names a server of another version: {version}");
        Ok(path)
    }

    /// Where its programs are.
    pub fn bindir(self) -> Result<PathBuf> {
        let bindir = run(Command::new(self.pg_config()?).arg("--bindir"), None)?;
        Ok(bindir.trim_end().into())
    }
}

/// A private server that must not have said anything bad by the end of the test.
#[derive(Debug)]
pub struct Cluster(Server);

impl Deref for Cluster {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Cluster {
    /// Starts a fresh one.
    pub fn start(version: Version) -> Result<Self> {
        Self::start_with(version, &[])
    }

    /// Starts a fresh one with the background worker, which visits every second.
    pub fn start_preloaded(version: Version) -> Result<Self> {
        Self::start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1s")])
    }

    /// Starts a fresh one with settings of its own.
    pub fn start_with(version: Version, settings: &[(&str, &str)]) -> Result<Self> {
        // Processes are killed here, never the machine: what was written is there without fsync.
        let builder = Server::builder(version.pg_config()?)
            .conf("fsync", "off")
            .conf("max_prepared_transactions", "10")
            .conf("allow_in_place_tablespaces", "on");
        let builder = settings.iter().fold(builder, |builder, (name, value)| builder.conf(name, value));
        Ok(Self(builder.start()?))
    }

    /// A streaming standby of it.
    pub fn standby(&self) -> Result<Self> {
        self.0.standby().map(Self)
    }

    /// A new database with the extension in schema `public`.
    pub fn create_database(&self, name: &str) -> Result<()> {
        self.psql("postgres", &format!("CREATE DATABASE {name}"))?;
        self.psql(name, "CREATE EXTENSION idempotence")?;
        Ok(())
    }

    /// Connects as the superuser.
    pub async fn connect(&self, database: &str) -> Result<Connection> {
        self.connect_as(database, SUPERUSER).await
    }

    /// Connects as any role.
    pub async fn connect_as(&self, database: &str, role: &str) -> Result<Connection> {
        Ok(Connection::open(&self.connect_string(database, role)).await?)
    }

    /// Tries to connect until the server lets one in, as after a crash.
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

    /// Waits until the server's log has these words.
    pub async fn wait_for_log(&self, words: &str) -> Result<()> {
        let start = Instant::now();
        while !self.log().contains(words) {
            ensure!(start.elapsed() < LIMIT, "the log never has {words:?}");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until `query` gives `wanted`.
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
        // Backends write their last words. An error is that of one that does not run any more.
        let _ = self.stop_fast();
        let log = self.log();
        let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
        // Shown for tests that fail only.
        println!("the end of {}:", self.home().display());
        log.lines().skip(skipped).for_each(|line| println!("  {line}"));
        let bad: Vec<&str> = log.lines().filter(|line| is_bad(line)).collect();
        if !bad.is_empty() && !thread::panicking() {
            panic!("the server's log has:\n{}", bad.join("\n"));
        }
    }
}

/// What no server may ever log, whatever is done to it. Signal 9 is ours.
fn is_bad(line: &str) -> bool {
    let leak = ["leak", "not closed", "still referenced", "you don't own a lock"];
    line.contains("TRAP:")
        || line.contains("PANIC:")
        || line.contains("XX000")
        || line.contains("terminated by signal") && !line.contains("terminated by signal 9")
        || line.contains("WARNING:") && leak.iter().any(|word| line.contains(word))
}

/// A connection that is spoken to in SQL without parameters. Several statements in one string are one
/// transaction, unless they say otherwise.
pub struct Connection {
    client: tokio_postgres::Client,
}

impl Connection {
    /// Connects.
    pub async fn open(connect_string: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, socket) = tokio_postgres::connect(connect_string, NoTls).await?;
        tokio::spawn(async move {
            // Why it ended is told to whoever uses the connection next.
            let _ = socket.await;
        });
        Ok(Self { client })
    }

    /// What the statements give: columns parted by `|`, rows by line ends, NULL being empty.
    pub async fn text(&self, sql: &str) -> Result<String> {
        self.try_text(sql).await.map_err(describe).with_context(|| sql.to_owned())
    }

    /// The same, with the driver's error.
    pub async fn try_text(&self, sql: &str) -> Result<String, tokio_postgres::Error> {
        let rows = self.client.simple_query(sql).await?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let columns: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or_default()).collect();
                Some(columns.join("|"))
            }
            _ => None,
        });
        // Calls for their effect give rows without a column.
        Ok(rows.filter(|row| !row.is_empty()).collect::<Vec<_>>().join("\n"))
    }

    /// The error of statements that must fail.
    pub async fn error(&self, sql: &str) -> Result<DbError> {
        match self.try_text(sql).await {
            Ok(rows) => bail!("{sql}: no error, but {rows:?}"),
            Err(error) => match error.as_db_error() {
                Some(error) => Ok(error.clone()),
                None => Err(describe(error)).with_context(|| sql.to_owned()),
            },
        }
    }

    /// Its SQLSTATE. An open transaction is rolled back.
    pub async fn sqlstate(&self, sql: &str) -> Result<String> {
        let error = self.error(sql).await?;
        self.text("ROLLBACK").await?;
        Ok(error.code().code().to_owned())
    }

    /// The backend's process.
    pub async fn pid(&self) -> Result<i32> {
        Ok(self.text("SELECT pg_catalog.pg_backend_pid()").await?.parse()?)
    }

    /// Waits until the server has ended the connection.
    pub async fn wait_for_end(&self) -> Result<()> {
        let start = Instant::now();
        while self.try_text("SELECT").await.is_ok() {
            ensure!(start.elapsed() <= LIMIT, "the connection lives on");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Executes a request in one transaction: it must not have been executed yet.
    pub async fn execute(&self, session: &str, key: &str, response: &str) -> Result<()> {
        let sql = format!(
            "BEGIN; SELECT status FROM idem_begin('{session}', '{key}');
             SELECT FROM idem_record('{session}', '{key}', '{response}'); COMMIT"
        );
        let done = self.text(&sql).await;
        if done.is_err() {
            let _ = self.text("ROLLBACK").await;
        }
        let status = done?;
        ensure!(status == "started", "request {key} of session {session} was to be executed: {status}");
        Ok(())
    }

    /// Begins a request that must be replayed; gives its status and response.
    pub async fn replay(&self, session: &str, key: &str) -> Result<String> {
        let sql = format!("SELECT replayed, status, response FROM idem_begin('{session}', '{key}')");
        let ticket = self.text(&sql).await?;
        let replayed = ticket.strip_prefix("t|").map(str::to_owned);
        replayed.with_context(|| format!("request {key} of session {session} was not replayed: {ticket}"))
    }

    /// What is known of a request.
    pub async fn lookup(&self, session: &str, key: &str) -> Result<String> {
        self.text(&format!("SELECT status FROM idem_lookup('{session}', '{key}')")).await
    }
}

/// The server's words, which the driver's error keeps to itself.
pub fn describe(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(said) => {
            let detail = said.detail().unwrap_or_default();
            anyhow::anyhow!("{} {}: {detail}", said.code().code(), said.message())
        }
        None => error.into(),
    }
}

/// Runs a program to its end, within [`LIMIT`]; gives its output.
pub fn run(command: &mut Command, input: Option<&str>) -> Result<String> {
    let what = format!("{command:?}");
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {what}"))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input.map(str::to_owned)) {
        // A program that ends without reading all of it says why by itself.
        thread::spawn(move || _ = stdin.write_all(input.as_bytes()));
    }
    let (done, output) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    let output = output.recv_timeout(LIMIT).with_context(|| format!("{what} does not end"))??;
    let text = String::from_utf8(output.stdout)?;
    if !output.status.success() {
        bail!("{what} failed ({}):\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::is_bad;

    #[test]
    fn bad_lines_are_told_from_the_traces_of_our_own_doings() {
        assert!(is_bad("TRAP: failed Assert(\"!TransactionIdIsValid(xid)\")"));
        assert!(is_bad("WARNING:  relcache reference leak: relation \"outcome_0\" not closed"));
        assert!(is_bad("WARNING:  resource was not closed: lock"));
        assert!(is_bad("LOG:  server process (PID 1) was terminated by signal 11: Segmentation fault"));
        assert!(!is_bad("LOG:  server process (PID 1) was terminated by signal 9: Killed"));
        assert!(!is_bad("WARNING:  terminating connection because of crash of another server process"));
    }
}
