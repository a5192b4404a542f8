//! Leases, for effects outside the database: the claim is committed before the work, and the outcome after it.

use crate::database::{self, Database};
use crate::request::{Answer, Request, Ticket, json, refs, seconds};
use crate::retry::{Retry, retrying};
use crate::{BoxError, Error, Final};
use serde::Serialize;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Mutex, watch};

const EXTEND: &str =
    "SELECT 'extended'::text FROM idem_extend($1::text, $2::text, $3::text::bigint, $4::text::interval)";
const RECORD: &str = "SELECT 'recorded'::text FROM idem_record($1::text, $2::text, token => $3::text::bigint,
    response => $4::text::jsonb, failed => $5::text::boolean, ttl => $6::text::interval)";
const RELEASE: &str = "SELECT 'released'::text FROM idem_release($1::text, $2::text, token => $3::text::bigint)";
const CHECKPOINT: &str = "SELECT 'saved'::text FROM idem_checkpoint($1::text, $2::text, token => $3::text::bigint,
    point => $4::text, state => $5::text::jsonb)";

/// The answer to a request for a lease.
pub enum Leased<D: Database> {
    /// The caller holds the claim, and executes the request.
    Held(Arc<Lease<D>>),
    /// The request has an outcome, and the caller must not execute it.
    Answered(Answer),
}

/// The claim on a request for as long as the work takes. A heartbeat extends it in the background until it is recorded,
/// released or dropped. If it is dropped without a record, it expires, and the next begin takes the request over.
pub struct Lease<D: Database> {
    database: D,
    request: Request,
    /// The answer of begin. `status` is `taken_over` if an earlier holder stopped in the middle. Then check first
    /// whether its effect happened, and continue from `point` and `state`.
    pub ticket: Ticket,
    /// A fencing token for the effect: it grows with each attempt.
    pub token: i64,
    length: Duration,
    lost: watch::Sender<bool>,
    // Whether it was recorded or released. Its token is then no longer valid, which is no loss of the lease.
    done: AtomicBool,
    answer: OnceLock<Answer>,
    // One call at a time, or the heartbeat could fail with ID005 before the answer to the record has arrived.
    calls: Mutex<()>,
}

impl<D: Database> Lease<D> {
    /// The request's key.
    pub fn key(&self) -> &str {
        &self.request.key
    }

    /// Whether an earlier holder stopped in the middle.
    pub fn taken_over(&self) -> bool {
        self.ticket.status == "taken_over"
    }

    /// The recorded answer.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.get()
    }

    /// Waits until the heartbeat detects that the lease is lost: for work in tasks of its own, which must stop then.
    pub async fn lost(&self) {
        // Its sender lives as long as self does.
        let _ = self.lost.subscribe().wait_for(|lost| *lost).await;
    }

    /// Runs the work, and drops it when the lease is lost.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            value = work => Ok(value),
            () = self.lost() => Err(self.superseded()),
        }
    }

    /// Records the outcome. It may be called again: the same token gets the same answer.
    pub async fn record(&self, response: &(impl Serialize + ?Sized), failed: bool) -> Result<(), Error> {
        let response = serde_json::to_value(response).map_err(|error| Error::Other(error.into()))?;
        let args = [json(&response), Some(failed.to_string()), self.request.ttl.map(seconds)];
        self.call(RECORD, &args, self.request.deadline, true).await?;
        self.answer.get_or_init(|| Answer::new(failed, response));
        Ok(())
    }

    /// Saves a checkpoint, from which the process that takes the request over continues.
    pub async fn checkpoint(&self, point: &str, state: &Value) -> Result<(), Error> {
        self.call(CHECKPOINT, &[Some(point.into()), json(state)], self.request.deadline, false).await
    }

    /// Extends the lease now, as the heartbeat does.
    pub async fn extend(&self) -> Result<(), Error> {
        self.call(EXTEND, &[Some(seconds(self.length))], self.length / 3, false).await
    }

    /// Releases the claim. Only for work without an effect: the next begin starts from the beginning.
    pub async fn release(&self) -> Result<(), Error> {
        self.call(RELEASE, &[], self.request.deadline, true).await
    }

    /// Refuses work that has ended without record and without release.
    pub(crate) fn ended(&self) -> Result<(), Error> {
        if self.done.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Unrecorded { key: self.request.key.clone() })
    }

    async fn call(
        &self,
        sql: &'static str,
        more: &[Option<String>],
        deadline: Duration,
        last: bool,
    ) -> Result<(), Error> {
        let Request { session, key, .. } = &self.request;
        let mut args = vec![Some(session.clone()), Some(key.clone()), Some(self.token.to_string())];
        args.extend_from_slice(more);
        let args = refs(&args);
        let _one = self.calls.lock().await;
        let mut retry = Retry::new(deadline, deadline);
        let called = retrying!(retry, self.database.ask(retry.left(), sql, &args).await);
        match called {
            Ok(_) => {
                self.done.fetch_or(last, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if error.has("ID005") => {
                if !self.done.load(Ordering::Relaxed) {
                    self.lost.send_replace(true);
                }
                Err(self.superseded())
            }
            Err(error) => Err(error),
        }
    }

    fn superseded(&self) -> Error {
        Error::Superseded { key: self.request.key.clone() }
    }
}

impl Request {
    /// The claim on it, as a lease of this length. Waits until the deadline for another holder.
    pub async fn hold<D: Database>(&self, database: &D, length: Duration) -> Result<Leased<D>, Error> {
        self.hold_within(database, length, self.deadline).await
    }

    pub(crate) async fn hold_within<D: Database>(
        &self,
        database: &D,
        length: Duration,
        patience: Duration,
    ) -> Result<Leased<D>, Error> {
        let mut retry = Retry::new(self.deadline, patience);
        let ticket: Ticket = retrying!(retry, self.begin_lease(database, retry.left(), length).await)?;
        if let Some(answer) = ticket.answer() {
            return Ok(Leased::Answered(answer));
        }
        let token = ticket.token.ok_or_else(|| self.interrupted(&ticket))?;
        let lease = Arc::new(Lease {
            database: database.clone(),
            request: self.clone(),
            ticket,
            token,
            length,
            lost: watch::Sender::new(false),
            done: AtomicBool::new(false),
            answer: OnceLock::new(),
            calls: Mutex::new(()),
        });
        let held = Arc::downgrade(&lease);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(length / 3).await;
                let Some(lease) = held.upgrade().filter(|lease| !lease.done.load(Ordering::Relaxed)) else { return };
                // The next beat may succeed after another error.
                if let Err(Error::Superseded { .. }) = lease.extend().await {
                    return;
                }
            }
        });
        Ok(Leased::Held(lease))
    }

    /// Runs the work with a lease of this length, and returns the answer: None if the work has released the lease. If
    /// the work has neither recorded nor released, [`Error::Unrecorded`] is returned. The work is dropped when the
    /// lease is lost. [`Final`] is recorded as a failure; after any other error the lease expires.
    pub async fn lease<D, F, W, E>(&self, database: &D, length: Duration, work: F) -> Result<Option<Answer>, Error>
    where
        D: Database,
        F: FnOnce(Arc<Lease<D>>) -> W,
        W: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let lease = match self.hold(database, length).await? {
            Leased::Answered(answer) => return Ok(Some(answer)),
            Leased::Held(lease) => lease,
        };
        if let Err(error) = lease.guard(work(lease.clone())).await? {
            let last = error.into().downcast::<Final>().map_err(of_work::<D>)?;
            lease.record(&last.0, true).await?;
        }
        lease.ended()?;
        Ok(lease.answer().cloned())
    }
}

/// An error of the work with a lease: one of the lease's own calls, or another one.
pub(crate) fn of_work<D: Database>(error: BoxError) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(source) => Error::Work { cause: database::cause::<D>(&*source), source },
    }
}
