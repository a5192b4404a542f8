//! Transfers money once, however often it is asked to. tokio-postgres; arguments: URI [KEY]
//!
//! setup.sql makes what it needs. Crates: tokio (features macros, rt, time), tokio-postgres (feature
//! with-serde_json-1), serde_json, uuid (feature v7).

use serde_json::{Value, json};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{NoTls, Transaction};

/// An error of the driver's, or of ours.
type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Ticket {
    status: String,
    replayed: bool,
    response: Option<Value>,
}

/// Asks until there is an answer, with the same key and payload each time.
async fn transfer(uri: &str, key: &str, payload: &Value) -> Result<Ticket, Failure> {
    let mut attempt = 0;
    loop {
        let answer = attempt_once(uri, key, payload).await;
        attempt += 1;
        match answer {
            Ok(ticket) if ticket.status == "in_progress" && attempt < 10 => {}
            Err(error) if is_retryable(&error) && attempt < 10 => {}
            answer => return answer,
        }
        tokio::time::sleep(Duration::from_millis(2000.min(25 << attempt))).await;
    }
}

async fn attempt_once(uri: &str, key: &str, payload: &Value) -> Result<Ticket, Failure> {
    let (mut client, connection) = tokio_postgres::connect(uri, NoTls).await?;
    tokio::spawn(connection);
    // Rolls back when it is dropped without a commit.
    let transaction = client.transaction().await?;
    let ticket = execute(&transaction, key, payload).await?;
    transaction.commit().await?;
    Ok(ticket)
}

/// Connection lost, serialization failure, deadlock, a wait that ran out. Anything else is an
/// answer, or a mistake: ID012 the mistake of asking the wrong server, which knows nothing of what was
/// done (nodes.py).
fn is_retryable(failure: &Failure) -> bool {
    let Some(error) = failure.downcast_ref::<tokio_postgres::Error>() else { return false };
    match error.code() {
        None => true,
        Some(code) => {
            [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE]
                .contains(code)
                || code.code().starts_with("08")
                || code.code().starts_with("57P")
                || code.code() == "25P03"
        }
    }
}

/// One transaction: begin, work, record.
async fn execute(transaction: &Transaction<'_>, key: &str, payload: &Value) -> Result<Ticket, Failure> {
    // Parameters are sent with the types that the server infers, $1 as text: a Uuid or an i64 goes as
    // a string. There is no Rust type for interval: it goes as text.
    let row = transaction
        .query_one(
            "SELECT status, replayed, response FROM idem_begin('payments', $1, payload => $2, wait => $3::text::interval)",
            &[&key, payload, &"5 seconds"],
        )
        .await?;
    let mut ticket = Ticket { status: row.get("status"), replayed: row.get("replayed"), response: row.get("response") };
    if ticket.status != "started" {
        return Ok(ticket);
    }

    let debited = transaction
        .query_opt(
            "UPDATE account SET balance = balance - ($1::jsonb->>'amount')::numeric
             WHERE id = ($1::jsonb->>'from')::int AND balance >= ($1::jsonb->>'amount')::numeric RETURNING balance::text",
            &[payload],
        )
        .await?;
    let (status, response) = match debited {
        Some(row) => {
            let credit = "UPDATE account SET balance = balance + ($1::jsonb->>'amount')::numeric
                          WHERE id = ($1::jsonb->>'to')::int";
            if transaction.execute(credit, &[payload]).await? == 0 {
                // Rolls back: the key is as if it had never been used.
                return Err(format!("there is no account {}", payload["to"]).into());
            }
            ("succeeded", json!({"balance": row.get::<_, String>(0)}))
        }
        None => ("failed", json!({"error": "insufficient funds"})),
    };

    let record = "SELECT idem_record('payments', $1, $2, failed => $3, ttl => $4::text::interval)";
    transaction.query_one(record, &[&key, &response, &(status == "failed"), &"12 hours"]).await?;
    ticket.status = status.into();
    ticket.response = Some(response);
    Ok(ticket)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let uri = args.next().expect("arguments: URI [KEY]");
    // A wrong address, login or database is told here, and not retried.
    drop(tokio_postgres::connect(&uri, NoTls).await?);
    // Made once, before the first attempt, and kept with the order that it belongs to.
    let key = args.next().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    for (key, amount) in [(key.clone(), "30.00"), (key.clone(), "30.00"), (key + "-b", "1000.00")] {
        let ticket = transfer(&uri, &key, &json!({"from": 1, "to": 2, "amount": amount})).await?;
        let how = if ticket.replayed { "replayed" } else { "executed" };
        println!("{} {how} {}", ticket.status, ticket.response.unwrap_or_default());
    }
    Ok(())
}
