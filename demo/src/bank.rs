//! The bank: its tables, and the transfer as an application would write it, one statement after
//! the other. The same in PL/pgSQL is in `bank.sql`.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

use crate::server::Server;

pub const DATABASE: &str = "bank";
/// The role that owns the tables and the session: nothing but an ordinary role.
pub const ROLE: &str = "bank";
pub const OPENING_BALANCE: i64 = 1000;

/// The session of the requests that have keys.
pub const PAYMENTS: &str = "payments";

/// A request: move `amount` from `debit` to `credit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whose request it is: [`PAYMENTS`], or a client's own session.
    pub session: String,
    /// Names it there, by a key or a number: made once by whoever wants the transfer, the same in every
    /// retry.
    pub request: String,
    pub debit: i32,
    pub credit: i32,
    pub amount: i64,
}

impl Transfer {
    /// A new request with a key. UUIDv7 keys begin with their time, so that fresh ones share index pages.
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

    /// What it is called where requests of all sessions meet.
    pub fn name(&self) -> String {
        format!("{}/{}", self.session, self.request)
    }

    /// Its number, if it has one.
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

/// What came of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Refused for good: asking again would not help.
    pub failed: bool,
    pub response: Value,
}

/// Creates the role, the database with its accounts, and, `with_keys`, the extension and the
/// session `payments`. Returns the role's password.
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
    }
    Ok(password)
}

/// The work itself, inside a transaction of the caller's; nothing in it knows of retries.
pub async fn transfer(tx: &Transaction<'_>, transfer: &Transfer) -> Result<Outcome, Error> {
    let Transfer { debit, credit, amount, .. } = transfer;

    // Both rows in the order of their ids: crossing transfers queue up instead of deadlocking.
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
