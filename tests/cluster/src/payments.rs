//! Requests as an application sends them: half of them are a transaction of several statements, half a lone SELECT
//! that does everything, `idem_run`. So what stands between client and server has to send both to the right place.

use anyhow::Result;
use rand::RngExt;

use crate::connection::Connection;
use crate::driver::{Attempt, Work};

/// The name of the session.
pub const SESSION: &str = "payments";

/// The work.
pub struct Payments;

impl Payments {
    /// Creates the session and the table of effects, for a role that may use both.
    pub async fn create(superuser: &Connection, role: &str) -> Result<()> {
        let create = format!(
            "SELECT idem_grant('{role}'); SELECT idem_create_session('{SESSION}', owner => '{role}');
             CREATE TABLE effect (key text NOT NULL, attempt text NOT NULL); GRANT ALL ON effect TO {role}"
        );
        superuser.text(&create).await.map(drop)
    }

    /// Whether the request is a lone SELECT. All attempts at a request agree.
    fn is_lone(attempt: &Attempt) -> bool {
        attempt.key.bytes().last().is_some_and(|last| last.is_ascii_digit())
    }
}

impl Work for Payments {
    fn node(&self, ways: usize) -> usize {
        rand::rng().random_range(0..ways)
    }

    fn opening(&self, attempt: &Attempt) -> Option<&'static str> {
        (!Self::is_lone(attempt)).then_some("BEGIN")
    }

    fn begin(&self, attempt: &Attempt) -> String {
        let Attempt { key, name } = attempt;
        if Self::is_lone(attempt) {
            format!(
                "SELECT status, response ->> 'attempt' FROM idem_run('{SESSION}', '{key}',
                 $$INSERT INTO effect VALUES ('{key}', '{name}') RETURNING jsonb_build_object('attempt', attempt)$$)"
            )
        } else {
            format!("SELECT status, response ->> 'attempt' FROM idem_begin('{SESSION}', '{key}')")
        }
    }

    fn execute(&self, Attempt { key, name }: &Attempt) -> Vec<String> {
        vec![
            format!("INSERT INTO effect VALUES ('{key}', '{name}')"),
            format!("SELECT FROM idem_record('{SESSION}', '{key}', '{{\"attempt\": \"{name}\"}}')"),
            "COMMIT".into(),
        ]
    }

    fn effects(&self) -> String {
        "SELECT key, attempt FROM effect".into()
    }

    fn effects_each(&self) -> usize {
        1
    }

    fn outcomes(&self, keys: &str) -> String {
        format!(
            "SELECT key, status, response ->> 'attempt' FROM unnest({keys}) key, LATERAL idem_lookup('{SESSION}', key)"
        )
    }
}
