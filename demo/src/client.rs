//! A client that retries: the retry loop to copy.
//!
//! Three rules hold in every programming language:
//!
//! 1. Make the key (or the number, see the module `numbered`) once, before the first attempt. Send the
//!    same key and the same payload in every retry.
//! 2. Believe an answer only after COMMIT has been answered. Before that, the client does not know
//!    whether the request took effect, and need not know: the next attempt finds out.
//! 3. Retry what may end differently next time (the module `failure` knows which errors may), on a new
//!    connection if the old one is in doubt, with growing and random pauses, a bounded number of
//!    times. Never retry anything else.

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
use crate::failure::{Advice, Failure};
use crate::stats::Stats;

/// The longest time that an attempt may take, connecting included, before its answer counts as lost.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// With the pauses between them, this number of attempts lasts longer than a server needs to restart.
pub const ATTEMPTS_MAX: u32 = 15;
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// Whether the answer was recorded before: an earlier attempt, perhaps of another client, executed
    /// the request.
    pub replayed: bool,
}

/// The parameters of a statement, each with its type.
pub type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// Why a request stays without an answer.
#[derive(Debug)]
pub enum Unanswered {
    /// All attempts failed, and the request may or may not have taken effect. As long as the session
    /// keeps outcomes (its ttl), sending the same key again finds out.
    Unknown,
    /// The server refused the request and would refuse it again. This attempt had no effect, but an
    /// earlier attempt may have had its effect.
    Refused(Failure),
}

/// How to send a request. All options give the same guarantee; that clients mix them is part of the test.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    pub interface: Interface,
    pub isolation: IsolationLevel,
    /// How long to wait for another attempt of the same request that is under way.
    pub wait: &'static str,
}

/// The functions of the extension that a client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// `idem_begin`, then the work statement by statement, then `idem_record`.
    Statements,
    /// A PL/pgSQL function that does the same three steps.
    Function,
    /// `idem_run`, which makes a function idempotent that knows nothing of the extension.
    Run,
    /// None, to show what happens without the extension.
    WithoutKeys,
}

/// A client with at most one connection, which it opens when it needs one.
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
        // This closes the socket at once. Without it, the driver would wait for outstanding replies.
        self.socket.abort();
    }
}

impl Client {
    pub fn new(config: Config, rng: SmallRng, stats: Arc<Stats>, rollback_rate: f64) -> Self {
        Self { config, connection: None, rng, stats, rollback_rate }
    }

    /// Sends a request until it is answered, at most `attempts_max` times.
    pub async fn submit(
        &mut self,
        transfer: &Transfer,
        options: SendOptions,
        attempts_max: u32,
    ) -> Result<Answer, Unanswered> {
        for attempt in 0..attempts_max {
            self.start_attempt(attempt).await;
            match timeout(ATTEMPT_TIMEOUT, self.attempt(transfer, options)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => self.handle_failure(failure)?,
                Err(_) => self.handle_failure(Failure::TimedOut)?,
            }
        }
        Err(Unanswered::Unknown)
    }

    /// Retries a statement that is idempotent by itself until it gives its single row. The statement is a
    /// transaction of its own.
    pub async fn query_one(&mut self, statement: &str, parameters: Parameters<'_>) -> Result<Row, Unanswered> {
        for attempt in 0..ATTEMPTS_MAX {
            self.start_attempt(attempt).await;
            let row = async { self.connection().await?.query_typed_one(statement, parameters).await };
            match timeout(ATTEMPT_TIMEOUT, row).await {
                Ok(Ok(row)) => return Ok(row),
                Ok(Err(error)) => self.handle_failure(error.into())?,
                Err(_) => self.handle_failure(Failure::TimedOut)?,
            }
        }
        Err(Unanswered::Unknown)
    }

    /// Retries a transaction of one statement, which gives a single row, until COMMIT is answered. The statement must
    /// be idempotent by itself. `before_commit` sees the row of every attempt, also of those that are rolled back.
    pub async fn transact(
        &mut self,
        statement: &str,
        parameters: Parameters<'_>,
        before_commit: impl Fn(&Row),
    ) -> Result<Row, Unanswered> {
        for attempt in 0..ATTEMPTS_MAX {
            self.start_attempt(attempt).await;
            match timeout(ATTEMPT_TIMEOUT, self.transact_once(statement, parameters, &before_commit)).await {
                Ok(Ok(row)) => return Ok(row),
                Ok(Err(failure)) => self.handle_failure(failure)?,
                Err(_) => self.handle_failure(Failure::TimedOut)?,
            }
        }
        Err(Unanswered::Unknown)
    }

    async fn transact_once(
        &mut self,
        statement: &str,
        parameters: Parameters<'_>,
        before_commit: impl Fn(&Row),
    ) -> Result<Row, Failure> {
        let application_fails = self.rng.random_bool(self.rollback_rate);
        let tx = self.connection().await?.transaction().await?;
        let row = tx.query_typed_one(statement, parameters).await?;
        before_commit(&row);
        if application_fails {
            tx.rollback().await?;
            return Err(Failure::RolledBack);
        }
        let committed = tx.commit().await;
        self.end_commit(committed).await?;
        Ok(row)
    }

    /// Rolls back after a COMMIT that was cancelled: if that happened before it began, the transaction has failed and
    /// is still open, and the next attempt could not begin another one.
    async fn end_commit(&mut self, committed: Result<(), Error>) -> Result<(), Error> {
        let cancelled = committed.as_ref().is_err_and(|error| error.code() == Some(&SqlState::QUERY_CANCELED));
        if let Some(connection) = self.connection.as_ref().filter(|_| cancelled) {
            connection.client.batch_execute("ROLLBACK").await?;
        }
        committed
    }

    /// Closes the connection at once, whatever is under way on it.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    async fn start_attempt(&mut self, attempt: u32) {
        if attempt > 0 {
            sleep(self.backoff(attempt)).await;
        }
        self.stats.attempted(attempt > 0);
    }

    fn handle_failure(&mut self, failure: Failure) -> Result<(), Unanswered> {
        self.stats.failed(&failure);
        match failure.advice() {
            Advice::Retry => {}
            Advice::Reconnect => self.connection = None,
            Advice::GiveUp => return Err(Unanswered::Refused(failure)),
        }
        Ok(())
    }

    /// Exponential backoff with full jitter: clients that have failed together must not retry together.
    fn backoff(&mut self, attempt: u32) -> Duration {
        let limit = BACKOFF_MIN.saturating_mul(1 << attempt.min(16)).min(BACKOFF_MAX);
        self.rng.random_range(Duration::ZERO..=limit)
    }

    /// One transaction, which begins, works and records, or replays what an earlier transaction recorded.
    async fn attempt(&mut self, transfer: &Transfer, options: SendOptions) -> Result<Answer, Failure> {
        let application_fails = self.rng.random_bool(self.rollback_rate);
        let tx = self.connection().await?.build_transaction().isolation_level(options.isolation).start().await?;

        // If `?` returns from here on, dropping `tx` rolls back. After an error there must be no COMMIT:
        // the server would answer it with ROLLBACK, which the driver takes for success.
        let answer = match options.interface {
            Interface::Statements => by_statements(&tx, transfer, options.wait).await?,
            Interface::Function => by_function(&tx, transfer, options.wait).await?,
            Interface::Run => by_run(&tx, transfer, options.wait).await?,
            Interface::WithoutKeys => executed(bank::transfer(&tx, transfer).await?),
        };
        if application_fails {
            tx.rollback().await?;
            return Err(Failure::RolledBack);
        }

        // Here the effect and the outcome become visible together. If the reply to COMMIT is lost, the
        // answer must not be believed: only the next attempt can tell whether COMMIT succeeded.
        let committed = tx.commit().await;
        self.end_commit(committed).await?;
        Ok(answer)
    }

    async fn connection(&mut self) -> Result<&mut tokio_postgres::Client, Error> {
        // If the connection broke while it was idle, notice that here, not in the middle of a transaction.
        let connection = match self.connection.take().filter(|c| !c.client.is_closed()) {
            Some(connection) => connection,
            None => {
                let (client, socket) = self.config.connect(NoTls).await?;
                let socket = tokio::spawn(async move {
                    // The next call of the client reports why the connection ended.
                    let _ = socket.await;
                });
                Connection { client, socket }
            }
        };
        Ok(&mut self.connection.insert(connection).client)
    }
}

/// Begins, works and records: three steps in one transaction.
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
        return answer_of(&ticket);
    }

    // Until this transaction ends, it holds the claim: every other transaction with this key waits.
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

/// Calls a function that begins, works and records.
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
    answer_of(&ticket)
}

/// Makes a statement idempotent: the function `transfer` knows nothing of keys, and the exception that
/// it raises for an insufficient balance becomes the recorded answer.
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
    answer_of(&ticket)
}

fn executed(outcome: Outcome) -> Answer {
    Answer { outcome, replayed: false }
}

/// The answer in a ticket whose status is not `started`.
fn answer_of(ticket: &Row) -> Result<Answer, Failure> {
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
