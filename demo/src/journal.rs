//! What was asked for and what the clients were told, kept outside the database: one side of the proof.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::bank::{Outcome, Transfer};
use crate::client::Answer;

/// Everything that the clients know about one request.
#[derive(Clone, Debug)]
pub struct Entry {
    pub transfer: Transfer,
    /// The first answer that a client got, or `None` if no client ever got an answer.
    pub answer: Option<Outcome>,
    /// The number of answers saying that the request was executed just now. It may be one at most.
    pub executions: u32,
    /// The number of answers that differ from the first answer.
    pub contradictions: u32,
}

/// Counts requests that had to be refused with certain errors: those that were, and those that were not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub refused: u64,
    pub accepted: u64,
}

impl Tally {
    pub fn count(&mut self, refused: bool) {
        if refused {
            self.refused += 1;
        } else {
            self.accepted += 1;
        }
    }
}

/// Everything that was asked for and answered in a run.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// The requests by name.
    pub entries: HashMap<String, Entry>,
    /// The names of the answered requests with keys, from which clients pick requests to send again.
    answered: Vec<String>,
    /// The number of replayed answers to requests with keys.
    pub key_replays: u64,
    /// The number of replayed answers to requests with numbers.
    pub number_replays: u64,
    /// Requests with another payload under a used key.
    pub mismatches: Tally,
    /// Numbers that were sent again although their answer is no longer kept.
    pub discarded: Tally,
    /// New numbers that were sent in a session after its client had registered another session.
    pub late: Tally,
    /// Sessions that had ended although no client had closed them.
    pub lost: HashSet<String>,
    /// The reasons why the server refused requests that were in order.
    pub refusals: Vec<String>,
}

/// The book that all clients write to.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Book>);

impl Journal {
    /// Writes down a new request. Must be called before its first attempt.
    pub fn asked(&self, transfer: &Transfer) {
        self.book().ask(transfer);
    }

    pub fn answered(&self, transfer: &Transfer, answer: Answer) {
        self.book().answer(transfer, answer);
    }

    pub fn refused(&self, reason: String) {
        self.book().refusals.push(reason);
    }

    pub fn mismatch(&self, refused: bool) {
        self.book().mismatches.count(refused);
    }

    pub fn discarded(&self, refused: bool) {
        self.book().discarded.count(refused);
    }

    pub fn late(&self, refused: bool) {
        self.book().late.count(refused);
    }

    pub fn lost(&self, session: &str) {
        self.book().lost.insert(session.to_owned());
    }

    /// A random request with a key that has been answered.
    pub fn any_answered(&self, rng: &mut SmallRng) -> Option<Transfer> {
        let book = self.book();
        let position = rng.random_range(0..book.answered.len().max(1));
        let name = book.answered.get(position)?;
        Some(book.entries[name].transfer.clone())
    }

    pub fn replays(&self) -> u64 {
        let book = self.book();
        book.key_replays + book.number_replays
    }

    /// A copy of the book as it is now.
    pub fn snapshot(&self) -> Book {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Each change is a single step, so a panic cannot have left a change half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    pub fn ask(&mut self, transfer: &Transfer) {
        let entry = Entry { transfer: transfer.clone(), answer: None, executions: 0, contradictions: 0 };
        self.entries.insert(transfer.name(), entry);
    }

    pub fn answer(&mut self, transfer: &Transfer, answer: Answer) {
        let name = transfer.name();
        let numbered = transfer.number().is_some();
        let entry = self.entries.get_mut(&name).expect("asked before answered");
        match (answer.replayed, numbered) {
            (true, false) => self.key_replays += 1,
            (true, true) => self.number_replays += 1,
            (false, _) => entry.executions += 1,
        }
        match &entry.answer {
            Some(first) if *first == answer.outcome => {}
            Some(_) => entry.contradictions += 1,
            None => {
                entry.answer = Some(answer.outcome);
                if !numbered {
                    self.answered.push(name);
                }
            }
        }
    }
}
