//! A client that numbers its requests and has five of them in flight.
//!
//! The rules that come on top of those of [`client`](crate::client):
//!
//! 1. The client registers, and retries that with the same id until it is answered: its session names
//!    it from then on.
//! 2. Number n is sent once the answer to n - window is in. So there is a lane for each place in the
//!    window, which sends its numbers one after the other: 1, 6, 11 …; 2, 7, 12 …; and so on.
//! 3. A client that was started again registers again. Either that fences its former session, in which
//!    nothing can be begun any more; or it resumes that, and sends again what was in flight.
//! 4. A session that has ended (ID004) is gone with all it had in flight: here it can only have been
//!    one without an outcome, lost in a crash.

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
use crate::load::{Dice, Plan, ROLLBACK_RATE, describe};
use crate::stats::{Stats, add};

/// The default of `idempotence.window_size`.
pub const WINDOW: i64 = 5;

/// How long until a process crashes, and how many requests a lane sends until its client closes the
/// session in good order.
const LIFE_MS: std::ops::Range<u64> = 200..3000;
const REQUESTS: std::ops::Range<u32> = 20..100;

pub struct Numbered {
    name: String,
    registrar: Client,
    clients: Vec<Client>,
    lanes: Vec<Lane>,
    session: Option<String>,
    with_keys: bool,
    dice: Dice,
    journal: Arc<Journal>,
    stats: Arc<Stats>,
}

/// How the sending came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All that was to be sent is answered.
    Done,
    /// The process died.
    Crashed,
    /// The session takes nothing more.
    Lost,
}

impl Numbered {
    pub fn new(plan: &Plan, number: u32, journal: &Arc<Journal>, stats: &Arc<Stats>) -> Self {
        let mut dice = Dice::new(plan, plan.workers + number);
        let mut client =
            |rollback_rate| Client::new(plan.config.clone(), dice.fork().rng, stats.clone(), rollback_rate);
        Self {
            name: format!("numbered-{}", number + 1),
            registrar: client(0.0),
            clients: (0..WINDOW).map(|_| client(ROLLBACK_RATE)).collect(),
            lanes: Vec::new(),
            session: None,
            with_keys: plan.with_keys,
            dice,
            journal: journal.clone(),
            stats: stats.clone(),
        }
    }

    /// Registers, sends, and then closes or crashes, until told to stop; its last session stays at work.
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
                End::Lost => self.session = None,
            }
            resume = self.dice.rng.random_bool(0.5);
        }
    }

    /// What a process does first; false if it is told to stop before it has its session.
    async fn start(&mut self, resume: bool, stop: &watch::Receiver<bool>) -> bool {
        let session = match self.with_keys {
            true => match self.register(resume, stop).await {
                Some(session) => session,
                None => return false,
            },
            false => Uuid::now_v7().to_string(),
        };
        match self.session.replace(session.clone()) {
            // Resumed: the lanes send again what was in flight.
            Some(former) if former == session => add(&self.stats.resumed),
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
            match self.registrar.ask(register, parameters).await {
                Ok(row) => {
                    add(&self.stats.registered);
                    return Some(row.get("session"));
                }
                // A transaction of the former process is still open, or the server is away.
                Err(Unanswered::Unknown) => {}
                Err(Unanswered::Refused(failure)) => {
                    self.journal.refused(describe(&failure));
                    return None;
                }
            }
        }
        None
    }

    /// A new request of the former process, on its way all the time: must be refused, and must have no
    /// effect. Nobody has asked for it.
    async fn send_late(&mut self, former: &str) {
        let transfer = Transfer::with_number(former, WINDOW, self.dice.work());
        match self.registrar.submit(&transfer, self.dice.manner(), ATTEMPTS_MAX).await {
            Ok(_) => self.journal.late(false),
            // Fenced; or it had no outcome, and was lost in a crash.
            Err(Unanswered::Refused(failure)) => {
                self.journal.late(matches!(failure.sqlstate(), Some("ID005" | "ID004")));
            }
            Err(Unanswered::Unknown) => {}
        }
    }

    /// Lets all lanes send at once, until they are done or the process dies.
    async fn send(&mut self, stop: &watch::Receiver<bool>) -> End {
        let session = self.session.clone().unwrap_or_default();
        let requests = self.dice.rng.random_range(REQUESTS);
        let life = Duration::from_millis(self.dice.rng.random_range(LIFE_MS));
        let sent = self.lanes.iter_mut().zip(&mut self.clients).map(|(lane, client)| {
            let (journal, stats) = (&*self.journal, &*self.stats);
            let mut sender = Sender { session: &session, lane, client, dice: self.dice.fork(), journal, stats };
            async move { sender.send(requests, stop).await }
        });
        tokio::select! {
            ends = join_all(sent) => if ends.contains(&End::Lost) { End::Lost } else { End::Done },
            () = sleep(life) => End::Crashed,
        }
    }

    /// Forgets nothing but its connections: what it was asked for is written down elsewhere.
    fn crash(&mut self) {
        add(&self.stats.crashed);
        self.registrar.hang_up();
        self.clients.iter_mut().for_each(Client::hang_up);
    }

    async fn close(&mut self) {
        let Some(session) = self.session.take().filter(|_| self.with_keys) else {
            return;
        };
        match self.registrar.ask("SELECT idem_close($1)", &[(&session, Type::TEXT)]).await {
            // True, or false where an earlier attempt's answer got lost.
            Ok(_) => add(&self.stats.closed),
            // The next registration will fence it, if it is still there.
            Err(Unanswered::Unknown) => {}
            Err(Unanswered::Refused(failure)) => self.journal.refused(describe(&failure)),
        }
    }
}

/// One place in the window.
struct Lane {
    next: i64,
    /// Sent, and not answered yet.
    in_flight: Option<Transfer>,
    /// The one answered last, and the one before, whose place it took.
    answered: Option<Transfer>,
    discarded: Option<Transfer>,
}

impl From<i64> for Lane {
    fn from(place: i64) -> Self {
        Self { next: place, in_flight: None, answered: None, discarded: None }
    }
}

/// What sends on a lane.
struct Sender<'a> {
    session: &'a str,
    lane: &'a mut Lane,
    client: &'a mut Client,
    dice: Dice,
    journal: &'a Journal,
    stats: &'a Stats,
}

impl Sender<'_> {
    /// Sends so many requests, one after the other.
    async fn send(&mut self, requests: u32, stop: &watch::Receiver<bool>) -> End {
        for _ in 0..requests {
            if *stop.borrow() {
                return End::Done;
            }
            if !self.send_next().await {
                return End::Lost;
            }
            match self.dice.rng.random_range(0..100) {
                0 => self.send_discarded().await,
                1..=3 => self.send_answered().await,
                _ => {}
            }
        }
        End::Done
    }

    /// The next number, or the one that is in flight; false if the session takes nothing more.
    async fn send_next(&mut self) -> bool {
        let transfer = self.lane.in_flight.get_or_insert_with(|| {
            let transfer = Transfer::with_number(self.session, self.lane.next, self.dice.work());
            self.journal.asked(&transfer);
            add(&self.stats.requests);
            transfer
        });
        let start = Instant::now();
        match self.client.submit(transfer, self.dice.manner(), ATTEMPTS_MAX).await {
            Ok(answer) => {
                self.journal.answered(transfer, answer);
                self.stats.answered_after(start.elapsed());
                self.lane.next += WINDOW;
                self.lane.discarded = self.lane.answered.take();
                self.lane.answered = self.lane.in_flight.take();
                true
            }
            // It stays in flight: no other may take its place before there is an answer.
            Err(Unanswered::Unknown) => true,
            Err(Unanswered::Refused(failure)) => {
                match failure.sqlstate() {
                    Some("ID004") => self.journal.lost(self.session),
                    _ => self.journal.refused(describe(&failure)),
                }
                false
            }
        }
    }

    /// The newest of its place: must be answered as before.
    async fn send_answered(&mut self) {
        let Some(transfer) = &self.lane.answered else {
            return;
        };
        add(&self.stats.revisits);
        match self.client.submit(transfer, self.dice.manner(), ATTEMPTS_MAX).await {
            Ok(answer) => self.journal.answered(transfer, answer),
            Err(Unanswered::Refused(failure)) if failure.sqlstate() == Some("ID004") => self.journal.lost(self.session),
            Err(Unanswered::Refused(failure)) => self.journal.refused(describe(&failure)),
            Err(Unanswered::Unknown) => {}
        }
    }

    /// One whose place another has taken: must be refused, and must have no effect.
    async fn send_discarded(&mut self) {
        let Some(transfer) = &self.lane.discarded else {
            return;
        };
        match self.client.submit(transfer, self.dice.manner(), ATTEMPTS_MAX).await {
            Ok(_) => self.journal.discarded(false),
            Err(Unanswered::Refused(failure)) => self.journal.discarded(failure.sqlstate() == Some("ID003")),
            Err(Unanswered::Unknown) => {}
        }
    }
}
