//! The bank: its tables, and the transfer as an application would write it, statement by statement.
//! `bank.sql` has the same transfer in PL/pgSQL.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

use crate::server::Server;

pub const DATABASE: &str = "bank";
/// The ordinary role that owns the tables and the session.
pub const ROLE: &str = "bank";
pub const OPENING_BALANCE: i64 = 1000;

/// The session of the requests that have keys.
pub const PAYMENTS: &str = "payments";

/// A request: move `amount` from `debit` to `credit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The session of the request: [`PAYMENTS`], or a client's own session.
    pub session: String,
    /// The key or the number of the request. It is made once and is the same in every retry.
    pub request: String,
    pub debit: i32,
    pub credit: i32,
    pub amount: i64,
}

impl Transfer {
    /// A new request with a key. UUIDv7 keys begin with the time, so new keys share index pages.
    pub fn with_key(work: Work) -> Self {
        Self::new(PAYMENTS, Uuid::now_v7().to_string(), work)
    }

    /// A new request with a number.
    pub fn with_number(session: &str, number: i64, work: Work) -> Self {
        Self::new(session, number.to_string(), work)
    }

    fn new(session: &str, request: String, Work { debit, credit, amount }: Work) -> Self {
        Self { session: session.to_owned(), request, debit, credit, amount }
    }

    /// The name of the request, which is unique among the requests of all sessions.
    pub fn name(&self) -> String {
        format!("{}/{}", self.session, self.request)
    }

    /// The number of the request, unless it has a key.
    pub fn number(&self) -> Option<i64> {
        if self.session == PAYMENTS { None } else { self.request.parse().ok() }
    }

    pub fn payload(&self) -> Value {
        json!({
            "request": self.name(),
            "debit": self.debit,
            "credit": self.credit,
            "amount": self.amount,
        })
    }
}

/// What a transfer is to do.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub debit: i32,
    pub credit: i32,
    pub amount: i64,
}

/// The outcome of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the bank refuses the transfer for good.
    pub failed: bool,
    pub response: Value,
}

/// Creates the role, the database and its accounts. If `with_keys`, also creates the extension the
/// session `payments`, and the orders. Returns the password of the role.
pub fn create(server: &Server, accounts: u32, with_keys: bool) -> Result<String> {
    let password = format!("{:032x}", rand::random::<u128>());
    server.psql(
        "postgres",
        &format!(
            "CREATE ROLE {ROLE} LOGIN PASSWORD '{password}';
             CREATE DATABASE {DATABASE} OWNER {ROLE};"
        ),
    )?;
    server.psql_as(DATABASE, ROLE, include_str!("bank.sql"))?;
    server.psql_as(
        DATABASE,
        ROLE,
        &format!("INSERT INTO account SELECT n, {OPENING_BALANCE} FROM generate_series(1, {accounts}) n;"),
    )?;
    if with_keys {
        server
            .psql(DATABASE, &format!("CREATE EXTENSION idempotence; SELECT idem_grant('{ROLE}');"))
            .context("is the extension installed for this PostgreSQL? (make install)")?;
        server.psql_as(DATABASE, ROLE, include_str!("bank_keys.sql"))?;
        server.psql_as(DATABASE, ROLE, include_str!("orders.sql"))?;
    }
    Ok(password)
}

/// Does the work in the transaction of the caller. Nothing in it knows of retries.
pub async fn transfer(tx: &Transaction<'_>, transfer: &Transfer) -> Result<Outcome, Error> {
    let Transfer { debit, credit, amount, .. } = transfer;

    // Lock both rows in the order of their ids, so that crossing transfers queue up and do not deadlock.
    let accounts = tx
        .query_typed(
            "SELECT id, balance FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE",
            &[(debit, Type::INT4), (credit, Type::INT4)],
        )
        .await?;
    let balance = accounts
        .iter()
        .find(|account| account.get::<_, i32>("id") == *debit)
        .map_or(0, |account| account.get::<_, i64>("balance"));
    if balance < *amount {
        return Ok(Outcome { failed: true, response: json!({ "error": "insufficient funds" }) });
    }
    tx.execute_typed(
        "UPDATE account SET balance = balance + CASE id WHEN $1 THEN -$3 ELSE $3 END
          WHERE id IN ($1, $2)",
        &[(debit, Type::INT4), (credit, Type::INT4), (amount, Type::INT8)],
    )
    .await?;
    let effect = tx
        .query_typed_one(
            "INSERT INTO effect VALUES (DEFAULT, $1, $2, $3, $4) RETURNING execution::text",
            &[(&transfer.name(), Type::TEXT), (debit, Type::INT4), (credit, Type::INT4), (amount, Type::INT8)],
        )
        .await?;
    Ok(Outcome {
        failed: false,
        response: json!({
            "execution": effect.get::<_, String>("execution"),
            "balance": balance - amount,
        }),
    })
}
