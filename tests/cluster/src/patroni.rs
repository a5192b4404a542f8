//! Three servers under Patroni, which chooses a leader among them, makes one of the others the synchronous standby, and
//! puts it in the leader's place when the leader is lost. What Patroni knows is kept in an etcd.
//!
//! - [`Node`] is one of the servers with its Patroni, and how it is killed.
//! - [`Fleet`] is all of it.

mod node;

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Result, ensure};
use idempotence_demo::host::{Account, Home};
use idempotence_demo::server::free_port;
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};
use uuid::Uuid;

pub use node::{Node, Victim};

use crate::connection::Connection;
use crate::daemon::{Daemon, installed};
use crate::limits::LIMIT;
use crate::standby;
use crate::version::Version;

/// The database of the clients.
pub const DATABASE: &str = "shop";

/// The role of the clients.
pub const ROLE: &str = "app";

const NODES: [&str; 3] = ["a", "b", "c"];
const PAUSE: Duration = Duration::from_millis(50);

/// The servers.
#[derive(Debug)]
pub struct Fleet {
    // In the order in which they have to end: the directory last.
    nodes: Vec<Node>,
    _etcd: Daemon,
    password: String,
    home: Home,
}

impl Fleet {
    /// Starts the servers, with the extension, the database and the role. If they are not synchronous, a standby that
    /// lags may take the leader's place.
    pub async fn start(version: Version, synchronous: bool) -> Result<Self> {
        let account = Account::for_server()?;
        let home = Home::create(account, None)?;
        let (client, peer) = (free_port()?, free_port()?);
        let etcd = start_etcd(account, home.path(), client, peer)?;
        let password = Uuid::new_v4().to_string();
        let mut nodes = Vec::new();
        for name in NODES {
            let node = Node::new(account, home.path(), name)?;
            let settings = settings(&node, &version.bindir()?, client, &password, synchronous);
            fs::write(node.settings(), settings.to_string())?;
            node.manage()?;
            nodes.push(node);
        }
        let fleet = Self { nodes, _etcd: etcd, password, home };
        // The standbys first: PostgreSQL does not promote a copy that was taken while an unlogged table was being
        // created.
        let leader = fleet.wait_until_whole(synchronous).await?;
        let superuser = fleet.connect(leader, "postgres").await?;
        superuser.text(&format!("CREATE ROLE {ROLE} LOGIN PASSWORD '{}'", fleet.password)).await?;
        superuser.text(&format!("CREATE DATABASE {DATABASE}")).await?;
        fleet.connect(leader, DATABASE).await?.text("CREATE EXTENSION idempotence").await?;
        Ok(fleet)
    }

    /// The servers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The directory of all their files.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Connects to a server as the superuser.
    pub async fn connect(&self, node: usize, database: &str) -> Result<Connection> {
        Ok(Connection::open(&self.nodes[node].socket(database)).await?)
    }

    /// The string by which a client finds the leader among all servers.
    pub fn hosts(&self) -> String {
        let hosts = vec!["127.0.0.1"; self.nodes.len()].join(",");
        let ports: Vec<String> = self.nodes.iter().map(|node| node.port().to_string()).collect();
        let ports = ports.join(",");
        format!("host={hosts} port={ports} {} target_session_attrs=read-write connect_timeout=2", self.login())
    }

    /// What a connection string needs besides the address.
    pub fn login(&self) -> String {
        format!("dbname={DATABASE} user={ROLE} password={}", self.password)
    }

    /// Waits until Patroni says that there is a leader, other than this one.
    pub async fn wait_for_leader(&self, other_than: Option<usize>) -> Result<usize> {
        let start = Instant::now();
        loop {
            for (number, node) in self.nodes.iter().enumerate() {
                if Some(number) != other_than
                    && node.is("primary").await
                    && self.connect(number, "postgres").await.is_ok()
                {
                    return Ok(number);
                }
            }
            ensure!(start.elapsed() <= LIMIT, "there is no leader: {}", self.logs());
            sleep(PAUSE).await;
        }
    }

    /// Waits until there are a leader and two standbys that follow it, one of them, if it is to be so, synchronous.
    /// Returns the leader.
    ///
    /// Patroni says that a standby is synchronous when `pg_stat_replication` does, and that may be before commits wait
    /// for it. So a commit has to prove it. It fails to where Patroni has just chosen another standby, and then all is
    /// looked at once more.
    pub async fn wait_until_whole(&self, synchronous: bool) -> Result<usize> {
        let start = Instant::now();
        let mut obstacle = String::new();
        loop {
            if let Some((leader, standby)) = self.leader_and_synchronous(synchronous).await {
                let proof = match standby {
                    Some(standby) => self.commits_wait(leader, standby).await,
                    None => Ok(true),
                };
                match proof {
                    Ok(true) => return Ok(leader),
                    Ok(false) => obstacle = "a commit was acknowledged without the synchronous standby".into(),
                    Err(error) => obstacle = format!("{error:#}"),
                }
            }
            ensure!(start.elapsed() <= LIMIT, "the servers do not follow one leader: {obstacle} {}", self.logs());
            sleep(PAUSE).await;
        }
    }

    /// Whether commits on the leader wait for its synchronous standby. The CHECKPOINT returns after the checkpointer
    /// has read the setting.
    async fn commits_wait(&self, leader: usize, standby: usize) -> Result<bool> {
        let (probe, watch) = (self.connect(leader, "postgres").await?, self.connect(leader, "postgres").await?);
        watch.text("CHECKPOINT").await?;
        standby::commits_wait(&probe, &watch, &self.connect(standby, "postgres").await?).await
    }

    /// The leader, if two standbys follow it, and the synchronous one of them, if there is to be one.
    async fn leader_and_synchronous(&self, synchronous: bool) -> Option<(usize, Option<usize>)> {
        let (mut leader, mut in_step) = (None, None);
        let mut following = 0;
        for (number, node) in self.nodes.iter().enumerate() {
            if node.is("primary").await {
                leader = Some(number);
            }
            if node.is("sync").await {
                in_step = Some(number);
            }
            following += usize::from(node.is("replica").await);
        }
        let leader = leader.filter(|_| following == 2 && in_step.is_some() == synchronous)?;
        let streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        let there = self.connect(leader, "postgres").await.ok()?;
        (there.try_text(streaming).await.ok()? == "2").then_some((leader, in_step))
    }

    /// The ends of all logs, for the message of an error.
    fn logs(&self) -> String {
        self.nodes.iter().map(|node| format!("\n{}: {}", node.name(), node.end_of_log())).collect()
    }
}

impl Drop for Fleet {
    /// Copies the complete logs of the servers and of what stands around them to the directory that the variable
    /// `IDEM_LOGS` names, if it does. A test prints only their ends.
    fn drop(&mut self) {
        let Some(kept) = env::var_os("IDEM_LOGS").map(PathBuf::from) else { return };
        let kept = kept.join(self.home().file_name().unwrap_or_default());
        // Nothing can be done about an error: the test has ended.
        let _ = fs::create_dir_all(&kept);
        for node in &self.nodes {
            let _ = fs::copy(node.log_path(), kept.join(format!("{}.log", node.name())));
        }
        for log in ["etcd.log", "haproxy.log"] {
            let _ = fs::copy(self.home().join(log), kept.join(log));
        }
    }
}

fn start_etcd(account: Account, home: &Path, client: u16, peer: u16) -> Result<Daemon> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut etcd = account.daemon(installed(&["/usr/bin/etcd", "etcd"]));
    etcd.arg("--data-dir").arg(home.join("etcd")).args(["--name", "etcd", "--log-level", "warn"]);
    etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    etcd.args(["--initial-cluster", &format!("etcd={peer}")]);
    Daemon::start(etcd, &home.join("etcd.log"))
}

/// The settings of a node's Patroni. What Patroni reads as YAML may as well be JSON.
fn settings(node: &Node, bindir: &Path, etcd: u16, password: &str, synchronous: bool) -> serde_json::Value {
    let address = |port: u16| format!("127.0.0.1:{port}");
    let login = |role: &str| json!({"username": role, "password": password});
    json!({
        "scope": "fleet",
        "name": node.name(),
        "restapi": {"listen": address(node.rest()), "connect_address": address(node.rest())},
        "etcd3": {"host": address(etcd)},
        "bootstrap": {
            "dcs": {
                // Patroni's usual times are three times as long.
                "ttl": 10,
                "loop_wait": 1,
                "retry_timeout": 3,
                "synchronous_mode": synchronous,
                // A leader that has crashed gives way, where Patroni would otherwise start it again.
                "primary_start_timeout": 0,
                "postgresql": {
                    "use_pg_rewind": true,
                    "parameters": {
                        "shared_preload_libraries": "idempotence",
                        "idempotence.naptime": "1s",
                        "max_connections": 100,
                        // The tests kill processes, never the machine.
                        "fsync": "off",
                    },
                },
            },
            "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
        },
        "postgresql": {
            "listen": address(node.port()),
            "connect_address": address(node.port()),
            "data_dir": node.data_dir(),
            "bin_dir": bindir,
            "pgpass": node.directory().join("pgpass"),
            "use_unix_socket": true,
            "basebackup": [{"checkpoint": "fast"}],
            "authentication": {"superuser": login("postgres"), "replication": login("replicator")},
            "parameters": {"unix_socket_directories": node.directory()},
            "pg_hba": [
                "local all all trust",
                "host replication replicator 127.0.0.1/32 scram-sha-256",
                "host all all 127.0.0.1/32 scram-sha-256",
            ],
        },
    })
}
