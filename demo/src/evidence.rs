//! What the database holds after a run, read once everything is quiet: the other side of the proof.

use std::collections::HashMap;

use anyhow::Result;
use serde_json::Value;
use tokio_postgres::Client;

use crate::bank::Outcome;
use crate::journal::Book;

/// How many requests to look up in one statement.
const LOOKUP_BATCH: usize = 5_000;

/// A row of `effect`: an execution that was committed.
#[derive(Clone, Debug)]
pub struct Effect {
    pub execution: String,
    pub request: String,
    pub debit: i32,
    pub credit: i32,
    pub amount: i64,
}

/// What the extension remembers of a request.
#[derive(Clone, Debug)]
pub struct Memory {
    pub status: String,
    pub response: Value,
}

impl Memory {
    /// The outcome, if there is one.
    pub fn outcome(&self) -> Option<Outcome> {
        let failed = match self.status.as_str() {
            "succeeded" => false,
            "failed" => true,
            _ => return None,
        };
        Some(Outcome { failed, response: self.response.clone() })
    }
}

/// A client session, as the view `idempotence.sessions` shows it.
#[derive(Clone, Debug)]
pub struct Session {
    pub client: String,
    pub session: String,
    /// How it ended, if it has.
    pub ended: Option<String>,
    pub saved: bool,
    /// The greatest number that has an outcome.
    pub last_number: i64,
}

/// What the database holds after the run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub balances: HashMap<i32, i64>,
    pub effects: Vec<Effect>,
    /// What the extension holds; `None` in a run without keys.
    pub kept: Option<Kept>,
}

#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// `idem_lookup` of every request that was ever asked for, those of sessions aside of which nothing
    /// is known any more.
    pub lookups: HashMap<String, Memory>,
    /// The names of all requests that have an outcome.
    pub outcomes: Vec<String>,
    /// Client sessions, the latest of each client last.
    pub sessions: Vec<Session>,
    /// Advisory locks still held or waited for: claims are such.
    pub locks: i64,
}

impl Evidence {
    /// Reads it as the bank's role; `dba` may see what belongs to nobody in particular.
    pub async fn read(bank: &Client, dba: &Client, book: &Book, with_keys: bool) -> Result<Self> {
        let balances = bank.query("SELECT id, balance FROM account", &[]).await?;
        let effects = bank.query("SELECT execution::text, request, debit, credit, amount FROM effect", &[]).await?;
        Ok(Self {
            balances: balances.iter().map(|row| (row.get(0), row.get(1))).collect(),
            effects: effects
                .iter()
                .map(|row| Effect {
                    execution: row.get(0),
                    request: row.get(1),
                    debit: row.get(2),
                    credit: row.get(3),
                    amount: row.get(4),
                })
                .collect(),
            kept: match with_keys {
                true => Some(Kept::read(bank, dba, book).await?),
                false => None,
            },
        })
    }
}

impl Kept {
    async fn read(bank: &Client, dba: &Client, book: &Book) -> Result<Self> {
        let outcomes = dba.query("SELECT session || '/' || request FROM idempotence.outcomes", &[]).await?;
        let locks = dba.query_one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", &[]).await?;
        let sessions = Session::read(dba).await?;
        Ok(Self {
            lookups: look_up(bank, book, &sessions).await?,
            outcomes: outcomes.iter().map(|row| row.get(0)).collect(),
            sessions,
            locks: locks.get(0),
        })
    }
}

impl Session {
    async fn read(dba: &Client) -> Result<Vec<Self>> {
        let rows = dba
            .query(
                "SELECT client, session, ended, saved, (idem_position(session)).last_number
                   FROM idempotence.sessions WHERE kind = 'client' ORDER BY client, created_at",
                &[],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| Self {
                client: row.get(0),
                session: row.get(1),
                ended: row.get(2),
                saved: row.get(3),
                last_number: row.get(4),
            })
            .collect())
    }
}

async fn look_up(bank: &Client, book: &Book, known: &[Session]) -> Result<HashMap<String, Memory>> {
    let known: HashMap<&str, &Session> = known.iter().map(|session| (session.session.as_str(), session)).collect();
    let asked: Vec<_> = book
        .entries
        .values()
        .map(|entry| &entry.transfer)
        .filter(|transfer| transfer.number().is_none() || known.contains_key(transfer.session.as_str()))
        .collect();
    let mut lookups = HashMap::with_capacity(asked.len());
    for batch in asked.chunks(LOOKUP_BATCH) {
        let sessions: Vec<&str> = batch.iter().map(|transfer| transfer.session.as_str()).collect();
        let requests: Vec<&str> = batch.iter().map(|transfer| transfer.request.as_str()).collect();
        let rows = bank
            .query(
                "SELECT session || '/' || request, status, response
                   FROM unnest($1::text[], $2::text[]) AS asked (session, request), idem_lookup(session, request)",
                &[&sessions, &requests],
            )
            .await?;
        lookups.extend(rows.iter().map(|row| {
            let memory = Memory { status: row.get(1), response: row.get::<_, Option<Value>>(2).unwrap_or_default() };
            (row.get(0), memory)
        }));
    }
    Ok(lookups)
}
