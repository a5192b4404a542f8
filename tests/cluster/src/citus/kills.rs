//! Kills of nodes and of their processes, while clients are at work.

use anyhow::{Result, ensure};
use rand::RngExt;

use crate::citus::nodes::{Citus, DATABASE};
use crate::crashes::Crash;
use crate::driver::{APPLICATION, Work};
use crate::effort::requests;

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// All processes of the coordinator.
    Coordinator,
    /// The backend of a client on the coordinator, and with it all others there.
    Backend,
    /// All processes of a worker.
    Worker(usize),
}

impl Victim {
    /// One after the other, so that with a few kills each of them has its turn.
    pub fn of_turn(turn: usize, citus: &Citus) -> Self {
        match turn % 3 {
            0 => Self::Coordinator,
            1 => Self::Worker(rand::rng().random_range(0..citus.workers().len())),
            _ => Self::Backend,
        }
    }

    /// Kills it with signal 9, and waits until the node is up again.
    pub async fn kill(self, citus: &Citus) -> Result<()> {
        match self {
            Self::Coordinator => citus.coordinator().crash(),
            Self::Worker(number) => citus.workers()[number].crash(),
            Self::Backend => Crash::Backend.of(citus.coordinator(), DATABASE, APPLICATION).await,
        }
    }
}

/// Has clients do this work, kills nodes and processes at random moments until there were enough kills and enough
/// requests, and fails unless each request took effect once.
pub async fn survives(citus: &Citus, work: impl Work, what: &str) -> Result<()> {
    let mut load = citus.start_load(work, 8);
    let (wanted, kills) = (requests(3000, 12_000), requests(6, 24));
    for turn in 0..kills {
        load.progress(rand::rng().random_range(1..=2 * wanted / kills - 1)).await?;
        Victim::of_turn(turn, citus).kill(citus).await?;
    }
    load.progress(wanted.saturating_sub(load.answered()).max(100)).await?;
    let report = citus.close(load).await?;
    ensure!(report.retries > 0, "no client noticed any of the kills");
    report.tell(&format!("{what}, {kills} kills"));
    report.check()
}
