//! What a client does with its session, one method for each call. In a client session, a number takes the
//! place of a key. So [`Connection::execute`], [`Connection::replay`] and [`Connection::lookup`] also work
//! for numbered requests.

use anyhow::{Result, ensure};
use tokio::time::{Duration, Instant, sleep};

use crate::connection::Connection;
use crate::limits::LIMIT;

/// The time when the server came up, as SQL. The server starts the walwriter at that moment.
pub const UP: &str = "(SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'walwriter')";

/// The id of a client session: what stands before the `@` in its name.
pub fn id_of(session: &str) -> &str {
    session.split_once('@').map_or(session, |(id, _)| id)
}

/// A query that counts those of these sessions that are at work.
pub fn at_work(sessions: &[&str]) -> String {
    let ids: Vec<&str> = sessions.iter().map(|session| id_of(session)).collect();
    format!("SELECT count(*) FROM idempotence.session_live WHERE id IN ('{}')", ids.join("','"))
}

impl Connection {
    /// Registers a client of this name whose session has this timeout. Returns the session.
    pub async fn register_client(&self, client: &str, timeout: &str) -> Result<String> {
        self.register(&format!("'{client}', timeout => '{timeout}'")).await
    }

    /// Registers with these arguments, which are SQL. Returns the session.
    pub async fn register(&self, arguments: &str) -> Result<String> {
        self.text(&format!("SELECT session FROM idem_register({arguments})")).await
    }

    /// The answer to a begin: status and response, or the SQLSTATE. The begin is rolled back. `request` is
    /// SQL: the arguments after the session.
    pub async fn answer(&self, session: &str, request: &str) -> Result<String> {
        let begin = format!("BEGIN; SELECT status, response FROM idem_begin('{session}', {request}); ROLLBACK");
        self.outcome_of(&begin).await
    }

    /// The rows that the statements return, or the SQLSTATE of their error.
    pub async fn outcome_of(&self, sql: &str) -> Result<String> {
        match self.try_text(sql).await {
            Ok(rows) => Ok(rows),
            Err(error) => {
                let Some(state) = error.code().map(|state| state.code().to_owned()) else { return Err(error.into()) };
                self.text("ROLLBACK").await?;
                Ok(state)
            }
        }
    }

    /// Executes a request that has a range of numbers.
    pub async fn execute_range(&self, session: &str, first: i64, last: i64, response: &str) -> Result<()> {
        let sql = format!(
            "BEGIN; SELECT status FROM idem_begin('{session}', {first}, last => {last});
             SELECT FROM idem_record('{session}', {first}, '{response}'); COMMIT"
        );
        let status = self.text(&sql).await?;
        ensure!(status == "started", "requests {first} to {last} of session {session} were to be executed: {status}");
        Ok(())
    }

    /// Makes a session look silent for longer than its timeout. Only a superuser can do this. The time in
    /// which the server was down does not count, so the server must have been up for the timeout: the
    /// method waits for that. It is quick for a session with a short timeout.
    pub async fn silence(&self, session: &str) -> Result<()> {
        let id = id_of(session);
        let silence = format!("UPDATE idempotence.session_live SET last_seen = '-infinity' WHERE id = '{id}'");
        self.text(&silence).await?;
        let is_past = format!(
            "SELECT clock_timestamp() > {UP} + 1.125 * timeout FROM idempotence.session_live WHERE id = '{id}'"
        );
        let start = Instant::now();
        while self.text(&is_past).await? == "f" {
            ensure!(start.elapsed() <= LIMIT, "the server has not been up for the timeout of {session}");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// Two saved sessions with a timeout of 2 seconds, to be watched after a crash. Each has executed request 1.
pub struct Brief {
    silent: String,
    alive: String,
}

impl Brief {
    /// Registers the two sessions.
    pub async fn register(superuser: &Connection) -> Result<Self> {
        let mut sessions = [String::new(), String::new()];
        for session in &mut sessions {
            *session = superuser.register("timeout => '2 s'").await?;
            superuser.execute(session, "1", "1").await?;
        }
        let [silent, alive] = sessions;
        Ok(Self { silent, alive })
    }

    /// Waits until the silent session has ended.
    pub async fn wait_for_end(&self, connection: &Connection) -> Result<()> {
        let start = Instant::now();
        while connection.answer(&self.silent, "2").await? != "ID004" {
            ensure!(start.elapsed() <= LIMIT, "a silent session does not end");
        }
        Ok(())
    }

    /// Checks that both sessions have a full timeout from the time when the server came up, and no more. The
    /// silent session begins a request, without a commit, until it is refused. The other session gives signs
    /// of life.
    pub async fn check_full_timeout(&self, superuser: &Connection) -> Result<()> {
        let Self { silent, alive } = self;
        // A replay is a read: it does not put the session back to work.
        ensure!(superuser.replay(alive, "1").await? == "succeeded|1");
        let seen = |what: &str| format!("SELECT {what} FROM idempotence.sessions WHERE session = '{alive}'");
        ensure!(superuser.text(&seen("saved, ended IS NULL, last_seen IS NULL")).await? == "t|t|t");
        let start = Instant::now();
        while superuser.answer(silent, "2").await? != "ID004" {
            superuser.text(&format!("SELECT idem_heartbeat('{alive}')")).await?;
            ensure!(start.elapsed() <= LIMIT, "a restored session does not end");
        }
        let past = superuser.text(&format!("SELECT clock_timestamp() >= {UP} + '2 s'::interval")).await?;
        ensure!(past == "t", "a restored session ended before its timeout");
        let seen = seen(&format!("last_seen > {UP}, expires_at = last_seen + '2 s'::interval"));
        ensure!(superuser.text(&seen).await? == "t|t");
        superuser.execute(alive, "2", "2").await
    }
}
