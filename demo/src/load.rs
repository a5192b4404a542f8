//! The load: the clients that give their requests keys, beside them the clients that number their requests, and
//! the workers and settlers of the orders.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::journal::Journal;
use crate::keyed::KeyedClient;
use crate::leased::{Shared, Worker};
use crate::numbered::NumberedClient;
use crate::plan::{Choices, Plan, ROLLBACK_RATE};
use crate::settler::Settler;
use crate::stats::Stats;

/// The number of settlers, if there are workers.
pub const SETTLERS: u32 = 2;

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

/// Starts the workers and the settlers. Once told to stop, they finish all orders and end.
pub fn start_orders(running: &mut JoinSet<()>, plan: &Plan, shared: &Shared, stop: &watch::Receiver<bool>) {
    if plan.workers == 0 {
        return;
    }
    let mut choices = Choices::new(plan, plan.keyed_clients + plan.numbered_clients);
    for number in 0..plan.workers + SETTLERS {
        let client = Client::new(plan.config.clone(), choices.fork().rng, shared.stats.clone(), ROLLBACK_RATE);
        let (rng, shared, stop) = (choices.fork().rng, shared.clone(), stop.clone());
        if number < plan.workers {
            running.spawn(Worker::new(client, rng, shared, stop).run());
        } else {
            running.spawn(Settler::new(client, rng, shared, stop).run());
        }
    }
}
