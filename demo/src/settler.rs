//! A settler: it gives orders that are in doubt a binding verdict. Either an order is done, or it is cancelled and
//! never shall be done. Late copies of the order and workers that are still at work race with the settler.
//!
//! 1. The settler acts on a verdict only after COMMIT has been answered.
//! 2. A cancelled order may have been charged: by a worker whose lease ran out, or by one that does not know yet. So
//!    the settler voids its key at the service outside. If the settler is killed before that, the next settler gets
//!    the same verdict and does it.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::client::{Client, Parameters, Unanswered};
use crate::leased::Shared;
use crate::orders::{ORDERS, Order};
use crate::stats::increment;
use crate::told::Answer;

/// The time after which a settler is killed, wherever it is.
const KILLED_AFTER_MS: std::ops::Range<u64> = 200..2000;
/// How long a settler waits if there is no doubt.
const IDLE: Duration = Duration::from_millis(10);

pub struct Settler {
    client: Client,
    rng: SmallRng,
    shared: Shared,
    stop: watch::Receiver<bool>,
}

impl Settler {
    pub fn new(client: Client, rng: SmallRng, shared: Shared, stop: watch::Receiver<bool>) -> Self {
        Self { client, rng, shared, stop }
    }

    /// Settles until told to stop and nothing is in doubt any more. Until then the settler is killed again and
    /// again, and another one takes its place.
    pub async fn run(mut self) {
        while !*self.stop.borrow() {
            let killed_after = Duration::from_millis(self.rng.random_range(KILLED_AFTER_MS));
            tokio::select! {
                () = self.work() => return,
                () = sleep(killed_after) => {
                    increment(&self.shared.stats.settlers_killed);
                    self.client.disconnect();
                }
            }
        }
        self.work().await;
    }

    async fn work(&mut self) {
        loop {
            match self.shared.queue.take_doubt() {
                Some(order) => self.settle(&order).await,
                None if *self.stop.borrow() && self.shared.queue.is_settled() => return,
                None => sleep(IDLE).await,
            }
        }
    }

    async fn settle(&mut self, order: &Order) {
        // The verdict has a name, so that the proof can tell which one has become valid.
        let settle = "SELECT status, replayed, response, attempt
                        FROM idem_settle($1, $2, wait => '300 ms',
                                         response => jsonb_build_object('verdict', gen_random_uuid()))";
        let parameters: Parameters<'_> = &[(&ORDERS, Type::TEXT), (&order.request, Type::TEXT)];
        let told = self.shared.told.clone();
        let ticket = self.client.transact(settle, parameters, |ticket| {
            if ticket.get::<_, &str>("status") == "cancelled" && !ticket.get::<_, bool>("replayed") {
                told.verdict(response(ticket)["verdict"].as_str().unwrap_or_default(), ticket.get("attempt"));
            }
        });
        let ticket = match ticket.await {
            Ok(ticket) => ticket,
            Err(Unanswered::Unknown) => return,
            Err(Unanswered::Refused(failure)) => return self.shared.told.refused(failure.to_string()),
        };
        let status: &str = ticket.get("status");
        match status {
            // A worker has a lease. The doubt comes back.
            "in_progress" => return,
            "cancelled" if self.shared.service.void(&order.request).await.is_err() => return,
            _ => {}
        }
        self.shared.told.answered(order, Answer { status: status.to_owned(), response: response(&ticket) });
        self.shared.queue.settled(order);
    }
}

fn response(ticket: &Row) -> Value {
    ticket.get::<_, Option<Value>>("response").unwrap_or_default()
}
