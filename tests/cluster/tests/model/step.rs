//! What a client can do, chosen at random but for its likelihood, and how it is said in SQL.

use super::memory::{Memory, STREAMS};
use super::stream::{Kind, Range};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Of each session: silence counts only once the server has been up for that long and an eighth more.
pub const TIMEOUT_S: u32 = 6;

/// A step of one connection.
#[derive(Clone, Debug)]
pub enum Step {
    Begin,
    Commit,
    Rollback,
    Savepoint,
    ReleaseSavepoint,
    RollbackTo,
    Register {
        client: Option<usize>,
        resume: bool,
        request_id: Option<usize>,
        kind: Kind,
    },
    Close {
        session: usize,
    },
    /// Nothing is heard of the session for longer than its timeout.
    Silence {
        session: usize,
    },
    Call {
        session: usize,
        call: Call,
    },
}

/// A call that names a session.
#[derive(Clone, Debug)]
pub enum Call {
    Begin {
        stream: usize,
        range: Range,
        payload: Option<i64>,
        said: i64,
    },
    /// The answer is status and response, as it will be replayed.
    Record {
        stream: usize,
        first: i64,
        answer: String,
    },
    Checkpoint {
        stream: usize,
        first: i64,
        point: String,
    },
    Release {
        stream: usize,
        first: i64,
    },
    Lookup {
        stream: usize,
        number: i64,
    },
    Position {
        stream: usize,
    },
    Heartbeat,
    Ack {
        stream: usize,
        upto: i64,
    },
    Allocate {
        stream: usize,
        count: i64,
    },
}

/// The names that an episode uses.
pub struct Names {
    pub sessions: Vec<String>,
    pub request_ids: Vec<String>,
    pub episode: usize,
}

impl Step {
    pub fn sql(&self, names: &Names) -> String {
        match self {
            Step::Begin => "BEGIN".into(),
            Step::Commit => "COMMIT".into(),
            Step::Rollback => "ROLLBACK".into(),
            Step::Savepoint => "SAVEPOINT s".into(),
            Step::ReleaseSavepoint => "RELEASE s".into(),
            Step::RollbackTo => "ROLLBACK TO s".into(),
            Step::Register { client, resume, request_id, kind } => {
                let client = client.map_or("NULL".into(), |client| format!("'{} {client}'", names.episode));
                let request_id = request_id.map_or("NULL".into(), |id| format!("'{}'", names.request_ids[id]));
                let ordering = if kind.strict { "strict" } else { "any" };
                format!(
                    "SELECT resumed, session, next_number FROM idem_register(client => {client}, resume => {resume},
                     request_id => {request_id}, window_size => {}, ordering => '{ordering}', timeout => '{TIMEOUT_S} s')",
                    kind.window
                )
            }
            Step::Close { session } => format!("SELECT idem_close('{}')", names.sessions[*session]),
            Step::Silence { session } => format!(
                "UPDATE idempotence.session_live SET last_seen = '-infinity' WHERE id = '{}'",
                names.sessions[*session]
            ),
            Step::Call { session, call } => call.sql(&names.sessions[*session]),
        }
    }
}

impl Call {
    fn sql(&self, session: &str) -> String {
        let named = |stream: &usize| format!("stream => '{}'", STREAMS[*stream]);
        match self {
            Call::Begin { stream, range: (first, last), payload, said } => {
                let mut sql =
                    format!("SELECT status, response, point FROM idem_begin('{session}', {first}, {}", named(stream));
                if first != last {
                    sql += &format!(", last => {last}");
                }
                if let Some(payload) = payload {
                    sql += &format!(", payload => '{payload}'");
                }
                if *said > 0 {
                    sql += &format!(", ack => {said}");
                }
                sql + ")"
            }
            Call::Record { stream, first, answer } => {
                let (status, response) = answer.split_once('|').unwrap_or_default();
                let failed = status == "failed";
                format!(
                    "SELECT FROM idem_record('{session}', {first}, '{response}', failed => {failed}, {})",
                    named(stream)
                )
            }
            Call::Checkpoint { stream, first, point } => {
                format!("SELECT FROM idem_checkpoint('{session}', {first}, '{point}', {})", named(stream))
            }
            Call::Release { stream, first } => {
                format!("SELECT FROM idem_release('{session}', {first}, {})", named(stream))
            }
            Call::Lookup { stream, number } => {
                format!("SELECT status, response, point FROM idem_lookup('{session}', {number}, {})", named(stream))
            }
            Call::Position { stream } => format!("SELECT * FROM idem_position('{session}', {})", named(stream)),
            Call::Heartbeat => format!("SELECT idem_heartbeat('{session}') > clock_timestamp()"),
            Call::Ack { stream, upto } => format!("SELECT FROM idem_ack('{session}', {upto}, {})", named(stream)),
            Call::Allocate { stream, count } => {
                format!("SELECT idem_allocate('{session}', {count}, {})", named(stream))
            }
        }
    }
}

/// Chooses what a connection does next.
pub fn choose(rng: &mut StdRng, memory: &Memory, by: usize, serial: usize) -> Step {
    if memory.sessions.is_empty() {
        return register(rng);
    }
    // Mostly one that takes requests.
    let session = match memory.alive().choose(rng) {
        Some(alive) if rng.random_bool(0.9) => *alive,
        _ => rng.random_range(0..memory.sessions.len()),
    };
    let roll = rng.random_range(0..100);
    if !memory.in_transaction(by) {
        return match roll {
            0..60 => Step::Begin,
            60..65 => register(rng),
            65..66 if memory.sessions.len() > 1 => Step::Close { session },
            66..68 if memory.is_idle(session) => Step::Silence { session },
            _ => Step::Call { session, call: call(rng, memory, by, session, serial) },
        };
    }
    match roll {
        0..14 if memory.may_commit(by) => Step::Commit,
        14 => Step::Commit,
        15 => Step::Rollback,
        16..22 => Step::Savepoint,
        22..24 if memory.has_savepoint(by) => Step::RollbackTo,
        24..26 if memory.has_savepoint(by) => Step::ReleaseSavepoint,
        26..60 => match memory.open_requests(by).choose(rng) {
            Some(&(session, stream, first)) => Step::Call { session, call: go_on(rng, stream, first, serial) },
            None => Step::Call { session, call: begin(rng, memory, by, session) },
        },
        60..85 => Step::Call { session, call: begin(rng, memory, by, session) },
        _ => Step::Call { session, call: call(rng, memory, by, session, serial) },
    }
}

fn register(rng: &mut StdRng) -> Step {
    Step::Register {
        client: rng.random_bool(0.7).then(|| rng.random_range(0..2)),
        resume: rng.random_bool(0.3),
        request_id: rng.random_bool(0.4).then(|| rng.random_range(0..3)),
        kind: Kind { strict: rng.random_bool(0.5), window: rng.random_range(1..5) },
    }
}

/// What becomes of a request that was begun.
fn go_on(rng: &mut StdRng, stream: usize, first: i64, serial: usize) -> Call {
    match rng.random_range(0..20) {
        0 => Call::Ack { stream, upto: first },
        3 => Call::Release { stream, first },
        1 | 2 | 4 | 5 => Call::Checkpoint { stream, first, point: format!("p{serial}") },
        _ => {
            let status = if rng.random_bool(0.8) { "succeeded" } else { "failed" };
            Call::Record { stream, first, answer: format!("{status}|{serial}") }
        }
    }
}

fn begin(rng: &mut StdRng, memory: &Memory, by: usize, session: usize) -> Call {
    let stream = usize::from(rng.random_bool(0.2));
    let view = memory.stream(by, session, stream);
    let kind = memory.sessions[session].kind;
    let range = match view.done.choose(rng) {
        Some(done) if rng.random_bool(0.35) => done.range,
        _ => {
            let first = near(rng, memory, by, session, stream).max(1);
            (first, if kind.strict { first + rng.random_range(0..3) } else { first })
        }
    };
    let payload = rng.random_bool(0.5).then(|| if rng.random_bool(0.8) { range.0 } else { -1 });
    let said = if rng.random_bool(0.1) { near(rng, memory, by, session, stream) } else { 0 };
    Call::Begin { stream, range, payload, said }
}

/// Any other call, or one of these out of place.
fn call(rng: &mut StdRng, memory: &Memory, by: usize, session: usize, serial: usize) -> Call {
    let stream = usize::from(rng.random_bool(0.2));
    let number = near(rng, memory, by, session, stream);
    match rng.random_range(0..14) {
        0..3 => {
            let half_way = memory.stream(by, session, stream).checkpoints.into_keys().filter(|_| rng.random_bool(0.5));
            Call::Lookup { stream, number: half_way.max().unwrap_or(number.max(1)) }
        }
        3..5 => Call::Position { stream },
        5 => Call::Heartbeat,
        6..8 => Call::Ack { stream, upto: number.saturating_sub(rng.random_range(0..3)).max(0) },
        8 | 9 if !memory.sessions[session].kind.strict => Call::Allocate { stream, count: rng.random_range(1..4) },
        10 => go_on(rng, stream, number.max(1), serial),
        _ => begin(rng, memory, by, session),
    }
}

/// A number about where the stream is; the next one, often.
fn near(rng: &mut StdRng, memory: &Memory, by: usize, session: usize, stream: usize) -> i64 {
    let kind = memory.sessions[session].kind;
    let stream = memory.stream(by, session, stream);
    let next = stream.done.iter().map(|done| done.range.1).max().unwrap_or(0).max(stream.acked) + 1;
    if rng.random_bool(0.5) {
        return next;
    }
    rng.random_range((next - 2 * kind.window - 2).max(0)..next + kind.window + 2)
}
