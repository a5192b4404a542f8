//! What a client can do, and how a client says it in SQL.

use idempotence_cluster_tests::client::id_of;

use super::stream::{Kind, Range, STREAMS};

/// The timeout of each session. Silence counts only when the server has been up for 9/8 of the timeout.
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
    /// Makes the session silent for longer than its timeout.
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
    /// `answer` is the status and the response, as a replay returns them.
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

/// The names that an episode of steps uses.
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
                id_of(&names.sessions[*session])
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
