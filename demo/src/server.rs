//! A private PostgreSQL server: made, crashed, restarted and thrown away by one program.
//!
//! It listens on a Unix socket in a directory that only its account can enter (trust), and on a
//! free port of 127.0.0.1 (password), for there every user of the machine can knock. As root its
//! programs run as the user `postgres`. Dropping a [`Server`] stops it and removes its files,
//! whatever has happened in between.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::RngExt;

use crate::host::{self, Account, Home};

/// The superuser of every private server, whoever runs it.
pub const SUPERUSER: &str = "postgres";

/// Below what Linux hands out to outgoing connections, one of which could otherwise take the port
/// while the server restarts.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const PORT_TRIES_MAX: u32 = 10;

const PROGRAM_LIMIT: Duration = Duration::from_secs(120);
const CRASH_LIMIT: Duration = Duration::from_secs(10);
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// How a server is to be made; see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pg_config: PathBuf,
    parent: Option<PathBuf>,
    settings: Vec<(String, String)>,
}

impl Builder {
    /// A line for `postgresql.conf`.
    pub fn conf(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The directory in which the server makes its own; a temporary one unless given, and where
    /// the server's user cannot reach the one given.
    pub fn dir(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = Some(parent.into());
        self
    }

    /// Initialises a cluster and starts it.
    pub fn start(self) -> Result<Server> {
        let server = self.prepare()?;
        server.run(
            server
                .program("initdb")
                .arg("-D")
                .arg(server.data_dir())
                .args(["-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync"])
                .args(["--auth-local=trust", "--auth-host=scram-sha-256"]),
        )?;
        server.first_start(&self.settings)
    }

    /// A server without a cluster as yet.
    fn prepare(&self) -> Result<Server> {
        let account = Account::for_server()?;
        let mut pg_config = Command::new(&self.pg_config);
        let bindir = host::run(pg_config.arg("--bindir"), None, PROGRAM_LIMIT)?;
        let bindir = PathBuf::from(bindir.trim_end());
        if !bindir.join("initdb").exists() {
            bail!(
                "{} says that the server's programs are in {}, but there is no initdb there",
                self.pg_config.display(),
                bindir.display()
            );
        }
        Ok(Server {
            account,
            bindir,
            home: Home::create(account, self.parent.as_deref())?,
            port: 0,
            origin: self.clone(),
        })
    }
}

/// A running server of one's own (or one stopped or crashed on purpose).
#[derive(Debug)]
pub struct Server {
    account: Account,
    bindir: PathBuf,
    home: Home,
    port: u16,
    origin: Builder,
}

impl Server {
    /// A server of the installation that this `pg_config` belongs to.
    pub fn builder(pg_config: impl Into<PathBuf>) -> Builder {
        Builder { pg_config: pg_config.into(), parent: None, settings: Vec::new() }
    }

    /// A streaming standby of this server, read-only until promoted, with a slot of its own so
    /// that it can stay away as long as it likes.
    pub fn standby(&self) -> Result<Self> {
        let standby = self.origin.prepare()?;
        let slot = format!("standby_{}", rand::random::<u32>());
        standby.run(
            standby
                .program("pg_basebackup")
                .arg("-D")
                .arg(standby.data_dir())
                .arg("-d")
                .arg(self.connect_string("postgres", SUPERUSER))
                .args(["-X", "stream", "-c", "fast", "--no-sync", "-R", "-C", "-S"])
                .arg(&slot),
        )?;
        // The primary's settings came along with its files.
        standby.first_start(&[])
    }

    /// Gives it a port and its settings, and starts it. Another program may take the port between
    /// our look and the server's: then another one is tried.
    fn first_start(mut self, settings: &[(String, String)]) -> Result<Self> {
        self.conf("listen_addresses", "127.0.0.1")?;
        let directory = self.home.path().display().to_string();
        self.conf("unix_socket_directories", &directory)?;
        for (name, value) in settings {
            self.conf(name, value)?;
        }
        for _ in 0..PORT_TRIES_MAX {
            self.port = free_port()?;
            self.conf("port", &self.port.to_string())?;
            let Err(error) = self.start() else {
                return Ok(self);
            };
            if !self.log().contains("could not bind") {
                return Err(error);
            }
        }
        bail!("no free port in {PORTS:?}")
    }

    // Its life

    /// Starts it again after [`stop_fast`](Self::stop_fast) or [`kill9`](Self::kill9).
    pub fn start(&self) -> Result<()> {
        self.pg_ctl(&["start", "-w", "-t", "60", "-l"], Some(&self.log_path()))
            .with_context(|| format!("the server's log:\n{}", tail(&self.log(), 30)))
    }

    /// An orderly end: open transactions are aborted, all is flushed.
    pub fn stop_fast(&self) -> Result<()> {
        self.pg_ctl(&["stop", "-w", "-t", "60", "-m", "fast"], None)
    }

    pub fn restart(&self) -> Result<()> {
        self.stop_fast()?;
        self.start()
    }

    /// Reads the settings again.
    pub fn reload(&self) -> Result<()> {
        self.pg_ctl(&["reload"], None)
    }

    /// Ends a standby's recovery.
    pub fn promote(&self) -> Result<()> {
        self.pg_ctl(&["promote", "-w", "-t", "60"], None)
    }

    /// A crash: every process of it killed at once, nothing flushed, nothing said.
    pub fn kill9(&self) -> Result<()> {
        let postmaster = self.postmaster_pid().context("the server does not run")?;
        // Frozen first, so that it starts nothing new while its children are counted.
        let mut processes = vec![postmaster];
        host::freeze(postmaster);
        processes.extend(host::children(postmaster)?);
        for &pid in &processes {
            host::kill9(pid);
        }
        host::wait_until("the end of the killed processes", CRASH_LIMIT, || {
            Ok(processes.iter().all(|&pid| host::has_ended(pid)))
        })?;
        // Where nobody reaps them the dead would look alive to the next start, by these files.
        let mut socket_lock = host::socket_path(self.home.path(), self.port).into_os_string();
        socket_lock.push(".lock");
        fs::remove_file(self.data_dir().join("postmaster.pid"))?;
        fs::remove_file(socket_lock)?;
        Ok(())
    }

    /// A crash of one backend, which the server answers by restarting all of them. False if there
    /// is no such backend any more: no process but this server's own is ever killed.
    pub fn kill9_backend(&self, pid: i32) -> bool {
        let ours = self.postmaster_pid().is_some_and(|postmaster| host::is_child(pid, postmaster));
        if ours {
            host::kill9(pid);
        }
        ours
    }

    // Talking to it

    /// For a connection through the Unix socket, where no password is asked for.
    pub fn connect_string(&self, database: &str, user: &str) -> String {
        let directory = self.home.path().display().to_string();
        format!("host={} port={} dbname={} user={}", quote(&directory), self.port, quote(database), quote(user))
    }

    /// For a connection over TCP, where the role needs a password.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Runs a script with psql as the superuser; each statement is a transaction of its own, the
    /// first error ends it. Gives what `psql -At` prints.
    pub fn psql(&self, database: &str, script: &str) -> Result<String> {
        self.psql_as(database, SUPERUSER, script)
    }

    pub fn psql_as(&self, database: &str, user: &str, script: &str) -> Result<String> {
        let mut psql = self.program("psql");
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d"]).arg(self.connect_string(database, user));
        host::run(&mut psql, Some(script), PROGRAM_LIMIT)
    }

    /// Adds a line to `postgresql.conf`; [`reload`](Self::reload) or restart to put it in force.
    pub fn conf(&self, name: &str, value: &str) -> Result<()> {
        let path = self.data_dir().join("postgresql.conf");
        let mut file = OpenOptions::new().append(true).open(&path)?;
        // Quotes and backslashes read here as they do in a connection string.
        writeln!(file, "{name} = {}", quote(value)).with_context(|| format!("writing {}", path.display()))
    }

    /// Waits until this standby has replayed all that the primary has written by now.
    pub fn catch_up_with(&self, primary: &Self) -> Result<()> {
        let target = primary.psql("postgres", "SELECT pg_current_wal_flush_lsn()")?;
        let query = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", target.trim_end());
        host::wait_until("the standby's catching up", CATCH_UP_LIMIT, || {
            Ok(self.psql("postgres", &query)?.trim_end() == "t")
        })
    }

    /// All that the server has logged so far.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into_owned())
    }

    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Its files stay when it is dropped: something in them is to be looked at.
    pub fn keep_files(&self) {
        self.home.keep();
    }

    /// The directory of its data, log and socket.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// `None` when it does not run, or crashed.
    fn postmaster_pid(&self) -> Option<i32> {
        let file = fs::read_to_string(self.data_dir().join("postmaster.pid")).ok()?;
        let pid = file.lines().next()?.parse().ok()?;
        (!host::has_ended(pid)).then_some(pid)
    }

    /// One of this installation's programs, to be run as the server's account.
    pub fn program(&self, name: &str) -> Command {
        self.account.command(self.bindir.join(name))
    }

    fn pg_ctl(&self, arguments: &[&str], log: Option<&Path>) -> Result<()> {
        let mut command = self.program("pg_ctl");
        command.args(arguments).args(log);
        self.run(command.arg("-D").arg(self.data_dir()))
    }

    fn run(&self, command: &mut Command) -> Result<()> {
        host::run(command, None, PROGRAM_LIMIT).map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.postmaster_pid().is_none() {
            return;
        }
        // Nothing in it is wanted any more. If even that fails, no process may stay behind.
        let stopped = self.pg_ctl(&["stop", "-w", "-t", "20", "-m", "immediate"], None);
        if stopped.is_err() {
            let _ = self.kill9();
        }
    }
}

fn free_port() -> Result<u16> {
    for _ in 0..PORT_TRIES_MAX {
        let port = rand::rng().random_range(PORTS);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port in {PORTS:?}")
}

/// Quoted as connection strings want it.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn tail(text: &str, lines: usize) -> String {
    let skipped = text.lines().count().saturating_sub(lines);
    text.lines().skip(skipped).collect::<Vec<_>>().join("\n")
}
