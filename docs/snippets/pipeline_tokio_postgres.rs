//! Transfers money once, in one network round trip. tokio-postgres; arguments: URI [KEY]
//!
//! setup.sql makes what it needs. Crates: tokio from 1.46 (features macros, rt, time), tokio-postgres (feature
//! with-serde_json-1), serde_json, uuid (feature v7).
//!
//! BEGIN, claim, work, record and COMMIT are sent at once, and their answers are read afterwards. So the
//! program decides nothing in between: what must not be kept has to be an error of the server's. The driver
//! ends each statement with a Sync of its own. So the server skips nothing after an error: it refuses the
//! statements that follow with 25P02, and makes a ROLLBACK of COMMIT, which is no error. Nothing is kept.

use serde_json::{Value, json};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, Statement};

/// No row of this is passed over: an account that is missing would have to be made, without a balance,
/// which NOT NULL refuses. A balance below zero is refused by the CHECK.
const MOVE: &str = "
    MERGE INTO account
    USING (VALUES (($1::jsonb->>'from')::int, -($1::jsonb->>'amount')::numeric),
                  (($1::jsonb->>'to')::int, ($1::jsonb->>'amount')::numeric)) AS step (id, amount)
    ON account.id = step.id
    WHEN MATCHED THEN UPDATE SET balance = balance + step.amount
    WHEN NOT MATCHED THEN INSERT (id) VALUES (step.id)";

/// The response comes from what the transaction has written.
const RECORD_MOVED: &str = "
    SELECT response, idem_record('payments', $1, response, ttl => $3::text::interval)
    FROM (SELECT jsonb_build_object('balance', balance::text)
          FROM account WHERE id = ($2::jsonb->>'from')::int) AS account (response)";

const RECORD_FAILED: &str = "
    SELECT $2::jsonb AS response, idem_record('payments', $1, $2, failed => true, ttl => $3::text::interval)";

const CLAIM: &str = "SELECT idem_claim('payments', $1, payload => $2, wait => $3::text::interval)";

/// An error of the driver's, or of ours.
type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Answer {
    status: String,
    replayed: bool,
    response: Value,
}

/// A connection, with what was prepared on it.
struct Prepared {
    client: Client,
    claim: Statement,
    work: Statement,
    record_moved: Statement,
    record_failed: Statement,
}

impl Prepared {
    async fn connect(uri: &str) -> Result<Self, Failure> {
        let (client, connection) = tokio_postgres::connect(uri, NoTls).await?;
        tokio::spawn(connection);
        // If BEGIN failed, the work would be a transaction of its own. So without BEGIN nothing may be written.
        client.batch_execute("SET default_transaction_read_only = on").await?;
        // Once: a statement that is given as text is prepared each time, which is a round trip.
        let (claim, work, record_moved, record_failed) = tokio::try_join!(
            client.prepare(CLAIM),
            client.prepare(MOVE),
            client.prepare(RECORD_MOVED),
            client.prepare(RECORD_FAILED),
        )?;
        Ok(Self { client, claim, work, record_moved, record_failed })
    }

    /// One transaction in one round trip. With a failure there is no work, only the record of it.
    async fn send(&self, key: &str, payload: &Value, failure: Option<&Value>) -> Result<Answer, Failure> {
        let client = &self.client;
        let work = async {
            match failure {
                None => client.execute(&self.work, &[payload]).await,
                Some(_) => Ok(0),
            }
        };
        let record = async {
            let (record, content) = match failure {
                None => (&self.record_moved, payload),
                Some(failure) => (&self.record_failed, failure),
            };
            client.query_one(record, &[&key, content, &"12 hours"]).await
        };
        let claim = async { client.execute(&self.claim, &[&key, payload, &"5 seconds"]).await };
        // Statements are sent in the order in which they are polled first, and biased is the order here.
        let (begin, claim, work, record, commit) = tokio::join!(
            biased;
            client.batch_execute("BEGIN READ WRITE"),
            claim,
            work,
            record,
            client.batch_execute("COMMIT"),
        );
        // The first error is the cause of the others. COMMIT alone tells nothing.
        begin?;
        claim?;
        work?;
        let row = record?;
        commit?;
        let status = if failure.is_some() { "failed" } else { "succeeded" };
        Ok(Answer { status: status.into(), replayed: false, response: row.get("response") })
    }

    /// The answer to a request that is done. None: it may still be taken back by a failover.
    async fn look_up(&self, key: &str) -> Result<Option<Answer>, Failure> {
        let query = "SELECT status, response FROM idem_lookup('payments', $1)";
        let row = self.client.query_one(query, &[&key]).await?;
        let status: String = row.get("status");
        let is_final = ["succeeded", "failed", "cancelled"].contains(&status.as_str());
        let response: Option<Value> = row.get("response");
        Ok(is_final.then(|| Answer { status, replayed: true, response: response.unwrap_or_default() }))
    }

    /// What became of a request that stopped half way. None: it is at work, or starts anew, as after a rollback.
    async fn look(&mut self, key: &str, payload: &Value) -> Result<Option<Answer>, Failure> {
        // Rolls back when it is dropped: the point stays.
        let transaction = self.client.build_transaction().read_only(false).start().await?;
        let query = "SELECT status, replayed, response, point FROM idem_begin('payments', $1, payload => $2)";
        let row = transaction.query_one(query, &[&key, payload]).await?;
        let (status, point): (String, Option<String>) = (row.get("status"), row.get("point"));
        if row.get("replayed") {
            let response: Option<Value> = row.get("response");
            return Ok(Some(Answer { status, replayed: true, response: response.unwrap_or_default() }));
        }
        if status == "taken_over" || point.is_some() {
            // A program that works in steps would go on from here.
            return Err(format!("the transfer {key} stopped at {point:?}").into());
        }
        Ok(None)
    }
}

struct Payments {
    uri: String,
    connection: Option<Prepared>,
}

impl Payments {
    /// Asks until there is an answer, with the same key and payload each time.
    async fn transfer(&mut self, key: &str, payload: &Value) -> Result<Answer, Failure> {
        let mut failure = None;
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.attempt(key, payload, &mut failure).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) if attempt == 10 => return Err("another attempt is still at work".into()),
                Err(error) if attempt == 10 || !is_retryable(&error) => return Err(error),
                _ => tokio::time::sleep(Duration::from_millis(2000.min(25 << attempt))).await,
            }
        }
    }

    /// Sends the pipeline, and finds out what an error of it means. None: ask again.
    async fn attempt(
        &mut self,
        key: &str,
        payload: &Value,
        failure: &mut Option<Value>,
    ) -> Result<Option<Answer>, Failure> {
        // One that is in doubt is given up.
        self.connection.take_if(|connection| connection.client.is_closed());
        if self.connection.is_none() {
            self.connection = Some(Prepared::connect(&self.uri).await?);
        }
        let connection = self.connection.as_mut().expect("it has just been opened");

        let mut answer = connection.send(key, payload, failure.as_ref()).await;
        if is(&answer, &SqlState::CHECK_VIOLATION) {
            // Nothing is kept, the claim neither. That the request has failed for good is for the next
            // pipeline to record. Somebody else may have been faster: then that answer counts.
            *failure = Some(json!({"error": "insufficient funds"}));
            answer = connection.send(key, payload, failure.as_ref()).await;
        }
        if is(&answer, &SqlState::from_code("ID011")) {
            return connection.look_up(key).await;
        }
        if is(&answer, &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) {
            // It stopped half way, and nobody may just start it again.
            return connection.look(key, payload).await;
        }
        if is(&answer, &SqlState::NOT_NULL_VIOLATION) {
            // Nothing is recorded: the key is as if it had never been used.
            return Err(format!("there is no account {}, or no {}", payload["to"], payload["from"]).into());
        }
        answer.map(Some)
    }
}

fn code(failure: &Failure) -> Option<&SqlState> {
    failure.downcast_ref::<tokio_postgres::Error>()?.code()
}

fn is<T>(answer: &Result<T, Failure>, state: &SqlState) -> bool {
    answer.as_ref().err().and_then(code) == Some(state)
}

/// Connection lost, serialization failure, deadlock, a wait that ran out. Anything else is an
/// answer, or a mistake.
fn is_retryable(failure: &Failure) -> bool {
    match code(failure) {
        None => failure.is::<tokio_postgres::Error>(),
        Some(code) => {
            [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE]
                .contains(code)
                || code.code().starts_with("08")
                || code.code().starts_with("57P")
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let uri = args.next().expect("arguments: URI [KEY]");
    // A wrong address, login or database is told here, and not retried.
    drop(tokio_postgres::connect(&uri, NoTls).await?);
    // Made once, before the first attempt, and kept with the order that it belongs to.
    let key = args.next().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let mut payments = Payments { uri, connection: None };
    for (key, amount) in [(key.clone(), "30.00"), (key.clone(), "30.00"), (key + "-b", "1000.00")] {
        let answer = payments.transfer(&key, &json!({"from": 1, "to": 2, "amount": amount})).await?;
        println!("{} {} {}", answer.status, if answer.replayed { "replayed" } else { "executed" }, answer.response);
    }
    Ok(())
}
