//! A client that numbers its requests and has five of them in flight.
//!
//! These rules come on top of the rules of [`client`](crate::client):
//!
//! 1. The client registers, and retries the registration with the same id until it is answered. From
//!    then on its session identifies the client.
//! 2. The client sends number n only after it has the answer to number n - window. So there is a lane
//!    for each place in the window, which sends its numbers one after the other: 1, 6, 11 …; 2, 7, 12 …;
//!    and so on.
//! 3. After a restart, the client registers again. Either the registration fences the former session, in
//!    which no request can begin any more; or it resumes the former session, and the client sends again
//!    what was in flight.
//! 4. A session that has ended (ID004) is gone, with everything that was in flight in it. In this
//!    demonstration, only a session without an outcome can end in this way: a crash has lost it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::bank::Transfer;
use crate::client::{ATTEMPTS_MAX, Client, Parameters, Unanswered};
use crate::journal::Journal;
use crate::plan::{Choices, Plan, ROLLBACK_RATE};
use crate::stats::{Stats, increment};

/// The default of `idempotence.window_size`.
pub const WINDOW: i64 = 5;

/// The time after which a process crashes.
const CRASH_AFTER_MS: std::ops::Range<u64> = 200..3000;
/// The number of requests that each lane sends before the client closes its session in good order.
const REQUESTS_PER_LANE: std::ops::Range<u32> = 20..100;

pub struct NumberedClient {
    name: String,
    /// Sends everything but the requests of the lanes.
    registrar: Client,
    /// One client for each lane.
    clients: Vec<Client>,
    lanes: Vec<Lane>,
    session: Option<String>,
    with_keys: bool,
    choices: Choices,
    journal: Arc<Journal>,
    stats: Arc<Stats>,
}

/// Why a process stops sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has sent everything that it was to send.
    Done,
    /// It crashed.
    Crashed,
    /// The session accepts no more requests.
    SessionLost,
}

impl NumberedClient {
    pub fn new(plan: &Plan, number: u32, journal: &Arc<Journal>, stats: &Arc<Stats>) -> Self {
        let mut choices = Choices::new(plan, plan.keyed_clients + number);
        let mut client =
            |rollback_rate| Client::new(plan.config.clone(), choices.fork().rng, stats.clone(), rollback_rate);
        Self {
            name: format!("numbered-{}", number + 1),
            registrar: client(0.0),
            clients: (0..WINDOW).map(|_| client(ROLLBACK_RATE)).collect(),
            lanes: Vec::new(),
            session: None,
            with_keys: plan.with_keys,
            choices,
            journal: journal.clone(),
            stats: stats.clone(),
        }
    }

    /// Again and again registers, sends, and then closes its session or crashes, until told to stop. The
    /// last session stays open.
    pub async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut resume = false;
        while !*stop.borrow() && self.start(resume, &stop).await {
            let end = self.send(&stop).await;
            if *stop.borrow() {
                return;
            }
            match end {
                End::Done => self.close().await,
                End::Crashed => self.crash(),
                End::SessionLost => self.session = None,
            }
            resume = self.choices.rng.random_bool(0.5);
        }
    }

    /// Registers a session, or resumes the former session, as a process does first. Returns false if the
    /// client is told to stop, or is refused, before it has its session.
    async fn start(&mut self, resume: bool, stop: &watch::Receiver<bool>) -> bool {
        let session = match self.with_keys {
            true => match self.register(resume, stop).await {
                Some(session) => session,
                None => return false,
            },
            false => Uuid::now_v7().to_string(),
        };
        match self.session.replace(session.clone()) {
            // The session is resumed: the lanes send again what was in flight.
            Some(former) if former == session => increment(&self.stats.resumed),
            former => {
                self.lanes = (1..=WINDOW).map(Lane::from).collect();
                if let Some(former) = former.filter(|_| self.with_keys) {
                    self.send_late(&former).await;
                }
            }
        }
        true
    }

    async fn register(&mut self, resume: bool, stop: &watch::Receiver<bool>) -> Option<String> {
        let id = Uuid::now_v7().to_string();
        while !*stop.borrow() {
            let register =
                "SELECT session FROM idem_register($1, resume => $2, request_id => $3::uuid, wait => '300 ms')";
            let parameters: Parameters<'_> = &[(&self.name, Type::TEXT), (&resume, Type::BOOL), (&id, Type::TEXT)];
            match self.registrar.query_one(register, parameters).await {
                Ok(row) => {
                    increment(&self.stats.registered);
                    return Some(row.get("session"));
                }
                // A transaction of the former process is still open, or the server is down.
                Err(Unanswered::Unknown) => {}
                Err(Unanswered::Refused(failure)) => {
                    self.journal.refused(failure.to_string());
                    return None;
                }
            }
        }
        None
    }

    /// Sends a new request in the name of the former process, as if it had been delayed on its way. It
    /// must be refused and must have no effect, so the journal does not count it as asked for.
    async fn send_late(&mut self, former: &str) {
        let transfer = Transfer::with_number(former, WINDOW, self.choices.work());
        match self.registrar.submit(&transfer, self.choices.send_options(), ATTEMPTS_MAX).await {
            Ok(_) => self.journal.late(false),
            // The former session is fenced; or it had no outcome, and a crash has lost it.
            Err(Unanswered::Refused(failure)) => {
                self.journal.late(matches!(failure.sqlstate(), Some("ID005" | "ID004")));
            }
            Err(Unanswered::Unknown) => {}
        }
    }

    /// Lets all lanes send at the same time, until they are done or the process crashes.
    async fn send(&mut self, stop: &watch::Receiver<bool>) -> End {
        let session = self.session.clone().unwrap_or_default();
        let requests = self.choices.rng.random_range(REQUESTS_PER_LANE);
        let crash_after = Duration::from_millis(self.choices.rng.random_range(CRASH_AFTER_MS));
        let sent = self.lanes.iter_mut().zip(&mut self.clients).map(|(lane, client)| {
            let (journal, stats) = (&*self.journal, &*self.stats);
            let mut sender = Sender { session: &session, lane, client, choices: self.choices.fork(), journal, stats };
            async move { sender.send(requests, stop).await }
        });
        tokio::select! {
            ends = join_all(sent) => if ends.contains(&End::SessionLost) { End::SessionLost } else { End::Done },
            () = sleep(crash_after) => End::Crashed,
        }
    }

    /// Loses the connections and nothing else: an application keeps its requests in durable storage.
    fn crash(&mut self) {
        increment(&self.stats.crashed);
        self.registrar.disconnect();
        self.clients.iter_mut().for_each(Client::disconnect);
    }

    async fn close(&mut self) {
        let Some(session) = self.session.take().filter(|_| self.with_keys) else {
            return;
        };
        match self.registrar.query_one("SELECT idem_close($1)", &[(&session, Type::TEXT)]).await {
            // The statement gives true, or false if an earlier attempt closed the session and its answer was lost.
            Ok(_) => increment(&self.stats.closed),
            // If the session is still open, the next registration will fence it.
            Err(Unanswered::Unknown) => {}
            Err(Unanswered::Refused(failure)) => self.journal.refused(failure.to_string()),
        }
    }
}

/// One place in the window.
struct Lane {
    next: i64,
    /// The request that was sent and is not answered yet.
    in_flight: Option<Transfer>,
    /// The last request that was answered.
    answered: Option<Transfer>,
    /// The request before, whose answer made way for the last answer.
    discarded: Option<Transfer>,
}

impl From<i64> for Lane {
    fn from(place: i64) -> Self {
        Self { next: place, in_flight: None, answered: None, discarded: None }
    }
}

/// Sends the requests of one lane.
struct Sender<'a> {
    session: &'a str,
    lane: &'a mut Lane,
    client: &'a mut Client,
    choices: Choices,
    journal: &'a Journal,
    stats: &'a Stats,
}

impl Sender<'_> {
    /// Sends this number of requests, one after the other.
    async fn send(&mut self, requests: u32, stop: &watch::Receiver<bool>) -> End {
        for _ in 0..requests {
            if *stop.borrow() {
                return End::Done;
            }
            if !self.send_next().await {
                return End::SessionLost;
            }
            match self.choices.rng.random_range(0..100) {
                0 => self.send_discarded().await,
                1..=3 => self.send_answered().await,
                _ => {}
            }
        }
        End::Done
    }

    /// Sends the request that is in flight, or else the next number. Returns false if the session accepts
    /// no more requests.
    async fn send_next(&mut self) -> bool {
        let transfer = self.lane.in_flight.get_or_insert_with(|| {
            let transfer = Transfer::with_number(self.session, self.lane.next, self.choices.work());
            self.journal.asked(&transfer);
            increment(&self.stats.requests);
            transfer
        });
        let start = Instant::now();
        match self.client.submit(transfer, self.choices.send_options(), ATTEMPTS_MAX).await {
            Ok(answer) => {
                self.journal.answered(transfer, answer);
                self.stats.answered_after(start.elapsed());
                self.lane.next += WINDOW;
                self.lane.discarded = self.lane.answered.take();
                self.lane.answered = self.lane.in_flight.take();
                true
            }
            // The request stays in flight: no other number may take its place before it is answered.
            Err(Unanswered::Unknown) => true,
            Err(Unanswered::Refused(failure)) => {
                match failure.sqlstate() {
                    Some("ID004") => self.journal.lost(self.session),
                    _ => self.journal.refused(failure.to_string()),
                }
                false
            }
        }
    }

    /// Sends the last answered request again. Its answer must be the same as before.
    async fn send_answered(&mut self) {
        let Some(transfer) = &self.lane.answered else {
            return;
        };
        increment(&self.stats.revisits);
        match self.client.submit(transfer, self.choices.send_options(), ATTEMPTS_MAX).await {
            Ok(answer) => self.journal.answered(transfer, answer),
            Err(Unanswered::Refused(failure)) if failure.sqlstate() == Some("ID004") => self.journal.lost(self.session),
            Err(Unanswered::Refused(failure)) => self.journal.refused(failure.to_string()),
            Err(Unanswered::Unknown) => {}
        }
    }

    /// Sends a request again whose place a later number has taken. It must be refused and must have no
    /// effect.
    async fn send_discarded(&mut self) {
        let Some(transfer) = &self.lane.discarded else {
            return;
        };
        match self.client.submit(transfer, self.choices.send_options(), ATTEMPTS_MAX).await {
            Ok(_) => self.journal.discarded(false),
            Err(Unanswered::Refused(failure)) => self.journal.discarded(failure.sqlstate() == Some("ID003")),
            Err(Unanswered::Unknown) => {}
        }
    }
}
