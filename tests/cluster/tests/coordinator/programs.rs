//! Programs whose transactions have an effect elsewhere, and keep here in some way that it has happened.

use anyhow::Result;
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection};
use tokio_postgres::Error;

/// What the transaction writes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// The outcome of a request with a key.
    Outcome,
    /// The reply to a numbered request.
    Reply,
    /// An entry of an inbox.
    Entry,
    /// A checkpoint.
    Checkpoint,
    /// The outcome of a request that an earlier transaction has begun with a lease.
    Leased,
}

impl Keeps {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Outcome, Self::Reply, Self::Entry, Self::Checkpoint, Self::Leased];
}

/// The client session of [`Keeps::Reply`].
pub struct Sessions {
    client: String,
}

/// Makes the sessions.
pub async fn create(server: &Cluster) -> Result<Sessions> {
    server
        .psql(DATABASE, "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true)")?;
    let connection = server.connect(DATABASE).await?;
    let client = connection.register("timeout => '1 day', window_size => 1000").await?;
    // This saves the session, so that it outlives a crash.
    connection.text(&format!("SELECT idem_ack('{client}', 1, 'another stream')")).await?;
    Ok(Sessions { client })
}

impl Sessions {
    /// Attempts the request of this number once. Its effect elsewhere has the name `effect`.
    pub async fn attempt(
        &self,
        connection: &Connection,
        keeps: Keeps,
        number: usize,
        effect: &str,
    ) -> Result<(), Error> {
        let (session, request) = match keeps {
            Keeps::Reply => (self.client.as_str(), number.to_string()),
            _ => ("payments", format!("'{effect}'")),
        };
        let begin = format!("SELECT status, point, token FROM idem_begin('{session}', {request}");
        let record = format!("SELECT FROM idem_record('{session}', {request}, '1'");
        let (new, write) = match keeps {
            Keeps::Outcome | Keeps::Reply => {
                let begun = connection.try_text(&format!("BEGIN; {begin})")).await?;
                (begun.starts_with("started"), format!("{record})"))
            }
            Keeps::Entry => {
                let fresh = connection.try_text(&format!("BEGIN; SELECT idem_once('mails', '{effect}')")).await?;
                (fresh == "t", String::new())
            }
            Keeps::Checkpoint => {
                let begun = connection.try_text(&format!("BEGIN; {begin})")).await?;
                if begun == "started|paid|" {
                    connection.try_text(&format!("{record})")).await?;
                }
                let checkpoint = format!("SELECT FROM idem_checkpoint('{session}', {request}, 'paid', '1')");
                (begun == "started||", checkpoint)
            }
            Keeps::Leased => {
                let begun = connection.try_text(&format!("{begin}, lease => '300 ms', wait => '1 min')")).await?;
                let token = begun.rsplit_once('|').map_or("", |(_, token)| token);
                connection.try_text("BEGIN").await?;
                // The holder of the lease has died.
                let is_ours = begun.starts_with("started") || begun.starts_with("taken_over");
                (is_ours, format!("{record}, token => {token})"))
            }
        };
        if new {
            // The effect comes last. A module that the effect loads registers after all that was done here.
            connection.try_text(&format!("{write}; SELECT elsewhere('{effect}')")).await?;
        }
        connection.try_text("COMMIT").await.map(drop)
    }
}
