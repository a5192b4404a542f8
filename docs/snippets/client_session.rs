//! Delivers messages, five at a time, each of them once. tokio-postgres; arguments: URI [COUNT]
//!
//! setup.sql makes what it needs. Crates: tokio (features macros, rt, sync, time), tokio-postgres
//! (feature with-serde_json-1), serde_json, uuid (feature v7), futures-util.
//!
//! The requests of a client session have numbers, and of each stream the newest replies are kept, as
//! many as the session's window is wide. One rule makes them enough: number n is sent once the answer
//! to n - window is in. Here it is kept by having a lane for each place in the window, which sends its
//! numbers one after the other: 1, 6, 11 …; 2, 7, 12 …; and so on.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::json;
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row, Transaction};
use uuid::Uuid;

const WINDOW: i32 = 5;
const ATTEMPTS_MAX: u32 = 30;

/// Opened when it is needed, given up when it is in doubt.
struct Connection<'a> {
    uri: &'a str,
    client: Option<Client>,
}

/// What ends the program.
type Failure = Box<dyn std::error::Error>;

/// Of a statement.
type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl<'a> Connection<'a> {
    fn new(uri: &'a str) -> Self {
        Self { uri, client: None }
    }

    async fn client(&mut self) -> Result<&mut Client, Error> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                let (client, connection) = tokio_postgres::connect(self.uri, NoTls).await?;
                tokio::spawn(connection);
                client
            }
        };
        Ok(self.client.insert(client))
    }

    /// Asks for one row, in autocommit, until there is an answer.
    async fn query(&mut self, statement: &str, parameters: Parameters<'_>) -> Result<Row, Error> {
        let mut attempt = 0;
        loop {
            let answer = async { self.client().await?.query_one(statement, parameters).await }.await;
            match answer {
                Err(error) => self.after(error, &mut attempt).await?,
                row => return row,
            }
        }
    }

    /// Sends a request until there is an answer.
    async fn deliver(&mut self, request: &Request<'_>) -> Result<Answer, Error> {
        let mut attempt = 0;
        loop {
            let answer = async {
                // Rolls back when it is dropped without a commit.
                let transaction = self.client().await?.transaction().await?;
                let answer = deliver(&transaction, request).await?;
                transaction.commit().await?;
                Ok(answer)
            };
            match answer.await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => pause(&mut attempt).await,
                Err(error) => self.after(error, &mut attempt).await?,
            }
        }
    }

    /// Connection lost, perhaps during COMMIT; serialization failure, deadlock, a wait that ran out: to
    /// be asked again, elsewhere. Anything else is an answer, or a mistake.
    async fn after(&mut self, error: Error, attempt: &mut u32) -> Result<(), Error> {
        let retryable = match error.code() {
            None => true,
            Some(code) => {
                [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE]
                    .contains(code)
                    || code.code().starts_with("08")
                    || code.code().starts_with("57P")
            }
        };
        if !retryable || *attempt >= ATTEMPTS_MAX {
            return Err(error);
        }
        self.client = None;
        pause(attempt).await;
        Ok(())
    }
}

async fn pause(attempt: &mut u32) {
    *attempt += 1;
    tokio::time::sleep(Duration::from_millis(1000.min(25 << (*attempt).min(10)))).await;
}

struct Request<'a> {
    session: &'a str,
    number: i64,
    message: &'a str,
}

struct Answer {
    replayed: bool,
}

/// One transaction: begin, work, record. `None`: another attempt is still at work.
async fn deliver(transaction: &Transaction<'_>, request: &Request<'_>) -> Result<Option<Answer>, Error> {
    let Request { session, number, message } = request;
    // Without a type the number would be taken for text: that is the other way to name a request.
    let ticket = transaction
        .query_one(
            "SELECT status, replayed FROM idem_begin($1, $2::bigint, payload => $3)",
            &[session, number, &json!({"message": message})],
        )
        .await?;
    match ticket.get("status") {
        "started" => {}
        "in_progress" => return Ok(None),
        _ => return Ok(Some(Answer { replayed: ticket.get("replayed") })),
    }

    transaction.execute("INSERT INTO delivery (message) VALUES ($1)", &[message]).await?;

    let response = json!({"delivered": message});
    transaction.query_one("SELECT idem_record($1, $2::bigint, $3)", &[session, number, &response]).await?;
    Ok(Some(Answer { replayed: false }))
}

#[derive(Clone)]
struct Session {
    name: String,
    window: i64,
}

/// What the lanes share: the messages, the session, and what is counted.
struct Sender {
    uri: String,
    messages: RefCell<std::vec::IntoIter<String>>,
    session: Mutex<Option<Session>>,
    delivered: Cell<u32>,
    replayed: Cell<u32>,
    looked_up: Cell<u32>,
    sessions: Cell<u32>,
}

impl Sender {
    /// The session; a new one where there is none, or none but the one that has ended.
    async fn register(&self, ended: Option<&Session>) -> Result<Session, Error> {
        let mut current = self.session.lock().await;
        match &*current {
            Some(session) if ended.is_none_or(|ended| ended.name != session.name) => Ok(session.clone()),
            _ => {
                // Made before the first attempt: the same registration, asked for again, is one.
                let request_id = Uuid::now_v7().to_string();
                let row = Connection::new(&self.uri)
                    .query(
                        "SELECT session, window_size
                         FROM idem_register('courier', window_size => $1, request_id => $2::text::uuid)",
                        &[&WINDOW, &request_id],
                    )
                    .await?;
                count(&self.sessions);
                let session = Session { name: row.get(0), window: row.get::<_, i32>(1).into() };
                Ok(current.insert(session).clone())
            }
        }
    }

    /// Sends a message after the other, under the numbers place, place + window, …
    async fn lane(&self, place: i64) -> Result<(), Failure> {
        let mut connection = Connection::new(&self.uri);
        let (mut session, mut number) = (self.register(None).await?, place);
        while let Some(message) = self.take() {
            loop {
                let request = Request { session: &session.name, number, message: &message };
                match connection.deliver(&request).await {
                    Ok(answer) => {
                        if answer.replayed {
                            count(&self.replayed);
                        }
                        number += session.window;
                        break;
                    }
                    // Silent for too long, or the server crashed before the first outcome. Not ID005:
                    // another process is this client now, and this one has to stop. Not ID012: this is
                    // another server than the session lives on, which cannot know what was done; see nodes.py.
                    Err(error) if is_ended(&error) => {
                        let done = look_up(&mut connection, &session.name, number).await?;
                        (session, number) = (self.register(Some(&session)).await?, place);
                        if done {
                            count(&self.looked_up);
                            break;
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            count(&self.delivered);
        }
        Ok(())
    }

    fn take(&self) -> Option<String> {
        self.messages.borrow_mut().next()
    }
}

/// Whether a request of a session that has ended was done: nothing can be begun in it any more.
async fn look_up(connection: &mut Connection<'_>, session: &str, number: i64) -> Result<bool, Failure> {
    let mut attempt = 0;
    loop {
        let lookup = "SELECT status, point FROM idem_lookup($1, $2::bigint)";
        let ticket = match connection.query(lookup, &[&session, &number]).await {
            Ok(ticket) => ticket,
            // Not even the session is known: it never had an outcome.
            Err(error) if is_ended(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match ticket.get("status") {
            "in_progress" | "not_here" => pause(&mut attempt).await,
            // deliver() makes no checkpoints. A program that does would go on from this one under its new
            // number: the steps before it are done.
            "suspended" => {
                let point: &str = ticket.get("point");
                return Err(format!("number {number} stopped half way, at {point:?}").into());
            }
            status => return Ok(status != "unknown"),
        }
    }
}

fn is_ended(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == "ID004")
}

fn count(counter: &Cell<u32>) {
    counter.set(counter.get() + 1);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let uri = args.next().expect("arguments: URI [COUNT]");
    let count: u32 = args.next().map_or(20, |count| count.parse().expect("COUNT is a number"));
    // A wrong address, login or database is told here, and not retried.
    drop(tokio_postgres::connect(&uri, NoTls).await?);
    let messages: Vec<String> = (1..=count).map(|n| format!("message {n}")).collect();
    let sender = Sender {
        uri,
        messages: RefCell::new(messages.into_iter()),
        session: Mutex::default(),
        delivered: Cell::default(),
        replayed: Cell::default(),
        looked_up: Cell::default(),
        sessions: Cell::default(),
    };
    let lanes = sender.register(None).await?.window;
    try_join_all((1..=lanes).map(|place| sender.lane(place))).await?;
    let session = sender.register(None).await?;
    Connection::new(&sender.uri).query("SELECT idem_close($1)", &[&session.name]).await?;

    println!("delivered {}", sender.delivered.get());
    println!("replayed {}", sender.replayed.get());
    println!("looked up {}", sender.looked_up.get());
    println!("sessions {}", sender.sessions.get());
    Ok(())
}
