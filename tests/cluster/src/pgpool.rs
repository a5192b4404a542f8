//! pgpool-II in front of a primary and a standby. It reads SQL, and sends what it takes for a read to the standby: all
//! reads, since the primary has no weight in its choice.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use idempotence_demo::host::{Account, run};
use idempotence_demo::server::free_port;
use tokio::time::{Duration, Instant, sleep};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::daemon::{Daemon, installed};
use crate::limits::LIMIT;

/// A running pgpool.
pub struct Pgpool {
    account: Account,
    directory: PathBuf,
    port: u16,
    daemon: Option<Daemon>,
}

impl Pgpool {
    /// Starts a pgpool whose configuration has these lines, besides what they need. Its files are among those of the
    /// primary.
    pub async fn start(primary: &Cluster, standby: &Cluster, lines: &str) -> Result<Self> {
        let (account, port, administration) = (Account::for_server()?, free_port()?, free_port()?);
        let directory = primary.home().join(format!("pgpool{port}"));
        run(account.command("mkdir").args(["-m", "700"]).arg(&directory), None, LIMIT)?;
        let path = directory.display();
        let mut settings = format!(
            "listen_addresses = ''\nport = {port}\nsocket_dir = '{path}'\n\
             pcp_listen_addresses = ''\npcp_port = {administration}\npcp_socket_dir = '{path}'\n\
             pid_file_name = '{path}/pid'\nlogdir = '{path}'\nenable_pool_hba = off\npool_passwd = ''\n\
             num_init_children = 24\nmax_pool = 1\nsr_check_user = 'postgres'\nsr_check_period = 1\n"
        );
        // It goes on with a server that is back after a crash, as it does with one that a failover manager looks after.
        for (number, (server, weight)) in [(primary, 0), (standby, 1)].into_iter().enumerate() {
            let (home, port) = (server.home().display(), server.addr().port());
            settings += &format!(
                "backend_hostname{number} = '{home}'\nbackend_port{number} = {port}\n\
                 backend_weight{number} = {weight}\nbackend_flag{number} = 'DISALLOW_TO_FAILOVER'\n"
            );
        }
        fs::write(directory.join("pgpool.conf"), settings + lines)?;
        fs::write(directory.join("empty"), "")?;
        let mut pgpool = Self { account, directory, port, daemon: None };
        pgpool.restart().await?;
        Ok(pgpool)
    }

    /// Ends it at once, with the connections of its clients, and starts it again.
    pub async fn restart(&mut self) -> Result<()> {
        // It has to be gone before the next takes its port.
        self.daemon = None;
        let mut pgpool = self.account.daemon(installed(&["/usr/sbin/pgpool", "pgpool"]));
        pgpool.args(["-n", "-D", "-f"]).arg(self.directory.join("pgpool.conf"));
        for option in ["-F", "-a", "-k"] {
            pgpool.arg(option).arg(self.directory.join("empty"));
        }
        let daemon = self.daemon.insert(Daemon::start(pgpool, &self.directory.join("log"))?);
        let start = Instant::now();
        // It answers before it has found out which server is the primary; and it has to know the standby too.
        let up = format!("host='{}' port={} dbname=postgres user=postgres", self.directory.display(), self.port);
        loop {
            if let Ok(connection) = Connection::open(&up).await
                && let Ok(nodes) = connection.try_text("SHOW pool_nodes").await
                && nodes.contains("|primary|")
                && nodes.contains("|standby|")
            {
                return Ok(());
            }
            ensure!(start.elapsed() <= LIMIT, "pgpool does not answer: {}", daemon.end_of_log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The string to connect through it.
    pub fn connect_string(&self, database: &str, role: &str) -> String {
        format!("host='{}' port={} dbname={database} user={role}", self.directory.display(), self.port)
    }

    /// Connects through it.
    pub async fn connect(&self, database: &str, role: &str) -> Result<Connection> {
        Ok(Connection::open(&self.connect_string(database, role)).await?)
    }
}

impl Drop for Pgpool {
    fn drop(&mut self) {
        // The test harness shows this only if the test fails.
        if let Some(daemon) = &self.daemon {
            println!("the end of the log of pgpool:{}", daemon.end_of_log());
        }
    }
}
