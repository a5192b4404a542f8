//! A private PostgreSQL server: made, crashed, restarted and thrown away by one program.
//!
//! The server listens on a Unix socket and on a free port of 127.0.0.1. The socket needs no password,
//! because only the server's account can enter its directory; the port does, because every user of the
//! machine can connect to it. When we are root, the server runs as the user `postgres`. Dropping a
//! [`Server`] stops it and removes its files, whatever has happened in between.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::RngExt;

use crate::host::{self, Account, Home};

/// The superuser of every private server, whatever account it runs as.
pub const SUPERUSER: &str = "postgres";

/// These ports are below the range of ports that Linux gives to outgoing connections. Otherwise such a
/// connection could take the port while the server restarts.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const PORT_TRIES_MAX: u32 = 10;

const PROGRAM_LIMIT: Duration = Duration::from_secs(120);
const CRASH_LIMIT: Duration = Duration::from_secs(10);
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// Settings for a new server; see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pg_config: PathBuf,
    parent: Option<PathBuf>,
    like: Option<PathBuf>,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

impl Builder {
    /// Adds a line to `postgresql.conf`.
    pub fn conf(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Sets a variable of the environment that the server starts in.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the directory in which the server creates its own directory. The default is the directory for
    /// temporary files, which is also used if the server's account cannot reach this directory.
    pub fn dir(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = Some(parent.into());
        self
    }

    /// Copies the files of this cluster, which nobody ever starts. The first server that asks for it has initdb make
    /// it. To copy is quicker than initdb, but all copies have one identifier.
    pub fn like(mut self, cluster: impl Into<PathBuf>) -> Self {
        self.like = Some(cluster.into());
        self
    }

    /// Initialises a cluster and starts it.
    pub fn start(self) -> Result<Server> {
        let server = self.prepare()?;
        match &self.like {
            Some(cluster) => server.copy(cluster)?,
            None => server.initialise(&server.data_dir())?,
        }
        server.first_start(&self.settings)
    }

    /// A server that has a directory, but no cluster in it yet.
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
            builder: self.clone(),
        })
    }
}

/// A private server, which runs unless it was stopped or crashed on purpose.
#[derive(Debug)]
pub struct Server {
    account: Account,
    bindir: PathBuf,
    home: Home,
    port: u16,
    builder: Builder,
}

impl Server {
    /// A server of the installation that this `pg_config` belongs to.
    pub fn builder(pg_config: impl Into<PathBuf>) -> Builder {
        Builder { pg_config: pg_config.into(), parent: None, like: None, settings: Vec::new(), environment: Vec::new() }
    }

    /// A streaming standby of this server, which is read-only until promoted. It has its own replication
    /// slot, so it can be down for any time.
    pub fn standby(&self) -> Result<Self> {
        let standby = self.builder.prepare()?;
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

    /// Makes this server a standby of another one at its next start. Its files must be those of a copy.
    pub fn follow(&self, primary: &Self) -> Result<()> {
        // Of two lines, the last one in this file counts. It is read after postgresql.conf.
        let connect_string = quote(&primary.connect_string("postgres", SUPERUSER));
        let mut file = OpenOptions::new().append(true).open(self.data_dir().join("postgresql.auto.conf"))?;
        writeln!(file, "primary_conninfo = {connect_string}")?;
        writeln!(file, "primary_slot_name = ''")?;
        fs::write(self.data_dir().join("standby.signal"), "")?;
        Ok(())
    }

    fn initialise(&self, data_dir: &Path) -> Result<()> {
        self.run(
            self.program("initdb")
                .arg("-D")
                .arg(data_dir)
                .args(["-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync"])
                .args(["--auth-local=trust", "--auth-host=scram-sha-256"]),
        )
    }

    /// Takes the files of that cluster, and has initdb make it if it is not there.
    fn copy(&self, cluster: &Path) -> Result<()> {
        if !cluster.exists() {
            let made = cluster.with_extension(rand::random::<u32>().to_string());
            self.initialise(&made)?;
            // Another process may have been quicker. Then its cluster stays.
            if fs::rename(&made, cluster).is_err() {
                fs::remove_dir_all(&made)?;
            }
        }
        self.run(self.account.command("cp").arg("-a").arg(cluster).arg(self.data_dir()))
    }

    /// Chooses a port, writes the settings, and starts the server. If another program takes the port
    /// meanwhile, tries another port.
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

    // Start and stop

    /// Starts the server again after [`stop_fast`](Self::stop_fast) or [`kill9`](Self::kill9).
    pub fn start(&self) -> Result<()> {
        self.start_with(&[])
    }

    /// The same with another program in the place of `postgres`, which executes it in its own process.
    pub fn start_by(&self, program: &Path) -> Result<()> {
        self.start_with(&["-p", &program.display().to_string()])
    }

    fn start_with(&self, options: &[&str]) -> Result<()> {
        let arguments = [&["start", "-w", "-t", "60"], options, &["-l"]].concat();
        self.pg_ctl(&arguments, Some(&self.log_path()))
            .with_context(|| format!("the server's log:\n{}", tail(&self.log(), 30)))
    }

    /// Stops the server in good order: open transactions are aborted, and everything is flushed.
    pub fn stop_fast(&self) -> Result<()> {
        self.pg_ctl(&["stop", "-w", "-t", "60", "-m", "fast"], None)
    }

    pub fn restart(&self) -> Result<()> {
        self.stop_fast()?;
        self.start()
    }

    /// Makes the server read its settings again.
    pub fn reload(&self) -> Result<()> {
        self.pg_ctl(&["reload"], None)
    }

    /// Ends a standby's recovery.
    pub fn promote(&self) -> Result<()> {
        self.pg_ctl(&["promote", "-w", "-t", "60"], None)
    }

    /// Crashes the server: all its processes are killed at once, and nothing is flushed.
    pub fn kill9(&self) -> Result<()> {
        kill9_server(&self.data_dir(), self.home.path(), self.port)
    }

    /// Kills one backend, whereupon the server restarts all backends. Returns false if this server has no
    /// such backend: no process but a child of this server is ever killed.
    pub fn kill9_backend(&self, pid: i32) -> bool {
        let ours = self.postmaster_pid().is_some_and(|postmaster| host::is_child(pid, postmaster));
        if ours {
            host::kill9(pid);
        }
        ours
    }

    // Connections and files

    /// The string to connect through the Unix socket, which needs no password.
    pub fn connect_string(&self, database: &str, user: &str) -> String {
        let directory = self.home.path().display().to_string();
        format!("host={} port={} dbname={} user={}", quote(&directory), self.port, quote(database), quote(user))
    }

    /// The address to connect to over TCP, where the role needs a password.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Runs a script with psql as the superuser and returns what `psql -At` prints. Each statement is a
    /// transaction of its own, and the first error ends the script.
    pub fn psql(&self, database: &str, script: &str) -> Result<String> {
        self.psql_as(database, SUPERUSER, script)
    }

    /// As [`psql`](Self::psql), but as any role.
    pub fn psql_as(&self, database: &str, user: &str, script: &str) -> Result<String> {
        let mut psql = self.program("psql");
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d"]).arg(self.connect_string(database, user));
        host::run(&mut psql, Some(script), PROGRAM_LIMIT)
    }

    /// Adds a line to `postgresql.conf`, which comes into force at the next [`reload`](Self::reload) or
    /// restart.
    pub fn conf(&self, name: &str, value: &str) -> Result<()> {
        let path = self.data_dir().join("postgresql.conf");
        let mut file = OpenOptions::new().append(true).open(&path)?;
        // Quotes and backslashes are escaped as in a connection string.
        writeln!(file, "{name} = {}", quote(value)).with_context(|| format!("writing {}", path.display()))
    }

    /// Waits until this standby has replayed everything that the primary has flushed by now.
    pub fn catch_up_with(&self, primary: &Self) -> Result<()> {
        let target = primary.psql("postgres", "SELECT pg_current_wal_flush_lsn()")?;
        let query = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", target.trim_end());
        host::wait_until("the standby's catching up", CATCH_UP_LIMIT, || {
            Ok(self.psql("postgres", &query)?.trim_end() == "t")
        })
    }

    /// Everything that the server has logged so far.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into_owned())
    }

    pub fn data_dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Makes the files of the server stay when it is dropped, for somebody to look at them.
    pub fn keep_files(&self) {
        self.home.keep();
    }

    /// The directory of the server's data, log and socket.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The path of one of the installation's programs.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.bindir.join(name)
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// The process of the postmaster, or `None` if the server does not run.
    fn postmaster_pid(&self) -> Option<i32> {
        postmaster_pid(&self.data_dir())
    }

    /// A command that runs one of the installation's programs as the server's account.
    pub fn program(&self, name: &str) -> Command {
        self.account.command(self.path_of(name))
    }

    fn pg_ctl(&self, arguments: &[&str], log: Option<&Path>) -> Result<()> {
        let mut command = self.program("pg_ctl");
        command.envs(self.builder.environment.iter().map(|(name, value)| (name, value)));
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
        // Nobody needs the data any more, so do not flush it. If this fails, kill the processes: none may stay.
        let stopped = self.pg_ctl(&["stop", "-w", "-t", "20", "-m", "immediate"], None);
        if stopped.is_err() {
            let _ = self.kill9();
        }
    }
}

/// The process of the postmaster that runs on this data directory, or `None` if none does.
pub fn postmaster_pid(data_dir: &Path) -> Option<i32> {
    let file = fs::read_to_string(data_dir.join("postmaster.pid")).ok()?;
    let pid = file.lines().next()?.parse().ok()?;
    (!host::has_ended(pid)).then_some(pid)
}

/// Kills all processes of the server that runs on this data directory, whoever has started it. Its socket is in
/// `sockets`.
pub fn kill9_server(data_dir: &Path, sockets: &Path, port: u16) -> Result<()> {
    let postmaster = postmaster_pid(data_dir).context("the server does not run")?;
    // A frozen postmaster starts no process. But a fork that is under way still ends, so its child is listed only once
    // the postmaster stands still.
    host::freeze(postmaster);
    host::wait_until("the postmaster's standing still", CRASH_LIMIT, || Ok(host::stands_still(postmaster)))?;
    // The postmaster comes last: none of the others is to notice its death and do something about it.
    host::wait_until("the end of the killed processes", CRASH_LIMIT, || {
        let alive = host::living_children(postmaster)?;
        alive.iter().for_each(|&pid| host::kill9(pid));
        Ok(alive.is_empty())
    })?;
    host::kill9(postmaster);
    host::wait_until("the end of the killed postmaster", CRASH_LIMIT, || Ok(host::has_ended(postmaster)))?;
    // If nobody reaps the zombies, these files would make the next start believe that the server runs. Whoever has
    // started the server may already have started it again, with files of its own.
    let mut socket_lock = host::socket_path(sockets, port).into_os_string();
    socket_lock.push(".lock");
    for file in [data_dir.join("postmaster.pid"), socket_lock.into()] {
        let is_left = fs::read_to_string(&file)
            .is_ok_and(|text| text.lines().next().is_some_and(|pid| pid.parse() == Ok(postmaster)));
        if is_left {
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

/// A port of 127.0.0.1 that nobody uses now.
pub fn free_port() -> Result<u16> {
    for _ in 0..PORT_TRIES_MAX {
        let port = rand::rng().random_range(PORTS);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port in {PORTS:?}")
}

/// Quotes a value for a connection string.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn tail(text: &str, lines: usize) -> String {
    let skipped = text.lines().count().saturating_sub(lines);
    text.lines().skip(skipped).collect::<Vec<_>>().join("\n")
}
