//! The load: the clients that give their requests keys, and beside them the clients that number their
//! requests.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::journal::Journal;
use crate::keyed::KeyedClient;
use crate::numbered::NumberedClient;
use crate::plan::Plan;
use crate::stats::Stats;

/// Starts the clients. Once told to stop, each client finishes its current request and ends.
pub fn start(plan: &Plan, journal: &Arc<Journal>, stats: &Arc<Stats>, stop: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut running = JoinSet::new();
    for number in 0..plan.keyed_clients {
        running.spawn(KeyedClient::new(plan, number, journal, stats).run(stop.clone()));
    }
    for number in 0..plan.numbered_clients {
        running.spawn(NumberedClient::new(plan, number, journal, stats).run(stop.clone()));
    }
    running
}
