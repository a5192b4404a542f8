//! What the workers and the settlers of the orders were told, kept outside the database: one side of the proof.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::journal::Tally;
use crate::orders::Order;

/// A claim that a worker got, with its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub token: i64,
    pub attempt: i32,
    pub taken_over: bool,
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: String,
    pub response: Value,
}

/// Everything that was told about one order.
#[derive(Clone, Debug)]
pub struct Told {
    pub order: Order,
    pub claims: Vec<Claim>,
    /// The tokens with which the order was recorded.
    pub recorded: Vec<i64>,
    /// The tokens that were refused because they were superseded.
    pub superseded: HashSet<i64>,
    /// The first answer that a worker or a settler got.
    pub answer: Option<Answer>,
    /// The number of answers that differ from the first answer.
    pub contradictions: u32,
}

/// Everything that was told about all orders.
#[derive(Clone, Debug, Default)]
pub struct ToldBook {
    /// By request.
    pub orders: HashMap<String, Told>,
    /// The verdicts that settlers were given, with the number of attempts of which each told. The outcome
    /// `cancelled` names the verdict that became valid; others may have been rolled back.
    pub verdicts: HashMap<String, Option<i32>>,
    /// Records that were tried with a token that had been refused before.
    pub stubborn: Tally,
    /// The number of answers that settlers got, and workers to copies of orders that were done.
    pub answers: u64,
    /// The reasons why the server refused what was in order.
    pub refusals: Vec<String>,
}

/// The book that all workers and settlers write to.
#[derive(Debug, Default)]
pub struct Listener(Mutex<ToldBook>);

impl Listener {
    /// Writes down a new order. Must be called before the order is delivered.
    pub fn asked(&self, order: &Order) {
        self.book().ask(order);
    }

    /// A worker has got a claim, and knows that the claim was committed.
    pub fn claimed(&self, order: &Order, claim: Claim) {
        self.book().told(order).claims.push(claim);
    }

    /// A worker's record was accepted, and the worker knows that it was committed.
    pub fn recorded(&self, order: &Order, token: i64) {
        self.book().told(order).recorded.push(token);
    }

    /// A worker was told that its token is superseded.
    pub fn superseded(&self, order: &Order, token: i64) {
        self.book().told(order).superseded.insert(token);
    }

    /// A worker has tried to record although it had been told that its token is superseded.
    pub fn stubborn(&self, refused: bool) {
        self.book().stubborn.count(refused);
    }

    pub fn answered(&self, order: &Order, answer: Answer) {
        self.book().answer(order, answer);
    }

    /// A settler was given a verdict, which is valid if the transaction commits.
    pub fn verdict(&self, name: &str, attempt: Option<i32>) {
        self.book().verdicts.insert(name.to_owned(), attempt);
    }

    pub fn refused(&self, reason: String) {
        self.book().refusals.push(reason);
    }

    /// How many leases were taken over, how many tokens were refused because they were superseded, and how many orders
    /// are known to be cancelled.
    pub fn faults(&self) -> [u64; 3] {
        let book = self.book();
        [book.claims(true), book.refused_tokens(), book.cancelled()]
    }

    /// A copy of the book as it is now.
    pub fn snapshot(&self) -> ToldBook {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, ToldBook> {
        // Each change is a single step, so a panic cannot have left a change half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToldBook {
    pub fn ask(&mut self, order: &Order) {
        let told = Told {
            order: order.clone(),
            claims: Vec::new(),
            recorded: Vec::new(),
            superseded: HashSet::new(),
            answer: None,
            contradictions: 0,
        };
        self.orders.insert(order.request.clone(), told);
    }

    pub fn answer(&mut self, order: &Order, answer: Answer) {
        self.answers += 1;
        let told = self.told(order);
        match &told.answer {
            Some(first) if *first == answer => {}
            Some(_) => told.contradictions += 1,
            None => told.answer = Some(answer),
        }
    }

    /// The number of claims that took over from another worker, or that did not.
    pub fn claims(&self, taken_over: bool) -> u64 {
        let claims = self.orders.values().flat_map(|told| &told.claims);
        claims.filter(|claim| claim.taken_over == taken_over).map(|_| 1).sum()
    }

    /// The number of tokens that were refused because they were superseded.
    pub fn refused_tokens(&self) -> u64 {
        self.orders.values().flat_map(|told| &told.superseded).map(|_| 1).sum()
    }

    /// The number of orders whose answer is that they were cancelled.
    fn cancelled(&self) -> u64 {
        let answers = self.orders.values().filter_map(|told| told.answer.as_ref());
        answers.filter(|answer| answer.status == "cancelled").map(|_| 1).sum()
    }

    fn told(&mut self, order: &Order) -> &mut Told {
        self.orders.get_mut(&order.request).expect("asked before it was delivered")
    }
}
