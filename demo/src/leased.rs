//! A worker whose effect is outside the database: it claims an order with a lease, calls the service outside, and
//! records. These rules come on top of the rules of [`client`](crate::client):
//!
//! 1. The claim is committed before the call. It outlasts the connection and the worker, until its lease runs out.
//!    Then the next worker takes over.
//! 2. A call that knows keys is made with the key of the request, so whoever takes over makes it again.
//! 3. Before a call that knows no keys, the worker leaves a checkpoint. Whoever takes over from there does not make
//!    the call again, and says in the outcome that nobody knows whether it was made.
//! 4. Every step shows the token of the claim. A token that was superseded (ID005) tells the worker to stop: the
//!    order is in other hands, or settled.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::client::{Client, Parameters, Unanswered};
use crate::orders::{Delivery, ORDERS, Order, Queue};
use crate::outside::Caller;
use crate::stats::{Stats, increment};
use crate::told::{Answer, Claim, Listener};

/// The length of the leases. An order without trouble takes a worker much less.
pub const LEASE: Duration = Duration::from_millis(500);

/// The point from which on nobody knows whether the notice was sent.
const NOTIFYING: &str = "notifying";

/// The time after which a worker is killed, wherever it is.
const KILLED_AFTER_MS: std::ops::Range<u64> = 2000..10_000;
/// How long a worker stops for, which is longer than its lease.
const PAUSE_MS: std::ops::Range<u64> = 600..1300;
/// How often a worker calls the service until there is a reply.
const CALLS_MAX: u32 = 5;
/// How long a worker waits if there is no order for it.
const IDLE: Duration = Duration::from_millis(10);

const RECORD: &str = "SELECT record_order($1, $2, $3)::text";

/// What the workers and the settlers share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub queue: Arc<Queue>,
    pub service: Caller,
    pub told: Arc<Listener>,
    pub stats: Arc<Stats>,
}

pub struct Worker {
    client: Client,
    rng: SmallRng,
    shared: Shared,
    stop: watch::Receiver<bool>,
}

/// Why a worker leaves an order.
enum Left {
    /// The worker was killed.
    Killed,
    /// The order is in other hands, or settled.
    Superseded,
    /// The server or the service does not answer. The queue delivers the order again.
    Unanswered,
}

impl Worker {
    pub fn new(client: Client, rng: SmallRng, shared: Shared, stop: watch::Receiver<bool>) -> Self {
        Self { client, rng, shared, stop }
    }

    /// Works until told to stop and nothing is left to do. Until then the worker is killed again and again, and
    /// another one takes its place.
    pub async fn run(mut self) {
        while !self.is_stopping() {
            let killed_after = Duration::from_millis(self.rng.random_range(KILLED_AFTER_MS));
            tokio::select! {
                () = self.work() => return,
                () = sleep(killed_after) => self.die(),
            }
        }
        self.work().await;
    }

    /// Loses the connection and everything that the worker knew.
    fn die(&mut self) {
        increment(&self.shared.stats.workers_killed);
        self.client.disconnect();
    }

    async fn work(&mut self) {
        loop {
            match self.next() {
                Some(delivery) => self.serve(&delivery).await,
                None if self.is_stopping() && self.shared.queue.is_delivered() => return,
                None => sleep(IDLE).await,
            }
        }
    }

    /// The order that the queue delivers. If there is none, a customer asks for something new.
    fn next(&mut self) -> Option<Delivery> {
        let delivered = self.shared.queue.take();
        if delivered.is_some() || self.is_stopping() {
            return delivered;
        }
        let order = Order::new(&mut self.rng);
        self.shared.told.asked(&order);
        self.shared.queue.submit(order);
        self.shared.queue.take()
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Claims an order, unless there is an answer already, and does it.
    async fn serve(&mut self, Delivery { order, troubled }: &Delivery) {
        let begin = "SELECT status, response, token, attempt, point, state
                       FROM idem_begin($1, $2, payload => $3, wait => '300 ms', lease => $4::text::interval)";
        let lease = format!("{} ms", LEASE.as_millis());
        let parameters: Parameters<'_> = &[
            (&ORDERS, Type::TEXT),
            (&order.request, Type::TEXT),
            (&order.payload(), Type::JSONB),
            (&lease, Type::TEXT),
        ];
        // If the reply to COMMIT is lost, the claim may be kept although its token is lost. The next attempt then
        // finds the request in progress, until the lease runs out.
        let ticket = match self.client.transact(begin, parameters, |_| {}).await {
            Ok(ticket) => ticket,
            Err(Unanswered::Unknown) => return,
            Err(Unanswered::Refused(failure)) => return self.shared.told.refused(failure.to_string()),
        };
        match ticket.get("status") {
            status @ ("started" | "taken_over") => {
                let claim = Claim {
                    token: ticket.get("token"),
                    attempt: ticket.get("attempt"),
                    taken_over: status == "taken_over",
                };
                self.shared.told.claimed(order, claim);
                let trouble = Trouble::draw(&mut self.rng, *troubled);
                match self.fulfil(order, claim.token, Reached::from(&ticket), trouble).await {
                    Ok(()) => self.shared.queue.done(order),
                    Err(Left::Killed) => self.die(),
                    Err(Left::Superseded) => self.insist(order, claim.token).await,
                    Err(Left::Unanswered) => {}
                }
            }
            // The queue delivers the order again.
            "in_progress" => {}
            status => {
                let response = ticket.get::<_, Option<Value>>("response").unwrap_or_default();
                self.shared.told.answered(order, Answer { status: status.to_owned(), response });
                self.shared.queue.done(order);
            }
        }
    }

    /// Charges, sends a notice and records, starting from where the former worker got to.
    async fn fulfil(
        &mut self,
        order: &Order,
        token: i64,
        reached: Reached,
        trouble: Option<Trouble>,
    ) -> Result<(), Left> {
        let (charge, notice) = match reached {
            Reached::Notifying { charge } => (charge, "perhaps sent"),
            Reached::Nothing => {
                self.stumble(trouble, Step::Charge).await?;
                if self.rng.random_bool(0.2) {
                    self.extend(order, token).await?;
                }
                let charge = self.charge(order).await?;
                self.stumble(trouble, Step::Checkpoint).await?;
                self.checkpoint(order, token, charge).await?;
                self.stumble(trouble, Step::Notify).await?;
                let sent = self.shared.service.notify(&order.request).await;
                (charge, if sent.is_ok() { "sent" } else { "perhaps sent" })
            }
        };
        self.stumble(trouble, Step::Record).await?;
        self.record(order, token, charge, notice).await
    }

    /// Charges under the key of the request, however many workers have done so before.
    async fn charge(&self, order: &Order) -> Result<i64, Left> {
        for _ in 0..CALLS_MAX {
            match self.shared.service.charge(&order.request, order.amount).await {
                Ok(Some(charge)) => return Ok(charge),
                // Whoever has settled the order has voided its key. The worker's token cannot be valid any more.
                Ok(None) => return Err(Left::Superseded),
                Err(_) => {}
            }
        }
        Err(Left::Unanswered)
    }

    async fn extend(&mut self, order: &Order, token: i64) -> Result<(), Left> {
        let lease = format!("{} ms", LEASE.as_millis());
        let extend = "SELECT idem_extend($1, $2, $3, $4::text::interval)";
        let parameters: Parameters<'_> =
            &[(&ORDERS, Type::TEXT), (&order.request, Type::TEXT), (&token, Type::INT8), (&lease, Type::TEXT)];
        self.with_token(order, token, extend, parameters).await
    }

    async fn checkpoint(&mut self, order: &Order, token: i64, charge: i64) -> Result<(), Left> {
        let checkpoint = "SELECT idem_checkpoint($1, $2, $3, $4, token => $5)::text";
        let parameters: Parameters<'_> = &[
            (&ORDERS, Type::TEXT),
            (&order.request, Type::TEXT),
            (&NOTIFYING, Type::TEXT),
            (&json!({ "charge": charge }), Type::JSONB),
            (&token, Type::INT8),
        ];
        self.with_token(order, token, checkpoint, parameters).await
    }

    async fn record(&mut self, order: &Order, token: i64, charge: i64, notice: &str) -> Result<(), Left> {
        let response = json!({ "charge": charge, "notice": notice });
        let parameters: Parameters<'_> =
            &[(&order.request, Type::TEXT), (&token, Type::INT8), (&response, Type::JSONB)];
        self.with_token(order, token, RECORD, parameters).await?;
        self.shared.told.recorded(order, token);
        Ok(())
    }

    /// Runs a statement that shows the token.
    async fn with_token(
        &mut self,
        order: &Order,
        token: i64,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<(), Left> {
        match self.client.transact(statement, parameters, |_| {}).await {
            Ok(_) => Ok(()),
            Err(Unanswered::Unknown) => Err(Left::Unanswered),
            Err(Unanswered::Refused(failure)) if failure.sqlstate() == Some("ID005") => {
                self.shared.told.superseded(order, token);
                Err(Left::Superseded)
            }
            Err(Unanswered::Refused(failure)) => {
                self.shared.told.refused(failure.to_string());
                Err(Left::Unanswered)
            }
        }
    }

    /// Records with a token that was superseded, as a worker with a bug would. The record must be refused.
    async fn insist(&mut self, order: &Order, token: i64) {
        let response = json!({ "error": "recorded with a token that was superseded" });
        let parameters: Parameters<'_> =
            &[(&order.request, Type::TEXT), (&token, Type::INT8), (&response, Type::JSONB)];
        match self.client.transact(RECORD, parameters, |_| {}).await {
            Ok(_) => self.shared.told.stubborn(false),
            Err(Unanswered::Refused(failure)) if failure.sqlstate() == Some("ID005") => {
                self.shared.told.superseded(order, token);
                self.shared.told.stubborn(true);
            }
            Err(Unanswered::Refused(_)) => self.shared.told.stubborn(false),
            Err(Unanswered::Unknown) => {}
        }
    }

    /// If there is trouble before this step, the worker is killed, or stops for longer than its lease and then goes on
    /// unaware.
    async fn stumble(&mut self, trouble: Option<Trouble>, step: Step) -> Result<(), Left> {
        match trouble {
            Some(trouble) if trouble.before == step && !self.is_stopping() => {
                if trouble.fatal {
                    return Err(Left::Killed);
                }
                increment(&self.shared.stats.workers_paused);
                sleep(Duration::from_millis(self.rng.random_range(PAUSE_MS))).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// What a worker does with an order that it has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Charge,
    Checkpoint,
    Notify,
    Record,
}

/// What befalls a worker.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    before: Step,
    /// Whether the worker is killed. Else it stops for a while.
    fatal: bool,
}

impl Trouble {
    /// Draws the trouble, if there is any: always with a troubled order, and at times with another one.
    fn draw(rng: &mut SmallRng, troubled: bool) -> Option<Self> {
        let before = *[Step::Charge, Step::Checkpoint, Step::Notify, Step::Record].choose(rng).expect("not empty");
        let trouble = Self { before, fatal: rng.random_bool(0.3) };
        (troubled || rng.random_bool(0.03)).then_some(trouble)
    }
}

/// How far the former worker got.
enum Reached {
    /// Perhaps it has charged. That may be done again.
    Nothing,
    /// It has charged, and has perhaps sent the notice. That may not be done again.
    Notifying { charge: i64 },
}

impl From<&Row> for Reached {
    fn from(ticket: &Row) -> Self {
        let state = ticket.get::<_, Option<Value>>("state").unwrap_or_default();
        match (ticket.get("point"), state["charge"].as_i64()) {
            (Some(NOTIFYING), Some(charge)) => Self::Notifying { charge },
            _ => Self::Nothing,
        }
    }
}
