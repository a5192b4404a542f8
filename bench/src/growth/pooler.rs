//! PgBouncer in front of the server, in transaction mode.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idempotence_demo::server::{SUPERUSER, Server};

use crate::lab::DATABASE;

/// The path of the program on Debian, or its name on the PATH.
const PROGRAMS: [&str; 2] = ["/usr/sbin/pgbouncer", "pgbouncer"];

/// The port only names the socket, and the directory has no other socket.
const PORT: u16 = 6432;

/// The number of connections to the server.
const POOL: u32 = 20;

/// How long it may take to start.
const LIMIT: Duration = Duration::from_secs(10);

/// A pooler at work.
pub struct Pooler<'a> {
    server: &'a Server,
    directory: PathBuf,
}

impl<'a> Pooler<'a> {
    /// Starts a pooler; `None` if the program is not there.
    pub fn start(server: &'a Server) -> Result<Option<Self>> {
        let is_there = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
        let Some(program) = PROGRAMS.iter().find(is_there) else { return Ok(None) };
        let directory = server.home().join("pooler");
        let pooler = Self { server, directory };
        run(as_server(server, "mkdir").arg(&pooler.directory))?;
        let (upstream, path) = (server.connect_string(DATABASE, SUPERUSER), pooler.directory.display());
        let settings = format!(
            "[databases]\n{DATABASE} = {upstream}\n\
             [pgbouncer]\npool_mode = transaction\ndefault_pool_size = {POOL}\nmax_client_conn = 1200\n\
             listen_addr =\nlisten_port = {PORT}\nunix_socket_dir = {path}\n\
             auth_type = trust\nauth_file = {path}/users\nadmin_users = {SUPERUSER}\n\
             log_connections = 0\nlog_disconnections = 0\nlogfile = {path}/log\npidfile = {path}/pid\n"
        );
        fs::write(pooler.directory.join("settings"), settings)?;
        fs::write(pooler.directory.join("users"), format!("\"{SUPERUSER}\" \"\"\n"))?;
        // pgbouncer refuses to run as root too, so it runs as the server's account. A thousand clients are as many open files,
        // which is about what a process is allowed at first.
        let start = "ulimit -S -n \"$(ulimit -H -n)\" && exec \"$@\"";
        let mut shell = as_server(server, "sh");
        shell.args(["-c", start, "pgbouncer", program, "--daemon"]).arg(pooler.directory.join("settings"));
        run(&mut shell)?;
        let start = Instant::now();
        while !server
            .program("psql")
            .args(["-X", "-c", "SELECT 1", "-d", &pooler.connect_string()])
            .output()?
            .status
            .success()
        {
            ensure!(start.elapsed() < LIMIT, "the pooler does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(pooler))
    }

    /// The string to connect through it.
    pub fn connect_string(&self) -> String {
        format!("host='{}' port={PORT} dbname={DATABASE} user={SUPERUSER}", self.directory.display())
    }
}

/// A program of the machine, to be run as the server's account.
fn as_server(server: &Server, program: &str) -> Command {
    // With an absolute path, `program` does not look among the server's own programs.
    let mut command = server.program("/usr/bin/env");
    command.arg(program);
    command
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl Drop for Pooler<'_> {
    fn drop(&mut self) {
        let pid = |path: &Path| fs::read_to_string(path).ok();
        if let Some(pid) = pid(&self.directory.join("pid")) {
            let _ = as_server(self.server, "kill").arg(pid.trim()).output();
        }
    }
}
