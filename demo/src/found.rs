//! What the service outside and the database hold about the orders after a run: the other side of the proof.

use std::collections::HashMap;

use anyhow::Result;
use serde_json::Value;
use tokio_postgres::Client;

use crate::evidence::{self, Lookup};
use crate::orders::ORDERS;
use crate::outside::Ledger;
use crate::told::ToldBook;

/// A row of the table `receipt`: a record of an order that was committed.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub execution: String,
    pub request: String,
    pub token: i64,
}

/// What became of the orders.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub ledger: Ledger,
    /// The answers of `idem_lookup` by request.
    pub lookups: HashMap<String, Lookup>,
    pub receipts: Vec<Receipt>,
    /// The requests of all outcomes.
    pub outcomes: Vec<String>,
    /// The number of requests that were begun and are neither done nor settled.
    pub unfinished: i64,
}

/// How an order ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// It is done, with this response.
    Done(&'a Value),
    /// It is cancelled, with this response.
    Cancelled(&'a Value),
    /// Neither.
    Open,
}

/// How many cancelled orders there are, by what their verdicts told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdicts {
    /// The verdict told of no attempt, and there was none.
    pub never_begun: u64,
    /// The verdict told of all attempts.
    pub after_attempts: u64,
    /// The verdict left out an attempt, or no settler was given it.
    pub wrong: u64,
}

impl Found {
    /// Reads what the database holds. `bank` is a connection of the bank's role, `dba` one of the superuser.
    pub async fn read(bank: &Client, dba: &Client, told: &ToldBook, ledger: Ledger) -> Result<Self> {
        let asked: Vec<(&str, &str)> = told.orders.keys().map(|request| (ORDERS, request.as_str())).collect();
        let named = format!("{ORDERS}/");
        let lookups = evidence::look_up(bank, &asked).await?;
        let lookups = lookups.into_iter().map(|(name, lookup)| (name.replacen(&named, "", 1), lookup)).collect();
        let receipts = bank.query("SELECT execution::text, request, token FROM receipt", &[]).await?;
        let outcomes = dba.query("SELECT request FROM idempotence.outcomes WHERE session = $1", &[&ORDERS]).await?;
        let unfinished = dba.query_one("SELECT count(*) FROM idempotence.unfinished", &[]).await?;
        Ok(Self {
            ledger,
            lookups,
            receipts: receipts
                .iter()
                .map(|row| Receipt { execution: row.get(0), request: row.get(1), token: row.get(2) })
                .collect(),
            outcomes: outcomes.iter().map(|row| row.get(0)).collect(),
            unfinished: unfinished.get(0),
        })
    }

    pub fn end(&self, request: &str) -> End<'_> {
        match self.lookups.get(request) {
            Some(Lookup { status, response }) if status == "succeeded" => End::Done(response),
            Some(Lookup { status, response }) if status == "cancelled" => End::Cancelled(response),
            _ => End::Open,
        }
    }

    /// Holds the verdicts that became valid against what the workers and the service know of attempts.
    pub fn verdicts(&self, told: &ToldBook) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (request, order) in &told.orders {
            let End::Cancelled(response) = self.end(request) else {
                continue;
            };
            let begun = order.claims.iter().map(|claim| claim.attempt).max().unwrap_or(0);
            let called = self.ledger.calls.contains_key(request);
            // A worker may have begun, and called, without being told so: that is why the verdict may know of more.
            let count = match response["verdict"].as_str().and_then(|verdict| told.verdicts.get(verdict)) {
                Some(None) if begun == 0 && !called => &mut verdicts.never_begun,
                Some(&Some(attempts)) if attempts >= begun.max(1) => &mut verdicts.after_attempts,
                _ => &mut verdicts.wrong,
            };
            *count += 1;
        }
        verdicts
    }
}
