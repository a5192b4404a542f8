//! What was asked for and what the clients were told, kept outside the database: the one side of
//! the proof.

use std::collections::{HashMap, HashSet};
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

/// Requests that had to be refused in a certain way: how many were, and how many were not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub refused: u64,
    pub accepted: u64,
}

impl Tally {
    pub fn note(&mut self, refused: bool) {
        if refused {
            self.refused += 1;
        } else {
            self.accepted += 1;
        }
    }
}

/// Every request of a run, by its name.
#[derive(Clone, Debug, Default)]
pub struct Book {
    pub entries: HashMap<String, Entry>,
    /// The requests with keys answered so far, to pick an old one from.
    answered: Vec<String>,
    /// Answers from memory, of requests with keys and with numbers.
    pub key_replays: u64,
    pub number_replays: u64,
    /// Requests under a used key with another payload.
    pub mismatches: Tally,
    /// Numbers sent again whose answer is no longer kept.
    pub discarded: Tally,
    /// New numbers sent in a session after its client had registered anew.
    pub late: Tally,
    /// Sessions that were refused as ended without having been closed.
    pub lost: HashSet<String>,
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

    pub fn answered(&self, transfer: &Transfer, answer: Answer) {
        self.book().answer(transfer, answer);
    }

    pub fn refused(&self, reason: String) {
        self.book().refusals.push(reason);
    }

    pub fn mismatch(&self, refused: bool) {
        self.book().mismatches.note(refused);
    }

    pub fn discarded(&self, refused: bool) {
        self.book().discarded.note(refused);
    }

    pub fn late(&self, refused: bool) {
        self.book().late.note(refused);
    }

    pub fn lost(&self, session: &str) {
        self.book().lost.insert(session.to_owned());
    }

    /// Some request with a key that has been answered already.
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
