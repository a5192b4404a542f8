//! A client that gives its requests keys. It sends one request after the other. It sends some of them
//! several times at once, some again after a long time, and some with another payload under a used key.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use rand::RngExt;
use tokio::sync::watch;

use crate::bank::Transfer;
use crate::client::{ATTEMPTS_MAX, Answer, Client, Unanswered};
use crate::journal::Journal;
use crate::plan::{Choices, Plan, ROLLBACK_RATE};
use crate::stats::{Stats, increment};

/// The largest number of copies of a request that are under way at the same time.
const COPIES_MAX: usize = 4;

pub struct KeyedClient {
    /// One client for each copy of a request.
    clients: Vec<Client>,
    choices: Choices,
    with_keys: bool,
    journal: Arc<Journal>,
    stats: Arc<Stats>,
}

impl KeyedClient {
    pub fn new(plan: &Plan, number: u32, journal: &Arc<Journal>, stats: &Arc<Stats>) -> Self {
        let mut choices = Choices::new(plan, number);
        let clients = (0..COPIES_MAX)
            .map(|_| Client::new(plan.config.clone(), choices.fork().rng, stats.clone(), ROLLBACK_RATE))
            .collect();
        Self { clients, choices, with_keys: plan.with_keys, journal: journal.clone(), stats: stats.clone() }
    }

    /// Sends requests until told to stop.
    pub async fn run(mut self, stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            match self.choices.rng.random_range(0..100) {
                0 if self.with_keys => self.send_other_payload().await,
                1..=3 => self.send_answered().await,
                _ => self.send_new().await,
            }
        }
    }

    async fn send_new(&mut self) {
        let transfer = Transfer::with_key(self.choices.work());
        self.journal.asked(&transfer);
        increment(&self.stats.requests);
        let start = Instant::now();
        let answered = match self.choices.rng.random_range(0..100) {
            // A client that gives up at once. Whether the request took effect stays unknown.
            0 => self.send(&transfer, 1, 1).await,
            // An impatient user's double click.
            1..=5 => {
                let copies = self.choices.rng.random_range(2..=COPIES_MAX);
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

    /// Sends a request again that was answered some time ago, to this client or to another client.
    async fn send_answered(&mut self) {
        if let Some(transfer) = self.journal.any_answered(&mut self.choices.rng) {
            increment(&self.stats.revisits);
            self.send(&transfer, 1, ATTEMPTS_MAX).await;
        }
    }

    /// Sends another request under a used key. It must be refused and must have no effect.
    async fn send_other_payload(&mut self) {
        if let Some(mut transfer) = self.journal.any_answered(&mut self.choices.rng) {
            transfer.amount += 1;
            let options = self.choices.send_options();
            match self.clients[0].submit(&transfer, options, ATTEMPTS_MAX).await {
                Ok(_) => self.journal.mismatch(false),
                Err(Unanswered::Refused(failure)) => {
                    self.journal.mismatch(failure.sqlstate() == Some("ID001"));
                }
                Err(Unanswered::Unknown) => {}
            }
        }
    }

    /// Sends copies of a request at the same time, each on its own connection and with its own options,
    /// and writes down every answer. Returns whether there was an answer.
    async fn send(&mut self, transfer: &Transfer, copies: usize, attempts_max: u32) -> bool {
        let options: Vec<_> = (0..copies).map(|_| self.choices.send_options()).collect();
        for _ in 1..copies {
            increment(&self.stats.copies);
        }
        let sent = self
            .clients
            .iter_mut()
            .zip(options)
            .map(|(client, options)| client.submit(transfer, options, attempts_max));
        let mut answered = false;
        for result in join_all(sent).await {
            answered |= self.write_down(transfer, result);
        }
        answered
    }

    fn write_down(&self, transfer: &Transfer, result: Result<Answer, Unanswered>) -> bool {
        match result {
            Ok(answer) => {
                self.journal.answered(transfer, answer);
                true
            }
            Err(Unanswered::Unknown) => false,
            Err(Unanswered::Refused(failure)) => {
                self.journal.refused(failure.to_string());
                false
            }
        }
    }
}
