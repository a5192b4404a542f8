//! Kills of nodes and of their processes, while clients are at work.

use anyhow::Result;
use rand::RngExt;

use crate::citus::load::APPLICATION;
use crate::citus::nodes::{Citus, DATABASE};
use crate::crashes::Crash;

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
