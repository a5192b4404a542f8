//! One of the servers, and the Patroni that runs it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use idempotence_demo::host::{Account, run};
use idempotence_demo::server::{free_port, kill9_server, postmaster_pid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cluster::bad_lines;
use crate::daemon::{Daemon, end_of, installed, read_log};
use crate::limits::LIMIT;
use crate::load::lock;

/// What is killed with signal 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// All processes of the server.
    Server,
    /// These, and its Patroni: what is left when a machine is lost.
    Both,
    /// Its Patroni alone. The server goes on, and nobody tells it that another becomes the leader.
    Manager,
}

impl Victim {
    /// One after the other.
    pub fn of_turn(turn: usize) -> Self {
        [Self::Server, Self::Both, Self::Manager][turn % 3]
    }
}

/// A server and its Patroni.
#[derive(Debug)]
pub struct Node {
    account: Account,
    name: &'static str,
    directory: PathBuf,
    port: u16,
    rest: u16,
    manager: Mutex<Option<Daemon>>,
}

impl Node {
    pub(super) fn new(account: Account, home: &Path, name: &'static str) -> Result<Self> {
        let directory = home.join(name);
        run(account.command("mkdir").args(["-m", "700"]).arg(&directory), None, LIMIT)?;
        Ok(Self { account, name, directory, port: free_port()?, rest: free_port()?, manager: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port at which its Patroni says which part the server has.
    pub fn rest(&self) -> u16 {
        self.rest
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub(super) fn settings(&self) -> PathBuf {
        self.directory.join("patroni.json")
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The string to connect as the superuser.
    pub fn socket(&self, database: &str) -> String {
        format!("host='{}' port={} dbname={database} user=postgres", self.directory.display(), self.port)
    }

    /// Starts its Patroni, which starts the server.
    pub fn manage(&self) -> Result<()> {
        let mut patroni = self.account.daemon(installed(&["/usr/bin/patroni", "patroni"]));
        patroni.arg(self.settings()).env("HOME", &self.directory);
        *lock(&self.manager) = Some(Daemon::start(patroni, &self.log_path())?);
        Ok(())
    }

    /// Kills the server, its Patroni or both.
    pub fn kill(&self, victim: Victim) -> Result<()> {
        if victim != Victim::Server {
            let manager = lock(&self.manager).take();
            ensure!(manager.is_some(), "the Patroni of {} does not run", self.name);
            manager.map(|mut manager| manager.kill9()).transpose()?;
        }
        if victim != Victim::Manager {
            kill9_server(&self.data_dir(), &self.directory, self.port)?;
        }
        Ok(())
    }

    /// The process of the server's postmaster.
    pub fn postmaster(&self) -> Option<i32> {
        postmaster_pid(&self.data_dir())
    }

    /// Whether Patroni says that the server has this part: `primary`, `replica` or `sync`.
    pub async fn is(&self, part: &str) -> bool {
        matches!(timeout(Duration::from_secs(2), self.ask(part)).await, Ok(Ok(answer)) if answer.contains(" 200 "))
    }

    /// The first line of Patroni's answer. A load balancer asks in the same way.
    async fn ask(&self, part: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.rest)).await?;
        stream.write_all(format!("OPTIONS /{part} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    }

    pub(super) fn end_of_log(&self) -> String {
        end_of(&read_log(&self.log_path()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Nobody needs the data any more. An error means that what is to be killed does not run.
        if let Some(mut manager) = lock(&self.manager).take() {
            let _ = manager.kill9();
        }
        let _ = kill9_server(&self.data_dir(), &self.directory, self.port);
        // The test harness shows this only if the test fails.
        println!("the end of the log of {}:{}", self.name, self.end_of_log());
        let log = read_log(&self.log_path());
        let bad = bad_lines(&log);
        if !bad.is_empty() && !thread::panicking() {
            panic!("the log of {} has:\n{}", self.name, bad.join("\n"));
        }
    }
}
