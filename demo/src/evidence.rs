//! What the database holds after a run, read once no transaction is open: the other side of the proof.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use serde_json::Value;
use tokio_postgres::Client;

use crate::bank::Outcome;
use crate::journal::Book;
use crate::orders::ORDERS;

/// The number of requests that one statement looks up.
const LOOKUP_BATCH: usize = 5_000;

/// A row of the table `effect`: an execution that was committed.
#[derive(Clone, Debug)]
pub struct Effect {
    pub execution: String,
    pub request: String,
    pub debit: i32,
    pub credit: i32,
    pub amount: i64,
}

/// What `idem_lookup` says about a request.
#[derive(Clone, Debug)]
pub struct Lookup {
    pub status: String,
    pub response: Value,
}

impl Lookup {
    /// The outcome of the request, if it has one.
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
    /// How the session ended, or `None` if it is open.
    pub ended: Option<String>,
    pub saved: bool,
    /// The greatest number of the session that has an outcome.
    pub last_number: i64,
}

/// What the database holds after the run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub balances: HashMap<i32, i64>,
    pub effects: Vec<Effect>,
    /// What the extension keeps, or `None` in a run without the extension.
    pub kept: Option<Kept>,
}

/// What the extension keeps.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The answers of `idem_lookup` by the names of the requests. They cover every request that was ever
    /// asked for, except the requests of sessions that the extension no longer knows.
    pub lookups: HashMap<String, Lookup>,
    /// The names of all requests that have an outcome.
    pub outcomes: Vec<String>,
    /// The client sessions by client, and by age for each client: the latest is last.
    pub sessions: Vec<Session>,
    /// The number of advisory locks that are held or waited for. Claims are advisory locks.
    pub locks: i64,
}

impl Evidence {
    /// Reads the evidence. `bank` is a connection of the bank's role, `dba` one of the superuser, who sees
    /// the outcomes, locks and sessions of all roles.
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
        let outcomes = dba
            .query("SELECT session || '/' || request FROM idempotence.outcomes WHERE session <> $1", &[&ORDERS])
            .await?;
        let locks = dba.query_one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", &[]).await?;
        let sessions = Session::read(dba).await?;
        Ok(Self {
            lookups: look_up_transfers(bank, book, &sessions).await?,
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

async fn look_up_transfers(bank: &Client, book: &Book, sessions: &[Session]) -> Result<HashMap<String, Lookup>> {
    let known: HashSet<&str> = sessions.iter().map(|session| session.session.as_str()).collect();
    let asked: Vec<_> = book
        .entries
        .values()
        .map(|entry| &entry.transfer)
        .filter(|transfer| transfer.number().is_none() || known.contains(transfer.session.as_str()))
        .map(|transfer| (transfer.session.as_str(), transfer.request.as_str()))
        .collect();
    look_up(bank, &asked).await
}

/// Looks requests up, each by its session and its key or number. Gives the answers by the names of the requests.
pub(crate) async fn look_up(bank: &Client, asked: &[(&str, &str)]) -> Result<HashMap<String, Lookup>> {
    let mut lookups = HashMap::with_capacity(asked.len());
    for batch in asked.chunks(LOOKUP_BATCH) {
        let (sessions, requests): (Vec<&str>, Vec<&str>) = batch.iter().copied().unzip();
        let rows = bank
            .query(
                "SELECT session || '/' || request, status, response
                   FROM unnest($1::text[], $2::text[]) AS asked (session, request), idem_lookup(session, request)",
                &[&sessions, &requests],
            )
            .await?;
        lookups.extend(rows.iter().map(|row| {
            let lookup = Lookup { status: row.get(1), response: row.get::<_, Option<Value>>(2).unwrap_or_default() };
            (row.get(0), lookup)
        }));
    }
    Ok(lookups)
}
