//! Connections that take SQL as text and return rows as text.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::time::{Instant, sleep};
use tokio_postgres::error::DbError;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::limits::LIMIT;

/// A connection that takes SQL without parameters. Several statements in one string run in one transaction,
/// unless they begin or end transactions themselves.
pub struct Connection {
    client: tokio_postgres::Client,
}

impl Connection {
    /// Connects.
    pub async fn open(connect_string: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, socket) = tokio_postgres::connect(connect_string, NoTls).await?;
        tokio::spawn(async move {
            // The next call on the connection reports why it ended.
            let _ = socket.await;
        });
        Ok(Self { client })
    }

    /// The rows that the statements return, one per line. `|` separates the columns, and NULL is empty.
    pub async fn text(&self, sql: &str) -> Result<String> {
        self.try_text(sql).await.map_err(describe).with_context(|| sql.to_owned())
    }

    /// The same as [`Connection::text`], with the driver's error.
    pub async fn try_text(&self, sql: &str) -> Result<String, tokio_postgres::Error> {
        let rows = self.client.simple_query(sql).await?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let columns: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or_default()).collect();
                Some(columns.join("|"))
            }
            _ => None,
        });
        // A SELECT without columns, which a test uses for its effect, returns empty rows.
        Ok(rows.filter(|row| !row.is_empty()).collect::<Vec<_>>().join("\n"))
    }

    /// How many rows one statement returns that is prepared first, as drivers do.
    pub async fn prepared(&self, sql: &str) -> Result<usize, tokio_postgres::Error> {
        Ok(self.client.query(sql, &[]).await?.len())
    }

    /// The error of these statements, which must fail.
    pub async fn error(&self, sql: &str) -> Result<DbError> {
        match self.try_text(sql).await {
            Ok(rows) => bail!("{sql}: no error, but {rows:?}"),
            Err(error) => match error.as_db_error() {
                Some(error) => Ok(error.clone()),
                None => Err(describe(error)).with_context(|| sql.to_owned()),
            },
        }
    }

    /// The SQLSTATE of these statements, which must fail. An open transaction is rolled back.
    pub async fn sqlstate(&self, sql: &str) -> Result<String> {
        let error = self.error(sql).await?;
        self.text("ROLLBACK").await?;
        Ok(error.code().code().to_owned())
    }

    /// The id of the backend's process.
    pub async fn pid(&self) -> Result<i32> {
        Ok(self.text("SELECT pg_catalog.pg_backend_pid()").await?.parse()?)
    }

    /// Waits until the server has ended the connection.
    pub async fn wait_for_end(&self) -> Result<()> {
        let start = Instant::now();
        while self.try_text("SELECT").await.is_ok() {
            ensure!(start.elapsed() <= LIMIT, "the connection lives on");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Executes a request in one transaction. The request must be new.
    pub async fn execute(&self, session: &str, key: &str, response: &str) -> Result<()> {
        let sql = format!(
            "BEGIN; SELECT status FROM idem_begin('{session}', '{key}');
             SELECT FROM idem_record('{session}', '{key}', '{response}'); COMMIT"
        );
        let done = self.text(&sql).await;
        if done.is_err() {
            let _ = self.text("ROLLBACK").await;
        }
        let status = done?;
        ensure!(status == "started", "request {key} of session {session} was to be executed: {status}");
        Ok(())
    }

    /// Begins a request that must be replayed. Returns its status and response.
    pub async fn replay(&self, session: &str, key: &str) -> Result<String> {
        let sql = format!("SELECT replayed, status, response FROM idem_begin('{session}', '{key}')");
        let ticket = self.text(&sql).await?;
        let replayed = ticket.strip_prefix("t|").map(str::to_owned);
        replayed.with_context(|| format!("request {key} of session {session} was not replayed: {ticket}"))
    }

    /// The status of a request, by `idem_lookup`.
    pub async fn lookup(&self, session: &str, key: &str) -> Result<String> {
        self.text(&format!("SELECT status FROM idem_lookup('{session}', '{key}')")).await
    }
}

/// An error with the server's message and detail, which the driver's error does not print.
pub fn describe(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(said) => {
            let detail = said.detail().unwrap_or_default();
            anyhow::anyhow!("{} {}: {detail}", said.code().code(), said.message())
        }
        None => error.into(),
    }
}
