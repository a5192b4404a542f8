//! A request: its name, its payload, its options, and the statements that begin it, record it and look it up.

use crate::database::{Database, Row};
use crate::retry::{Retry, retrying};
use crate::transaction::Tx;
use crate::{Error, sql};
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

macro_rules! arguments {
    () => {
        "$1::text, $2::text, payload => $3::text::jsonb, wait => $4::text::interval"
    };
}
macro_rules! ticket {
    () => {
        "status::text, replayed::text, response::text, extract(epoch FROM expires_at)::text, point::text, state::text,
         token::text, attempt::text"
    };
}
const TICKET: &str = concat!(", ", ticket!(), ", (pg_current_xact_id_if_assigned() IS NOT NULL)::text");
const FROM_BEGIN: &str = concat!(" FROM idem_begin(", arguments!(), ")");
const LEASE: &str = concat!("SELECT ", ticket!(), " FROM idem_begin(", arguments!(), ", lease => $5::text::interval)");
const CLAIM: &str = concat!("SELECT 'claimed'::text FROM idem_claim(", arguments!(), "); SAVEPOINT idempotence");
const RECORD: &str = "SELECT 'recorded'::text FROM idem_record($1::text, $2::text, $3::text::jsonb,
    failed => $4::text::boolean, ttl => $5::text::interval)";
const LOOKUP: &str = concat!("SELECT ", ticket!(), " FROM idem_lookup($1::text, $2::text, wait => $3::text::interval)");

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `succeeded`, `failed` (permanently) or `cancelled`.
    pub status: String,
    /// The recorded response; null if none was recorded.
    pub response: Value,
    /// Whether an earlier attempt was executed, and this one was not.
    pub replayed: bool,
}

impl Answer {
    pub(crate) fn new(failed: bool, response: Value) -> Answer {
        Answer { status: if failed { "failed" } else { "succeeded" }.into(), response, replayed: false }
    }

    /// Whether the status is not `succeeded`.
    pub fn failed(&self) -> bool {
        self.status != "succeeded"
    }
}

/// What the database knows of a request; see "The ticket" in the reference.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Ticket {
    pub status: String,
    pub replayed: bool,
    pub response: Value,
    pub expires_at: Option<SystemTime>,
    pub point: Option<String>,
    pub state: Value,
    pub token: Option<i64>,
    pub attempt: Option<i64>,
}

impl Ticket {
    fn new(mut row: Row) -> Result<Ticket, Error> {
        row.resize(8, None);
        let json = |text: &Option<String>| text.as_deref().map_or(Ok(Value::Null), serde_json::from_str);
        let number = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
        let seconds =
            row[3].as_deref().and_then(|text| text.parse().ok()).and_then(|n| Duration::try_from_secs_f64(n).ok());
        Ok(Ticket {
            status: row[0].clone().unwrap_or_default(),
            replayed: row[1].as_deref() == Some("true"),
            response: json(&row[2]).map_err(|error| Error::Other(error.into()))?,
            expires_at: seconds.map(|seconds| UNIX_EPOCH + seconds),
            point: row[4].clone(),
            state: json(&row[5]).map_err(|error| Error::Other(error.into()))?,
            token: number(&row[6]),
            attempt: number(&row[7]),
        })
    }

    /// The outcome, if the request has one.
    pub fn answer(&self) -> Option<Answer> {
        ["succeeded", "failed", "cancelled"].contains(&&*self.status).then(|| Answer {
            status: self.status.clone(),
            response: self.response.clone(),
            replayed: self.replayed,
        })
    }
}

/// As an interval.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{} seconds", time.as_secs_f64())
}

/// As JSON. Null means no payload, and no response.
pub(crate) fn json(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| value.to_string())
}

pub(crate) fn refs(args: &[Option<String>]) -> Vec<Option<&str>> {
    args.iter().map(Option::as_deref).collect()
}

/// The answer to begin.
pub(crate) enum Begun<D: Database> {
    /// The transaction holds the claim.
    Started(Tx<D>),
    /// The request has an outcome.
    Answered(Answer),
}

/// A request: its name, which is a session and a key, its payload, and how long to try.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) session: String,
    pub(crate) key: String,
    payload: Result<Option<String>, String>,
    pub(crate) wait: Duration,
    pub(crate) deadline: Duration,
    pub(crate) ttl: Option<Duration>,
    pub(crate) claim: bool,
}

impl Request {
    /// A key is a string, a number, or a UUID. Two keys are equal if their texts are.
    pub fn new(session: impl Into<String>, key: impl ToString) -> Request {
        Request {
            session: session.into(),
            key: key.to_string(),
            payload: Ok(None),
            wait: Duration::from_millis(200),
            deadline: Duration::from_secs(30),
            ttl: None,
            claim: false,
        }
    }

    /// What is requested: the same key with another payload is refused (ID001). Null, the default, means no payload.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Request {
        self.payload = serde_json::to_value(payload).map(|payload| json(&payload)).map_err(|error| error.to_string());
        self
    }

    /// How long each attempt waits in the database, on its connection, for another holder of the claim: 0.2 seconds.
    pub fn wait(mut self, wait: Duration) -> Request {
        self.wait = wait;
        self
    }

    /// How long to try again, after a lost connection and the like, or while another process holds the claim: 30
    /// seconds.
    pub fn deadline(mut self, deadline: Duration) -> Request {
        self.deadline = deadline;
        self
    }

    /// How long the outcome lives; by default the ttl of the session.
    pub fn ttl(mut self, ttl: Duration) -> Request {
        self.ttl = Some(ttl);
        self
    }

    /// Starts the work before the answer to begin has arrived, where the driver has a pipeline (tokio-postgres). This
    /// saves a round trip. The work must not act on the results of its statements outside the database before `run` has
    /// returned.
    pub fn claim(mut self) -> Request {
        self.claim = true;
        self
    }

    /// The arguments of begin.
    fn arguments(&self) -> Result<[Option<String>; 4], Error> {
        let payload = self.payload.clone().map_err(|error| Error::Other(error.into()))?;
        Ok([Some(self.session.clone()), Some(self.key.clone()), payload, Some(seconds(self.wait))])
    }

    /// The statement that claims it, in an open transaction.
    pub(crate) fn claim_statement(&self) -> Result<String, Error> {
        sql::with_arguments(CLAIM, &refs(&self.arguments()?))
    }

    /// The statement that records its outcome.
    pub(crate) fn record_statement(&self, answer: &Answer) -> Result<String, Error> {
        let ttl = self.ttl.map(seconds);
        let (response, failed) = (json(&answer.response), answer.failed().to_string());
        let args = [Some(&*self.session), Some(&*self.key), response.as_deref(), Some(&*failed), ttl.as_deref()];
        sql::with_arguments(RECORD, &args)
    }

    /// Begins it in a transaction of its own. Unless it has started, the transaction has ended.
    pub(crate) async fn begin<D: Database>(&self, database: &D, limit: Duration) -> Result<Begun<D>, Error> {
        let from = sql::with_arguments(FROM_BEGIN, &refs(&self.arguments()?))?;
        let (mut tx, row) = Tx::begin(database, limit, TICKET, &from).await?;
        let wrote = row.get(8).and_then(Option::as_deref) == Some("true");
        match Ticket::new(row).and_then(|ticket| self.answered(&ticket)) {
            Ok(None) => Ok(Begun::Started(tx)),
            Ok(Some(answer)) if wrote => {
                // Begin may have recorded that the request is given up; and in the edition for managed services COMMIT
                // waits until the outcome is durable.
                tx.commit("SELECT 1::text".into()).await?;
                Ok(Begun::Answered(answer))
            }
            // The transaction has only read, so its end is not awaited.
            Ok(Some(answer)) => {
                tokio::spawn(tx.rollback());
                Ok(Begun::Answered(answer))
            }
            Err(error) => {
                tokio::spawn(tx.rollback());
                Err(error)
            }
        }
    }

    /// Begins it with a lease.
    pub(crate) async fn begin_lease<D: Database>(
        &self,
        database: &D,
        limit: Duration,
        length: Duration,
    ) -> Result<Ticket, Error> {
        let [session, key, payload, wait] = self.arguments()?;
        let args = [session, key, payload, wait, Some(seconds(length))];
        let rows = database.ask(limit, LEASE, &refs(&args)).await?;
        let ticket = Ticket::new(rows.into_iter().next().unwrap_or_default())?;
        self.refuse_in_progress(&ticket)?;
        Ok(ticket)
    }

    fn refuse_in_progress(&self, ticket: &Ticket) -> Result<(), Error> {
        if ticket.status == "in_progress" {
            return Err(Error::InProgress { key: self.key.clone(), expires_at: ticket.expires_at });
        }
        Ok(())
    }

    /// Its outcome, or None if this attempt may execute it. A request that an earlier attempt left in the middle must
    /// not simply be executed.
    fn answered(&self, ticket: &Ticket) -> Result<Option<Answer>, Error> {
        self.refuse_in_progress(ticket)?;
        let answer = ticket.answer();
        if answer.is_none() && (ticket.status != "started" || ticket.point.is_some()) {
            return Err(self.interrupted(ticket));
        }
        Ok(answer)
    }

    pub(crate) fn interrupted(&self, Ticket { point, state, .. }: &Ticket) -> Error {
        Error::Interrupted { key: self.key.clone(), point: point.clone(), state: state.clone() }
    }

    /// What the database knows of it. Begins nothing; waits up to `wait` for the holder of the claim.
    pub async fn lookup<D: Database>(&self, database: &D) -> Result<Ticket, Error> {
        let mut retry = Retry::new(self.deadline, self.deadline);
        retrying!(retry, self.look(database, retry.left()).await)
    }

    pub(crate) async fn look<D: Database>(&self, database: &D, limit: Duration) -> Result<Ticket, Error> {
        let wait = seconds(self.wait);
        let args = [Some(&*self.session), Some(&*self.key), Some(&*wait)];
        let rows = database.ask(limit, LOOKUP, &args).await?;
        Ticket::new(rows.into_iter().next().unwrap_or_default())
    }
}
