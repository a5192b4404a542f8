//! HAProxy in front of the servers of a [`Fleet`], with the configuration of `docs/scaling.md`.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use idempotence_demo::host::Account;
use idempotence_demo::server::free_port;

use crate::daemon::{Daemon, installed};
use crate::documented;
use crate::patroni::Fleet;

/// A running HAProxy.
#[derive(Debug)]
pub struct Haproxy {
    address: SocketAddr,
    daemon: Daemon,
}

impl Haproxy {
    /// Starts it. Its files are among those of the servers.
    pub fn start(fleet: &Fleet) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut replaced = vec![("bind :5000".to_owned(), format!("bind {address}"))];
        for (number, node) in fleet.nodes().iter().enumerate() {
            let there = format!("10.0.0.{}:5432 check port 8008", number + 1);
            replaced.push((there, format!("127.0.0.1:{} check port {}", node.port(), node.rest())));
        }
        let mut settings = documented::block("haproxy")?;
        for (documented, here) in replaced {
            ensure!(settings.contains(&documented), "the documented configuration has no {documented:?}:\n{settings}");
            settings = settings.replace(&documented, &here);
        }
        let file = fleet.home().join("haproxy.cfg");
        fs::write(&file, settings)?;
        let mut haproxy = Account::for_server()?.daemon(installed(&["/usr/sbin/haproxy", "haproxy"]));
        haproxy.arg("-db").arg("-f").arg(file);
        Ok(Self { address, daemon: Daemon::start(haproxy, &fleet.home().join("haproxy.log"))? })
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// The string by which a client of the fleet connects through it.
    pub fn connect_string(&self, fleet: &Fleet) -> String {
        format!("host={} port={} {} connect_timeout=5", self.address.ip(), self.address.port(), fleet.login())
    }
}
