//! A client that retries: the loop to copy.
//!
//! The three rules, whatever the language:
//!
//! 1. The key (or the number, see [`numbered`](crate::numbered)) is made once, by whoever wants the
//!    effect, before the first attempt, and every retry sends the same one and the same payload.
//! 2. An answer counts only once COMMIT has been answered. Before that nothing is known, and
//!    nothing need be: the next attempt finds out.
//! 3. Retry what may end differently next time, on a new connection where the old one is in
//!    doubt, with growing and random pauses, a bounded number of times. Never retry the rest.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Config, Error, IsolationLevel, NoTls, Row, Transaction};

use crate::bank::{self, Outcome, Transfer};
use crate::stats::Stats;

/// How long to wait for an attempt, connecting included, before its answer is taken for lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// More than a server needs to restart.
pub const ATTEMPTS_MAX: u32 = 15;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// Handed out from memory: an earlier attempt, perhaps somebody else's, did the work.
    pub replayed: bool,
}

/// Why an attempt brought no answer.
#[derive(Debug)]
pub enum Failure {
    /// An error of the server's, or the connection broke.
    Database(Error),
    /// Another attempt holds the claim, and the wait for it ran out.
    InProgress,
    TimedOut,
    /// The application failed half way and rolled back.
    RolledBack,
    /// A status that a request of this kind never has.
    Unexpected(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl Failure {
    /// The server's code, where it was the server that spoke.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error.code().map(SqlState::code),
            _ => None,
        }
    }

    /// What to do after an attempt that failed like this.
    fn advice(&self) -> Advice {
        match self {
            Self::Database(error) => match error.code() {
                Some(code) => advice_for(code.code()),
                None if is_broken(error) => Advice::RetryElsewhere,
                // A value that could not be converted, say: a bug, and the same next time.
                None => Advice::GiveUp,
            },
            Self::InProgress | Self::RolledBack => Advice::Retry,
            Self::TimedOut => Advice::RetryElsewhere,
            Self::Unexpected(_) => Advice::GiveUp,
        }
    }
}

/// Did the connection break? If a COMMIT was under way nobody knows whether it arrived.
fn is_broken(error: &Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<io::Error>)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// The transaction was rolled back, the connection is sound.
    Retry,
    /// The connection is gone or in doubt.
    RetryElsewhere,
    /// It would end the same way again.
    GiveUp,
}

/// Which errors of the server's to retry as they are.
fn advice_for(sqlstate: &str) -> Advice {
    match sqlstate {
        // serialization_failure, deadlock_detected: with luck the next attempt is alone.
        // lock_not_available: the holder will be done by and by; from idem_run it also means that
        // the request is in progress elsewhere.
        // query_canceled: somebody (statement_timeout, an administrator) cut it short.
        "40001" | "40P01" | "55P03" | "57014" => Advice::Retry,
        // admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout,
        // idle_in_transaction_session_timeout, too_many_connections, and class 08, connection
        // exceptions: this connection is lost, or none can be had for a moment.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "53300" => Advice::RetryElsewhere,
        _ if sqlstate.starts_with("08") => Advice::RetryElsewhere,
        // Everything else is said for good. Among them:
        // ID001 payload_mismatch: this key already names another request. A new key would hide
        //       the mistake and execute: ask who made the key.
        // ID002, ID007, ID008: begin and record do not pair up in one transaction: a bug.
        // ID009 limit_exceeded, classes 22 and 42: what was sent is not acceptable.
        // ID010 key_too_old: too old to tell whether it was done; only a human can find out.
        // ID003, ID006: of numbers: not to be had by who sends n once the answer to n - window is in.
        // ID004 session_ended, ID005 fenced: what to do then is up to whoever registered.
        _ => Advice::GiveUp,
    }
}

/// Of a statement: each with its type.
pub type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// Why a request stays without an answer.
#[derive(Debug)]
pub enum Unanswered {
    /// Out of attempts; it may or may not have taken effect. The same key may be sent again as
    /// long as the session keeps outcomes (its ttl), and will tell.
    Unknown,
    /// Refused, and it would be again. This attempt had no effect; an earlier one may have.
    Refused(Failure),
}

/// How to ask. Every manner keeps the same promise; mixing them is part of the test.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub way: Way,
    pub isolation: IsolationLevel,
    /// How long to wait for another attempt of the same request that is under way.
    pub wait: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `idem_begin`, the work statement by statement, `idem_record`.
    Statements,
    /// The same three inside one PL/pgSQL function.
    Function,
    /// `idem_run`, which needs no code at all.
    Run,
    /// As if there were no keys, to see what is at stake.
    WithoutKeys,
}

/// A client with at most one connection, opened when needed.
pub struct Client {
    config: Config,
    connection: Option<Connection>,
    rng: SmallRng,
    stats: Arc<Stats>,
    /// Fault injection: how often the application fails between its work and COMMIT.
    rollback_rate: f64,
}

struct Connection {
    client: tokio_postgres::Client,
    socket: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closes the socket at once: left alone, the driver would wait for outstanding replies.
        self.socket.abort();
    }
}

impl Client {
    pub fn new(config: Config, rng: SmallRng, stats: Arc<Stats>, rollback_rate: f64) -> Self {
        Self { config, connection: None, rng, stats, rollback_rate }
    }

    /// Sends the request until it is answered, at most `attempts_max` times.
    pub async fn submit(
        &mut self,
        transfer: &Transfer,
        manner: Manner,
        attempts_max: u32,
    ) -> Result<Answer, Unanswered> {
        for attempt in 0..attempts_max {
            self.before(attempt).await;
            match timeout(PATIENCE, self.attempt(transfer, manner)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => self.after(failure)?,
                Err(_) => self.after(Failure::TimedOut)?,
            }
        }
        Err(Unanswered::Unknown)
    }

    /// Asks for the one row of a statement that is idempotent by itself, a transaction of its own.
    pub async fn ask(&mut self, statement: &str, parameters: Parameters<'_>) -> Result<Row, Unanswered> {
        for attempt in 0..ATTEMPTS_MAX {
            self.before(attempt).await;
            let row = async { self.connection().await?.query_typed_one(statement, parameters).await };
            match timeout(PATIENCE, row).await {
                Ok(Ok(row)) => return Ok(row),
                Ok(Err(error)) => self.after(error.into())?,
                Err(_) => self.after(Failure::TimedOut)?,
            }
        }
        Err(Unanswered::Unknown)
    }

    /// Its connection closes at once, whatever is under way on it.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    async fn before(&mut self, attempt: u32) {
        if attempt > 0 {
            sleep(self.pause(attempt)).await;
        }
        self.stats.attempted(attempt > 0);
    }

    fn after(&mut self, failure: Failure) -> Result<(), Unanswered> {
        self.stats.failed(&failure);
        match failure.advice() {
            Advice::Retry => {}
            Advice::RetryElsewhere => self.connection = None,
            Advice::GiveUp => return Err(Unanswered::Refused(failure)),
        }
        Ok(())
    }

    /// Exponential backoff with full jitter: clients that failed together must not come back
    /// together.
    fn pause(&mut self, attempt: u32) -> Duration {
        let limit = PAUSE_MIN.saturating_mul(1 << attempt.min(16)).min(PAUSE_MAX);
        self.rng.random_range(Duration::ZERO..=limit)
    }

    /// One transaction: begin, work and record, or the replay of what an earlier one recorded.
    async fn attempt(&mut self, transfer: &Transfer, manner: Manner) -> Result<Answer, Failure> {
        let application_fails = self.rng.random_bool(self.rollback_rate);
        let tx = self.connection().await?.build_transaction().isolation_level(manner.isolation).start().await?;

        // Wherever `?` leaves from here on, `tx` is dropped, which rolls back: after an error
        // there is no COMMIT, whose answer would be a ROLLBACK that looks like success.
        let answer = match manner.way {
            Way::Statements => by_statements(&tx, transfer, manner.wait).await?,
            Way::Function => by_function(&tx, transfer, manner.wait).await?,
            Way::Run => by_run(&tx, transfer, manner.wait).await?,
            Way::WithoutKeys => executed(bank::transfer(&tx, transfer).await?),
        };
        if application_fails {
            tx.rollback().await?;
            return Err(Failure::RolledBack);
        }

        // Effect and outcome become visible together, here. If the reply to this gets lost the
        // answer must not be believed: only the next attempt can tell.
        tx.commit().await?;
        Ok(answer)
    }

    async fn connection(&mut self) -> Result<&mut tokio_postgres::Client, Error> {
        // A connection that broke while idle is noticed here, not in the middle of a transaction.
        let connection = match self.connection.take().filter(|c| !c.client.is_closed()) {
            Some(connection) => connection,
            None => {
                let (client, socket) = self.config.connect(NoTls).await?;
                let socket = tokio::spawn(async move {
                    // Why it ended is told to the client by its next call.
                    let _ = socket.await;
                });
                Connection { client, socket }
            }
        };
        Ok(&mut self.connection.insert(connection).client)
    }
}

/// Begin, work, record: three steps in one transaction.
async fn by_statements(tx: &Transaction<'_>, transfer: &Transfer, wait: &str) -> Result<Answer, Failure> {
    let ticket = tx
        .query_typed_one(
            "SELECT status, replayed, response
               FROM idem_begin($1, $2, payload => $3, wait => $4::interval)",
            &[
                (&transfer.session, Type::TEXT),
                (&transfer.request, Type::TEXT),
                (&transfer.payload(), Type::JSONB),
                (&wait, Type::TEXT),
            ],
        )
        .await?;
    if ticket.get::<_, &str>("status") != "started" {
        return answered(&ticket);
    }

    // The claim is ours until the transaction ends: whoever else comes with this key waits.
    let outcome = bank::transfer(tx, transfer).await?;

    tx.query_typed_one(
        "SELECT idem_record($1, $2, $3, failed => $4)::text",
        &[
            (&transfer.session, Type::TEXT),
            (&transfer.request, Type::TEXT),
            (&outcome.response, Type::JSONB),
            (&outcome.failed, Type::BOOL),
        ],
    )
    .await?;
    Ok(executed(outcome))
}

/// The same in one call: the function begins, works and records.
async fn by_function(tx: &Transaction<'_>, transfer: &Transfer, wait: &str) -> Result<Answer, Failure> {
    let ticket = tx
        .query_typed_one(
            "SELECT status, replayed, response FROM transfer_once($1, $2, $3, $4::interval)",
            &[
                (&transfer.session, Type::TEXT),
                (&transfer.request, Type::TEXT),
                (&transfer.payload(), Type::JSONB),
                (&wait, Type::TEXT),
            ],
        )
        .await?;
    answered(&ticket)
}

/// A statement made idempotent: `transfer` knows nothing of keys, and its exception, an
/// insufficient balance, becomes the recorded answer.
async fn by_run(tx: &Transaction<'_>, transfer: &Transfer, wait: &str) -> Result<Answer, Failure> {
    let ticket = tx
        .query_typed_one(
            "SELECT status, replayed, response
               FROM idem_run($1, $2, 'SELECT transfer($1)', $3,
                             on_error => 'record', wait => $4::interval)",
            &[
                (&transfer.session, Type::TEXT),
                (&transfer.request, Type::TEXT),
                (&transfer.payload(), Type::JSONB),
                (&wait, Type::TEXT),
            ],
        )
        .await?;
    answered(&ticket)
}

fn executed(outcome: Outcome) -> Answer {
    Answer { outcome, replayed: false }
}

/// Reads a ticket that is not `started`.
fn answered(ticket: &Row) -> Result<Answer, Failure> {
    let failed = match ticket.get("status") {
        "succeeded" => false,
        "failed" => true,
        "in_progress" => return Err(Failure::InProgress),
        status => return Err(Failure::Unexpected(status.to_owned())),
    };
    Ok(Answer {
        outcome: Outcome { failed, response: ticket.get::<_, Option<Value>>("response").unwrap_or_default() },
        replayed: ticket.get("replayed"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_end_differently_is_retried_and_nothing_else() {
        for sqlstate in ["40001", "40P01", "55P03", "57014"] {
            assert_eq!(advice_for(sqlstate), Advice::Retry, "{sqlstate}");
        }
        for sqlstate in ["08006", "53300", "57P01", "57P02", "57P03"] {
            assert_eq!(advice_for(sqlstate), Advice::RetryElsewhere, "{sqlstate}");
        }
        for sqlstate in
            ["ID001", "ID003", "ID004", "ID005", "ID006", "ID008", "ID010", "22004", "23505", "42501", "XX000"]
        {
            assert_eq!(advice_for(sqlstate), Advice::GiveUp, "{sqlstate}");
        }
    }
}
