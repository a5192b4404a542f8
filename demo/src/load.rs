//! Who asks for what: so many workers, each with a request after the other, some of them sent
//! several times at once, again after a long time, or with another payload under a used key; and beside
//! them the clients that number their requests, see [`numbered`](crate::numbered).

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Config, IsolationLevel};

use crate::bank::{Transfer, Work};
use crate::client::{ATTEMPTS_MAX, Answer, Client, Failure, Manner, Unanswered, Way};
use crate::journal::Journal;
use crate::numbered::Numbered;
use crate::stats::{Stats, add};

/// Of one request on its way at the same time.
const COPIES_MAX: usize = 4;

/// How often the application fails between its work and COMMIT.
pub const ROLLBACK_RATE: f64 = 0.01;

#[derive(Clone, Debug)]
pub struct Plan {
    pub workers: u32,
    /// Clients that number their requests.
    pub numbered: u32,
    pub accounts: u32,
    pub seed: u64,
    /// Where to connect to: the proxy, as the bank's role.
    pub config: Config,
    /// False: the same load without keys.
    pub with_keys: bool,
}

/// Starts the workers; they end, each after its current request, when told to stop.
pub fn start(plan: &Plan, journal: &Arc<Journal>, stats: &Arc<Stats>, stop: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut running = JoinSet::new();
    for number in 0..plan.workers {
        running.spawn(Worker::new(plan, number, journal, stats).run(stop.clone()));
    }
    for number in 0..plan.numbered {
        running.spawn(Numbered::new(plan, number, journal, stats).run(stop.clone()));
    }
    running
}

/// What is left to chance.
pub struct Dice {
    pub rng: SmallRng,
    accounts: i32,
    with_keys: bool,
}

impl Dice {
    pub fn new(plan: &Plan, number: u32) -> Self {
        let rng = SmallRng::seed_from_u64(plan.seed.wrapping_add(number.into()));
        Self { rng, accounts: plan.accounts.cast_signed(), with_keys: plan.with_keys }
    }

    /// Others, of the same kind.
    pub fn fork(&mut self) -> Self {
        Self { rng: SmallRng::from_rng(&mut self.rng), accounts: self.accounts, with_keys: self.with_keys }
    }

    /// What a transfer is to do.
    pub fn work(&mut self) -> Work {
        let debit = self.rng.random_range(1..=self.accounts);
        // Any other account.
        let credit = (debit + self.rng.random_range(0..self.accounts - 1)) % self.accounts + 1;
        // Now and then more than an account is likely to hold: a final failure.
        let amount = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(500..3000),
            _ => self.rng.random_range(1..50),
        };
        Work { debit, credit, amount }
    }

    pub fn manner(&mut self) -> Manner {
        let ways: &[Way] = if self.with_keys {
            &[Way::Statements, Way::Statements, Way::Function, Way::Run]
        } else {
            &[Way::WithoutKeys]
        };
        Manner {
            way: *ways.choose(&mut self.rng).expect("not empty"),
            isolation: match self.rng.random_range(0..4) {
                0 => IsolationLevel::RepeatableRead,
                1 => IsolationLevel::Serializable,
                _ => IsolationLevel::ReadCommitted,
            },
            wait: ["0", "100 ms", "1 s"].choose(&mut self.rng).expect("not empty"),
        }
    }
}

struct Worker {
    clients: Vec<Client>,
    dice: Dice,
    with_keys: bool,
    journal: Arc<Journal>,
    stats: Arc<Stats>,
}

impl Worker {
    fn new(plan: &Plan, number: u32, journal: &Arc<Journal>, stats: &Arc<Stats>) -> Self {
        let mut dice = Dice::new(plan, number);
        let clients = (0..COPIES_MAX)
            .map(|_| Client::new(plan.config.clone(), dice.fork().rng, stats.clone(), ROLLBACK_RATE))
            .collect();
        Self { clients, dice, with_keys: plan.with_keys, journal: journal.clone(), stats: stats.clone() }
    }

    async fn run(mut self, stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            match self.dice.rng.random_range(0..100) {
                0 if self.with_keys => self.send_other_payload().await,
                1..=3 => self.send_old_one().await,
                _ => self.send_new_one().await,
            }
        }
    }

    async fn send_new_one(&mut self) {
        let transfer = Transfer::with_key(self.dice.work());
        self.journal.asked(&transfer);
        add(&self.stats.requests);
        let start = Instant::now();
        let answered = match self.dice.rng.random_range(0..100) {
            // Somebody who gives up at once: whether it took effect stays open.
            0 => self.send(&transfer, 1, 1).await,
            // An impatient user's double click.
            1..=5 => {
                let copies = self.dice.rng.random_range(2..=COPIES_MAX);
                self.send(&transfer, copies, ATTEMPTS_MAX).await
            }
            // A retry that goes out on several connections at once.
            6..=20 => self.send(&transfer, 1, 1).await || self.send(&transfer, COPIES_MAX, ATTEMPTS_MAX).await,
            _ => self.send(&transfer, 1, ATTEMPTS_MAX).await,
        };
        if answered {
            self.stats.answered_after(start.elapsed());
        }
    }

    /// A request that was answered some time ago, by whichever worker.
    async fn send_old_one(&mut self) {
        if let Some(transfer) = self.journal.any_answered(&mut self.dice.rng) {
            add(&self.stats.revisits);
            self.send(&transfer, 1, ATTEMPTS_MAX).await;
        }
    }

    /// Another request under a used key: must be refused, and must have no effect.
    async fn send_other_payload(&mut self) {
        if let Some(mut transfer) = self.journal.any_answered(&mut self.dice.rng) {
            transfer.amount += 1;
            let manner = self.dice.manner();
            match self.clients[0].submit(&transfer, manner, ATTEMPTS_MAX).await {
                Ok(_) => self.journal.mismatch(false),
                Err(Unanswered::Refused(failure)) => {
                    self.journal.mismatch(failure.sqlstate() == Some("ID001"));
                }
                Err(Unanswered::Unknown) => {}
            }
        }
    }

    /// Sends copies of a request at the same time, each on a connection of its own and in a
    /// manner of its own, and writes down every answer. Was there any?
    async fn send(&mut self, transfer: &Transfer, copies: usize, attempts_max: u32) -> bool {
        let manners: Vec<_> = (0..copies).map(|_| self.dice.manner()).collect();
        for _ in 1..copies {
            add(&self.stats.copies);
        }
        let sent =
            self.clients.iter_mut().zip(manners).map(|(client, manner)| client.submit(transfer, manner, attempts_max));
        let mut answered = false;
        for result in join_all(sent).await {
            answered |= self.note(transfer, result);
        }
        answered
    }

    fn note(&self, transfer: &Transfer, result: Result<Answer, Unanswered>) -> bool {
        match result {
            Ok(answer) => {
                self.journal.answered(transfer, answer);
                true
            }
            Err(Unanswered::Unknown) => false,
            Err(Unanswered::Refused(failure)) => {
                self.journal.refused(describe(&failure));
                false
            }
        }
    }
}

pub fn describe(failure: &Failure) -> String {
    match failure {
        Failure::Database(error) => match error.as_db_error() {
            Some(error) => {
                let (code, message) = (error.code().code(), error.message());
                format!("{code}: {message}")
            }
            None => error.to_string(),
        },
        failure => format!("{failure:?}"),
    }
}
