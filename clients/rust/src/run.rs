//! A request: begun, worked on and recorded in one transaction, and answered after its COMMIT.

use crate::database::{Ask, Conn, Database, Row, Slot, Transaction};
use crate::{BoxError, Error, Final};
use futures_util::future::join;
use serde::Serialize;
use serde_json::Value;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
const BEGIN: &str = concat!("SELECT ", ticket!(), " FROM idem_begin(", arguments!(), ", lease => $5::text::interval)");
const CLAIM: &str = concat!("SELECT 'claimed'::text FROM idem_claim(", arguments!(), ")");
const RECORD: &str = "SELECT 'recorded'::text FROM idem_record($1::text, $2::text, $3::text::jsonb,
    failed => $4::text::boolean, ttl => $5::text::interval)";
const LOOKUP: &str = concat!("SELECT ", ticket!(), " FROM idem_lookup($1::text, $2::text, wait => $3::text::interval)");
const ONCE: &str = "SELECT ord::text FROM idem_once_many($1::text, ARRAY(SELECT key FROM jsonb_array_elements_text(
    $2::text::jsonb) WITH ORDINALITY k(key, place) ORDER BY place)) ORDER BY ord";

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `succeeded`, `failed` (for good) or `cancelled`.
    pub status: String,
    /// What was recorded; null if nothing was.
    pub response: Value,
    /// Whether an earlier attempt was executed, and not this one.
    pub replayed: bool,
}

impl Answer {
    pub(crate) fn new(failed: bool, response: Value) -> Answer {
        Answer { status: if failed { "failed" } else { "succeeded" }.into(), response, replayed: false }
    }

    /// Whether it is anything but `succeeded`.
    pub fn failed(&self) -> bool {
        self.status != "succeeded"
    }
}

/// What is known of a request; see "The ticket" in the reference.
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
    fn new(rows: Vec<Row>) -> Result<Ticket, Error> {
        let mut row = rows.into_iter().next().unwrap_or_default();
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

    /// Its answer, if it has one.
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

/// As JSON. Null is no payload, and no response.
pub(crate) fn json(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| value.to_string())
}

/// When to try again, and until when. `patience`: how long to ask again for what somebody else is at work on.
pub(crate) struct Retry {
    began: Instant,
    deadline: Duration,
    patience: Duration,
    count: u32,
}

impl Retry {
    pub fn new(deadline: Duration, patience: Duration) -> Retry {
        Retry { began: Instant::now(), deadline, patience, count: 0 }
    }

    pub fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.began.elapsed())
    }

    /// Waits a little. Gives the error back if it is final, or if the time is over.
    pub async fn after(&mut self, error: Error) -> Result<(), Error> {
        let busy = matches!(error, Error::InProgress { .. });
        let limit = if busy { self.patience } else { self.deadline };
        let left = limit.saturating_sub(self.began.elapsed());
        if left.is_zero() || !error.is_retryable() {
            return Err(error);
        }
        let most = Duration::from_millis(if busy { 250 } else { 2000 });
        let pause = most.min(Duration::from_millis(50) * (1 << self.count.min(10)));
        self.count += 1;
        // Between a half of it and all: a new RandomState is random, and there is no dependency for it.
        let share = (RandomState::new().hash_one(self.count) % 1000) as f64 / 2000.0 + 0.5;
        tokio::time::sleep(left.min(pause.mul_f64(share))).await;
        Ok(())
    }
}

/// Evaluates an attempt until it has succeeded, or failed for good.
macro_rules! retrying {
    ($retry:ident, $attempt:expr) => {
        loop {
            match $attempt {
                Ok(value) => break Ok(value),
                Err(error) => {
                    if let Err(error) = $retry.after(error).await {
                        break Err(error);
                    }
                }
            }
        }
    };
}
pub(crate) use retrying;

/// A request: its name, which is a session and a key, its payload, and how long to try.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) session: String,
    pub(crate) key: String,
    payload: Result<Option<String>, String>,
    pub(crate) wait: Duration,
    pub(crate) deadline: Duration,
    pub(crate) ttl: Option<Duration>,
    claim: bool,
}

impl Request {
    /// A key is a string, a number, or a UUID: two that are the same text are one key.
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

    /// What is asked: the same key with another payload is refused (ID001). Null, the default, is none.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Request {
        self.payload = serde_json::to_value(payload).map(|payload| json(&payload)).map_err(|error| error.to_string());
        self
    }

    /// How long each attempt waits in the database, on its connection, for somebody else at work: 0.2 seconds.
    pub fn wait(mut self, wait: Duration) -> Request {
        self.wait = wait;
        self
    }

    /// How long to try again, after a lost connection and the like, or while somebody else is at work: 30 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Request {
        self.deadline = deadline;
        self
    }

    /// How long the outcome lives; by default the ttl of the session.
    pub fn ttl(mut self, ttl: Duration) -> Request {
        self.ttl = Some(ttl);
        self
    }

    /// Lets the work start without the answer to begin, where the driver can send ahead (tokio-postgres): fewer round trips.
    /// What the work's statements return is then not to be acted on before `run` has answered.
    pub fn claim(mut self) -> Request {
        self.claim = true;
        self
    }

    /// Executes it once: calls the work in the transaction that records what it returns, and answers after COMMIT. An error
    /// of the work takes all back, but for [`Final`], whose response is recorded as a failure. The work is called again
    /// after errors that another attempt may mend.
    pub async fn run<D, F, W, R, E>(&self, database: &D, mut work: F) -> Result<Answer, Error>
    where
        D: Database,
        F: FnMut(Conn<D>) -> W,
        W: Future<Output = Result<R, E>>,
        R: Serialize,
        E: Into<BoxError>,
    {
        let mut retry = Retry::new(self.deadline, self.deadline);
        let mut claim = self.claim;
        loop {
            let slot = Slot::<D>::default();
            let error = match self.execute(database, &slot, &mut work, retry.left(), claim).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            slot.rollback().await;
            // What a claim refuses, a begin explains.
            if claim && ["ID011", "55P03", "55000"].iter().any(|state| error.has(state)) {
                claim = false;
            } else {
                retry.after(error).await?;
            }
        }
    }

    async fn execute<D, F, W, R, E>(
        &self,
        database: &D,
        slot: &Slot<D>,
        work: &mut F,
        left: Duration,
        claim: bool,
    ) -> Result<Answer, Error>
    where
        D: Database,
        F: FnMut(Conn<D>) -> W,
        W: Future<Output = Result<R, E>>,
        R: Serialize,
        E: Into<BoxError>,
    {
        let mut conn = slot.open(database.begin(left).await?);
        let worked = if claim {
            let sent = conn.tx().send(CLAIM, &refs(&self.arguments()?)).await?;
            let (claimed, worked) = join(sent, work(conn)).await;
            // Of its refusal another error is a consequence.
            claimed?;
            worked
        } else {
            let ticket = self.begin(&mut conn).await?;
            if let Some(answer) = self.answered(&ticket)? {
                drop(conn);
                // Begin may have recorded that the request is given up.
                slot.take()?.commit(None).await?;
                return Ok(answer);
            }
            work(conn).await
        };
        let answer = match worked.map_err(Into::into) {
            Ok(response) => {
                Answer::new(false, serde_json::to_value(response).map_err(|error| Error::Other(error.into()))?)
            }
            Err(error) => Answer::new(true, error.downcast::<Final>()?.0),
        };
        let record = self.recorded(&answer);
        slot.take()?.commit(Some((RECORD, &refs(&record)))).await?;
        Ok(answer)
    }

    fn arguments(&self) -> Result<[Option<String>; 4], Error> {
        let payload = self.payload.clone().map_err(|error| Error::Other(error.into()))?;
        Ok([Some(self.session.clone()), Some(self.key.clone()), payload, Some(seconds(self.wait))])
    }

    fn recorded(&self, answer: &Answer) -> [Option<String>; 5] {
        let failed = answer.failed().to_string();
        [
            Some(self.session.clone()),
            Some(self.key.clone()),
            json(&answer.response),
            Some(failed),
            self.ttl.map(seconds),
        ]
    }

    /// Begins it, in a transaction that stays open.
    pub(crate) async fn begin(&self, tx: &mut impl Ask) -> Result<Ticket, Error> {
        let [session, key, payload, wait] = self.arguments()?;
        self.ticket(tx.ask(BEGIN, &refs(&[session, key, payload, wait, None])).await?)
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
        self.ticket(database.ask(limit, BEGIN, &refs(&args)).await?)
    }

    fn ticket(&self, rows: Vec<Row>) -> Result<Ticket, Error> {
        let ticket = Ticket::new(rows)?;
        if ticket.status == "in_progress" {
            return Err(Error::InProgress { key: self.key.clone(), expires_at: ticket.expires_at });
        }
        Ok(ticket)
    }

    #[cfg(feature = "axum")]
    pub(crate) async fn record(&self, tx: &mut impl Ask, answer: &Answer) -> Result<(), Error> {
        tx.ask(RECORD, &refs(&self.recorded(answer))).await?;
        Ok(())
    }

    /// Its answer, unless it has none yet. What somebody has left in the middle is not simply executed.
    pub(crate) fn answered(&self, ticket: &Ticket) -> Result<Option<Answer>, Error> {
        let answer = ticket.answer();
        if answer.is_none() && (ticket.status != "started" || ticket.point.is_some()) {
            return Err(self.interrupted(ticket));
        }
        Ok(answer)
    }

    pub(crate) fn interrupted(&self, Ticket { point, state, .. }: &Ticket) -> Error {
        Error::Interrupted { key: self.key.clone(), point: point.clone(), state: state.clone() }
    }

    /// What is known of it. Begins nothing; waits up to `wait` for whoever is at work.
    pub async fn lookup<D: Database>(&self, database: &D) -> Result<Ticket, Error> {
        let mut retry = Retry::new(self.deadline, self.deadline);
        retrying!(retry, self.look(database, retry.left()).await)
    }

    pub(crate) async fn look<D: Database>(&self, database: &D, limit: Duration) -> Result<Ticket, Error> {
        let wait = seconds(self.wait);
        let args = [Some(&*self.session), Some(&*self.key), Some(&*wait)];
        Ticket::new(database.ask(limit, LOOKUP, &args).await?)
    }
}

pub(crate) fn refs(args: &[Option<String>]) -> Vec<Option<&str>> {
    args.iter().map(Option::as_deref).collect()
}

/// Executes a request once: [`Request::run`], with its defaults.
pub async fn run<D, F, W, R, E>(
    database: &D,
    session: &str,
    key: impl ToString,
    payload: &(impl Serialize + ?Sized),
    work: F,
) -> Result<Answer, Error>
where
    D: Database,
    F: FnMut(Conn<D>) -> W,
    W: Future<Output = Result<R, E>>,
    R: Serialize,
    E: Into<BoxError>,
{
    Request::new(session, key).payload(payload).run(database, work).await
}

/// The places of those keys that an inbox sees for the first time, within the caller's transaction: do the work for them,
/// commit, and then acknowledge.
pub async fn once<K: ToString>(conn: &mut impl Ask, session: &str, keys: &[K]) -> Result<Vec<usize>, BoxError> {
    let keys = serde_json::to_string(&keys.iter().map(K::to_string).collect::<Vec<_>>())?;
    let rows = conn.ask(ONCE, &[Some(session), Some(&keys)]).await?;
    let place = |row: &Row| row.first()?.as_deref()?.parse::<usize>().ok();
    Ok(rows.iter().filter_map(place).map(|place| place - 1).collect())
}
