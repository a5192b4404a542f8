//! What was asked for and what the clients were told, kept outside the database: the one side of
//! the proof.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::bank::{Outcome, Transfer};
use crate::client::Answer;

/// All that is known of one request from the outside.
#[derive(Clone, Debug)]
pub struct Entry {
    pub transfer: Transfer,
    /// The first answer that any client got; `None` if none ever did.
    pub answer: Option<Outcome>,
    /// Answers that said the work was done just now; more than one is one too many.
    pub executions: u32,
    /// Answers that differ from the first.
    pub contradictions: u32,
}

/// Every request of a run, by its key.
#[derive(Clone, Debug, Default)]
pub struct Book {
    pub entries: HashMap<String, Entry>,
    /// The keys answered so far, to pick an old one from.
    answered: Vec<String>,
    /// Answers from memory.
    pub replays: u64,
    /// Requests under a used key with another payload: how many were refused as such …
    pub mismatches_refused: u64,
    /// … and how many were not.
    pub mismatches_accepted: u64,
    /// Why the server refused requests that were in order.
    pub refusals: Vec<String>,
}

/// The book, shared by all clients.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Book>);

impl Journal {
    /// Before its first attempt.
    pub fn asked(&self, transfer: &Transfer) {
        self.book().ask(transfer);
    }

    pub fn answered(&self, key: &str, answer: Answer) {
        self.book().answer(key, answer);
    }

    pub fn refused(&self, reason: String) {
        self.book().refusals.push(reason);
    }

    pub fn mismatch(&self, refused: bool) {
        let mut book = self.book();
        if refused {
            book.mismatches_refused += 1;
        } else {
            book.mismatches_accepted += 1;
        }
    }

    /// Some request that has been answered already.
    pub fn any_answered(&self, rng: &mut SmallRng) -> Option<Transfer> {
        let book = self.book();
        let position = rng.random_range(0..book.answered.len().max(1));
        let key = book.answered.get(position)?;
        Some(book.entries[key].transfer.clone())
    }

    pub fn replays(&self) -> u64 {
        self.book().replays
    }

    /// What it says now.
    pub fn snapshot(&self) -> Book {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Whoever panicked with it has not left it half written: each change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    pub fn ask(&mut self, transfer: &Transfer) {
        let entry = Entry { transfer: transfer.clone(), answer: None, executions: 0, contradictions: 0 };
        self.entries.insert(transfer.key.clone(), entry);
    }

    pub fn answer(&mut self, key: &str, answer: Answer) {
        let entry = self.entries.get_mut(key).expect("asked before answered");
        if answer.replayed {
            self.replays += 1;
        } else {
            entry.executions += 1;
        }
        match &entry.answer {
            Some(first) if *first == answer.outcome => {}
            Some(_) => entry.contradictions += 1,
            None => {
                entry.answer = Some(answer.outcome);
                self.answered.push(key.to_owned());
            }
        }
    }
}
