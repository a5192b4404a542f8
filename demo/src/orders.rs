//! The orders, and the queue that delivers them to the workers. As queues do, this one delivers each order at least
//! once: an order that nobody has dealt with is delivered again, some orders go to two workers at once, some arrive
//! late, and some arrive again after they were done.
//!
//! Of some orders the customer loses patience before the order is done, or gets no word that it was. Such an order is
//! in doubt, and is to be settled.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use uuid::Uuid;

/// The session of the orders.
pub const ORDERS: &str = "orders";

/// How long an order may be with one worker before the queue delivers it to another one as well.
const REDELIVER_AFTER_MS: std::ops::Range<u64> = 500..1200;
/// How long a doubt may be with one settler before it goes to another one as well.
const RESETTLE_AFTER: Duration = Duration::from_millis(400);
const AMOUNTS: std::ops::Range<i64> = 1..100;

/// A request: charge this amount, send a notice, and record both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The key of the request, which is also the key for the service outside.
    pub request: String,
    pub amount: i64,
}

impl Order {
    pub fn new(rng: &mut SmallRng) -> Self {
        Self { request: Uuid::now_v7().to_string(), amount: rng.random_range(AMOUNTS) }
    }

    pub fn payload(&self) -> Value {
        json!({ "amount": self.amount })
    }
}

/// The orders that wait for a worker or for a settler.
#[derive(Debug)]
pub struct Queue(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    rng: SmallRng,
    calm: bool,
    deliveries: Tray,
    doubts: Tray,
    /// The requests of orders that bring trouble on the first worker who gets them.
    troubled: HashSet<String>,
}

/// An order for a worker.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub order: Order,
    /// Whether the worker is going to be in trouble after it has claimed the order.
    pub troubled: bool,
}

impl Queue {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(Waiting {
            rng: SmallRng::seed_from_u64(seed),
            calm: false,
            deliveries: Tray::default(),
            doubts: Tray::default(),
            troubled: HashSet::new(),
        }))
    }

    /// From now on, nothing is delivered twice at once, or again after it was done.
    pub fn calm_down(&self) {
        self.waiting().calm = true;
    }

    /// Takes a new order in, and draws what will happen to it on its way.
    pub fn submit(&self, order: Order) {
        let mut waiting = self.waiting();
        let now = Instant::now();
        let fate = Fate::draw(&mut waiting.rng);
        if let Some(settled_after) = fate.settled_after {
            waiting.doubts.put(order.clone(), now + settled_after);
        }
        if fate.troubled {
            waiting.troubled.insert(order.request.clone());
        }
        waiting.deliveries.put(order, now + fate.delivered_after);
    }

    /// An order for a worker. Until the order is done, it will be delivered again.
    pub fn take(&self) -> Option<Delivery> {
        let mut waiting = self.waiting();
        let at_once_again = !waiting.calm && waiting.rng.random_bool(0.1);
        let redeliver_after = if at_once_again { 0 } else { waiting.rng.random_range(REDELIVER_AFTER_MS) };
        let order = waiting.deliveries.take(Duration::from_millis(redeliver_after))?;
        let troubled = waiting.troubled.remove(&order.request);
        Some(Delivery { order, troubled })
    }

    /// An order for a settler. Until the doubt is settled, it will be given again.
    pub fn take_doubt(&self) -> Option<Order> {
        self.waiting().doubts.take(RESETTLE_AFTER)
    }

    /// A worker has an answer to an order. Once in a while a late copy of it arrives afterwards.
    pub fn done(&self, order: &Order) {
        let mut waiting = self.waiting();
        let known = waiting.deliveries.remove(order);
        if known && !waiting.calm && waiting.rng.random_bool(0.05) {
            let late = Duration::from_millis(waiting.rng.random_range(50..1000));
            waiting.deliveries.put(order.clone(), Instant::now() + late);
        }
    }

    /// A settler has dealt with a doubt.
    pub fn settled(&self, order: &Order) {
        self.waiting().doubts.remove(order);
    }

    /// Whether no order waits for a worker.
    pub fn is_delivered(&self) -> bool {
        self.waiting().deliveries.0.is_empty()
    }

    /// Whether no order waits for a settler.
    pub fn is_settled(&self) -> bool {
        self.waiting().doubts.0.is_empty()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Each change is a single step, so a panic cannot have left a change half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happens to an order on its way.
struct Fate {
    delivered_after: Duration,
    /// When the order will be settled, if it comes into doubt.
    settled_after: Option<Duration>,
    troubled: bool,
}

impl Fate {
    fn draw(rng: &mut SmallRng) -> Self {
        let lot = rng.random_range(0..100);
        let mut millis = |range| Duration::from_millis(rng.random_range(range));
        let at_once = Self { delivered_after: Duration::ZERO, settled_after: None, troubled: false };
        match lot {
            // The order is lost, and a copy turns up at about the time at which it is settled.
            0..20 => {
                let (settled_after, early) = (millis(300..800), millis(0..100));
                let delivered_after = settled_after - early + millis(0..300);
                Self { delivered_after, settled_after: Some(settled_after), ..at_once }
            }
            // The customer loses patience with a worker in trouble.
            20..40 => Self { settled_after: Some(millis(100..700)), troubled: true, ..at_once },
            // The order is at work or done when the customer loses patience.
            40..50 => Self { settled_after: Some(millis(0..700)), ..at_once },
            // The customer leaves it to the queue to find another worker.
            50..65 => Self { troubled: true, ..at_once },
            _ => at_once,
        }
    }
}

/// Orders by request, each with the time at which it is due.
#[derive(Debug, Default)]
struct Tray(HashMap<String, (Instant, Order)>);

impl Tray {
    fn put(&mut self, order: Order, due: Instant) {
        self.0.insert(order.request.clone(), (due, order));
    }

    /// Gives the order that has been due for longest. It stays, and is due again after this time.
    fn take(&mut self, due_again_after: Duration) -> Option<Order> {
        let now = Instant::now();
        let (due, order) = self.0.values_mut().filter(|(due, _)| *due <= now).min_by_key(|(due, _)| *due)?;
        *due = now + due_again_after;
        Some(order.clone())
    }

    fn remove(&mut self, order: &Order) -> bool {
        self.0.remove(&order.request).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_delivered_until_it_is_done() {
        let mut tray = Tray::default();
        let order = Order::new(&mut SmallRng::seed_from_u64(1));
        assert_eq!(tray.take(Duration::ZERO), None);
        tray.put(order.clone(), Instant::now());
        assert_eq!(tray.take(Duration::ZERO), Some(order.clone()));
        assert_eq!(tray.take(Duration::from_secs(1000)), Some(order.clone()));
        assert_eq!(tray.take(Duration::ZERO), None);
        assert!(tray.remove(&order));
        assert!(!tray.remove(&order));
    }
}
