//! A client that numbers its requests in a session of its own. It keeps the sending rule: number n is sent after the
//! answer to n - window has arrived.

use crate::conn::Conn;
use crate::database::{Database, Row};
use crate::request::{Answer, Request, refs, seconds};
use crate::retry::{Retry, retrying};
use crate::{BoxError, Error};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

const REGISTER: &str = "SELECT session::text, window_size::text FROM idem_register($1::text,
    window_size => $2::text::integer, timeout => $3::text::interval, request_id => $4::text::uuid)";
const SETTLE: &str = "SELECT status::text FROM idem_settle($1::text, $2::text)";
const CLOSE: &str = "SELECT 'closed'::text FROM idem_close($1::text)";

/// One slot of the window. It sends its numbers one after the other: 1, 6, 11 … in a window of 5.
#[derive(Default)]
struct Lane {
    place: u64,
    session: Arc<str>,
    number: u64,
    /// Whether the outcome of the number is unknown.
    doubt: bool,
}

#[derive(Clone)]
struct Session {
    name: Arc<str>,
    window: u64,
}

/// Registers under a name, which fences the earlier client of that name (ID005), and sends numbered requests, up to
/// `window` at once. When its session has ended, it looks back at what was executed there and registers anew.
pub struct Client<D: Database> {
    database: D,
    name: String,
    window: Option<u32>,
    timeout: Option<Duration>,
    deadline: Duration,
    session: tokio::sync::Mutex<Option<Session>>,
    // Used in turn, so that the numbers are sent in order.
    lanes: Mutex<Option<VecDeque<Lane>>>,
    free: Semaphore,
}

/// A lane in use. It is returned when it is dropped.
struct Taken<'a, D: Database> {
    client: &'a Client<D>,
    lane: Lane,
}

impl<D: Database> Drop for Taken<'_, D> {
    fn drop(&mut self) {
        let mut lanes = self.client.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.get_or_insert_default().push_back(std::mem::take(&mut self.lane));
        self.client.free.add_permits(1);
    }
}

impl<D: Database> Client<D> {
    /// `window`: how many requests may be in flight, by default the server's setting. Registers at the first request.
    pub fn new(database: &D, name: impl Into<String>, window: Option<u32>) -> Client<D> {
        Client {
            database: database.clone(),
            name: name.into(),
            window,
            timeout: None,
            deadline: Duration::from_secs(30),
            session: tokio::sync::Mutex::default(),
            lanes: Mutex::default(),
            free: Semaphore::new(0),
        }
    }

    /// The longest silence after which the session is still valid; by default the server's setting.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long to try again: 30 seconds. After that the outcome is unknown, and the same request sent again would be
    /// another request.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    async fn ask(&self, sql: &'static str, args: &[Option<String>]) -> Result<Row, Error> {
        let mut retry = Retry::new(self.deadline, self.deadline);
        let args = refs(args);
        let rows = retrying!(retry, self.database.ask(retry.left(), sql, &args).await)?;
        Ok(rows.into_iter().next().unwrap_or_default())
    }

    /// The session. Registers a new one if there is none, or if the session `ended` is the current one.
    async fn registered(&self, ended: Option<&str>) -> Result<Session, Error> {
        let mut session = self.session.lock().await;
        if let Some(session) = &*session
            && ended != Some(&*session.name)
        {
            return Ok(session.clone());
        }
        // Generated before the first attempt, so that a repeated registration is the same one. The database generates
        // it, because its timestamp orders two registrations.
        let id = self.ask("SELECT idem_generate_id()::text", &[]).await?.pop().flatten();
        let window = self.window.map(|window| window.to_string());
        let row = self.ask(REGISTER, &[Some(self.name.clone()), window, self.timeout.map(seconds), id]).await?;
        let [Some(name), Some(window)] = &row[..] else {
            return Err(Error::Other("idem_register returned no session".into()));
        };
        let window = window.parse::<u64>().map_err(|error| Error::Other(BoxError::from(error)))?;
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.is_none() {
            *lanes = Some((1..=window).map(|place| Lane { place, ..Lane::default() }).collect());
            self.free.add_permits(window as usize);
        }
        Ok(session.insert(Session { name: (&**name).into(), window }).clone())
    }

    /// Executes a request once, under the next number: as [`Request::run`]. Waits while `window` others are in flight.
    pub async fn send<F, W, R, E>(&self, payload: &(impl Serialize + ?Sized), mut work: F) -> Result<Answer, Error>
    where
        F: FnMut(Conn<D>) -> W,
        W: Future<Output = Result<R, E>>,
        R: Serialize,
        E: Into<BoxError>,
    {
        let mut session = self.registered(None).await?;
        let mut taken = self.taken().await;
        let lane = &mut taken.lane;
        if lane.doubt {
            self.decide(lane, session.window).await?;
        }
        loop {
            if lane.session != session.name {
                (lane.session, lane.number) = (session.name.clone(), lane.place);
            }
            let request = Request::new(&*lane.session, lane.number).payload(payload).deadline(self.deadline);
            lane.doubt = true;
            match request.run(&self.database, &mut work).await {
                Ok(answer) => {
                    (lane.number, lane.doubt) = (lane.number + session.window, false);
                    return Ok(answer);
                }
                Err(error) if error.has("ID004") => {
                    let found = self.look_back(&request).await?;
                    lane.doubt = false;
                    session = self.registered(Some(&lane.session)).await?;
                    if let Some(answer) = found {
                        return Ok(answer);
                    }
                }
                Err(error) => {
                    // After a final error everything is rolled back, and the number is unused.
                    lane.doubt = error.is_retryable();
                    return Err(error);
                }
            }
        }
    }

    async fn taken(&self) -> Taken<'_, D> {
        self.free.acquire().await.expect("it is never closed").forget();
        let lane = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(VecDeque::pop_front);
        Taken { client: self, lane: lane.expect("there is a lane for each permit") }
    }

    /// Settles the number, whether it was executed or not: no late copy can take effect under it.
    async fn decide(&self, lane: &mut Lane, window: u64) -> Result<(), Error> {
        let key = lane.number.to_string();
        match self.ask(SETTLE, &[Some(lane.session.to_string()), Some(key.clone())]).await {
            Ok(row) if row.first() == Some(&Some("in_progress".into())) => {
                return Err(Error::InProgress { key, expires_at: None });
            }
            Err(error) if !error.has("ID004") => return Err(error),
            // Settled, or its session has ended.
            _ => (lane.number, lane.doubt) = (lane.number + window, false),
        }
        Ok(())
    }

    /// The outcome of a number of a session that has ended, in which nothing can be begun. None: it was not executed.
    async fn look_back(&self, request: &Request) -> Result<Option<Answer>, Error> {
        let mut retry = Retry::new(self.deadline, self.deadline);
        retrying!(retry, self.looked_back(request, retry.left()).await)
    }

    async fn looked_back(&self, request: &Request, left: Duration) -> Result<Option<Answer>, Error> {
        let ticket = match request.look(&self.database, left).await {
            // The session itself is unknown, so it never had an outcome.
            Err(error) if error.has("ID004") => return Ok(None),
            found => found?,
        };
        match &*ticket.status {
            "in_progress" | "not_here" => {
                Err(Error::InProgress { key: request.key.clone(), expires_at: ticket.expires_at })
            }
            "suspended" => Err(request.interrupted(&ticket)),
            _ => Ok(ticket.answer().map(|answer| Answer { replayed: true, ..answer })),
        }
    }

    /// Ends the session, which otherwise lasts until its timeout.
    pub async fn close(&self) -> Result<(), Error> {
        let session = self.session.lock().await.take();
        if let Some(session) = session {
            self.ask(CLOSE, &[Some(session.name.to_string())]).await?;
        }
        Ok(())
    }
}
