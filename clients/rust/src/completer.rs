//! Completes abandoned requests: their lease expired, or they stopped at a checkpoint, and no client retries them.

use crate::database::Database;
use crate::lease::{Lease, Leased, of_work};
use crate::request::Request;
use crate::{BoxError, Error, Final};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};

/// Concurrent completers shuffle the list, so that they rarely try the same request.
const ABANDONED: &str = "SELECT request::text FROM idempotence.unfinished
    WHERE session = $1::text AND coalesce(stream, '') = '' AND last IS NULL AND state <> 'leased'
    AND ($2::text IS NULL OR attempt IS NULL OR attempt < $2::text::integer)
    ORDER BY random() LIMIT 100";

/// How long after its pause a failed request is remembered.
const FORGET: Duration = Duration::from_secs(600);

/// Looks for the abandoned requests of a session, takes each one over with a lease, calls a handler and records what it
/// returns. Several completers may work on the same session at the same time.
#[derive(Clone)]
pub struct Completer<D: Database> {
    database: D,
    session: String,
    lease: Duration,
    interval: Duration,
    concurrency: usize,
    max_attempts: Option<u32>,
}

/// When a request that failed here is tried again.
struct BackOff {
    failures: u32,
    until: Instant,
}

impl<D: Database> Completer<D> {
    /// For the requests of this session, under keys.
    pub fn new(database: &D, session: impl Into<String>) -> Completer<D> {
        Completer {
            database: database.clone(),
            session: session.into(),
            lease: Duration::from_secs(30),
            interval: Duration::from_secs(1),
            concurrency: 4,
            max_attempts: None,
        }
    }

    /// The length of the leases: 30 seconds. A heartbeat extends a lease while its handler runs.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = length;
        self
    }

    /// How often to look for abandoned requests: every second. It is also the first pause after an error of the
    /// handler; each further error doubles the pause, up to a minute.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How many handlers run at once: 4.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// Ignores requests that were attempted so often. By default only the option `max_attempts` of the session counts,
    /// after which begin records the request as failed.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Runs until `stop` is ready. Then it takes no further request over, and returns when the running handlers have
    /// returned. An error of the database does not end it.
    ///
    /// The handler gets the lease, with the key, the token and the last checkpoint. What it returns is recorded, unless
    /// it has recorded or released itself; [`Final`] is recorded as a failure. After any other error the lease expires,
    /// and the request is taken over again.
    pub async fn run<F, W, R, E>(&self, handler: F, stop: impl Future)
    where
        F: Fn(Arc<Lease<D>>) -> W,
        W: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let mut failed: HashMap<String, BackOff> = HashMap::new();
        let mut running = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let keys = tokio::select! {
                keys = self.abandoned() => keys.unwrap_or_default(),
                _ = &mut stop => break,
            };
            let now = Instant::now();
            failed.retain(|_, back_off| now < back_off.until + FORGET);
            let due = keys.into_iter().filter(|key| failed.get(key).is_none_or(|back_off| back_off.until <= now));
            for key in due.take(self.concurrency - running.len()) {
                if let Ok(Some(lease)) = self.take_over(&key).await {
                    running.spawn(completed(lease.clone(), handler(lease)));
                }
            }
            let full = running.len() == self.concurrency;
            tokio::select! {
                Some(ended) = running.join_next() => self.note(ended, &mut failed),
                () = tokio::time::sleep(self.interval), if !full => {}
                _ = &mut stop => break,
            }
        }
        while running.join_next().await.is_some() {}
    }

    async fn abandoned(&self) -> Result<Vec<String>, Error> {
        let attempts = self.max_attempts.map(|attempts| attempts.to_string());
        let args = [Some(&*self.session), attempts.as_deref()];
        let rows = self.database.ask(self.interval.max(Duration::from_secs(5)), ABANDONED, &args).await?;
        Ok(rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }

    /// None: the request has an outcome by now. An error, such as [`Error::InProgress`]: another process holds it.
    async fn take_over(&self, key: &str) -> Result<Option<Arc<Lease<D>>>, Error> {
        let request = Request::new(&*self.session, key).wait(Duration::ZERO);
        match request.hold_within(&self.database, self.lease, Duration::ZERO).await? {
            Leased::Held(lease) => Ok(Some(lease)),
            Leased::Answered(_) => Ok(None),
        }
    }

    fn note(&self, ended: Result<(String, Result<(), Error>), JoinError>, failed: &mut HashMap<String, BackOff>) {
        match ended {
            Ok((key, Ok(()))) => {
                failed.remove(&key);
            }
            Ok((key, Err(_))) => {
                let failures = failed.get(&key).map_or(0, |back_off| back_off.failures) + 1;
                let pause = self.interval * 2u32.saturating_pow(failures.min(16) - 1);
                let until = Instant::now() + pause.min(Duration::from_secs(60));
                failed.insert(key, BackOff { failures, until });
            }
            // A handler that panics leaves its lease to expire, which is a pause already.
            Err(_) => {}
        }
    }
}

/// Runs a handler, and records what it returns.
async fn completed<D, W, R, E>(lease: Arc<Lease<D>>, work: W) -> (String, Result<(), Error>)
where
    D: Database,
    W: Future<Output = Result<R, E>>,
    R: Serialize,
    E: Into<BoxError>,
{
    let key = lease.key().to_owned();
    let recorded = async {
        let (response, failed) = match lease.guard(work).await? {
            Ok(response) => (serde_json::to_value(response).map_err(|error| Error::Other(error.into()))?, false),
            Err(error) => (error.into().downcast::<Final>().map_err(of_work::<D>)?.0, true),
        };
        if lease.ended().is_err() {
            lease.record(&response, failed).await?;
        }
        Ok(())
    };
    let recorded = recorded.await;
    (key, recorded)
}

/// Completes the abandoned requests of a session, forever: [`Completer::run`] with the default options.
pub async fn complete<D, F, W, R, E>(database: &D, session: &str, handler: F)
where
    D: Database,
    F: Fn(Arc<Lease<D>>) -> W,
    W: Future<Output = Result<R, E>> + Send + 'static,
    R: Serialize + Send + 'static,
    E: Into<BoxError> + Send + 'static,
{
    Completer::new(database, session).run(handler, std::future::pending::<()>()).await
}
