//! The server that the clients work on, their connections, and the proof that each request took effect once.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::limits::PATIENCE;
use idempotence_cluster_tests::{Cluster, Connection, Version};
use tokio_postgres::error::SqlState;

const SCHEMA: &str = "
    SELECT idem_create_session('work');
    SELECT idem_create_session('inbox', inbox => true);
    CREATE TABLE effect (key text NOT NULL, client int NOT NULL);";

/// The application name of the clients, for a connection that watches or disturbs them.
pub const WORKER: &str = "worker";

pub async fn start(version: Version) -> Result<Cluster> {
    let cluster = Cluster::start(version)?;
    cluster.create_database("work")?;
    cluster.psql("work", SCHEMA)?;
    Ok(cluster)
}

pub async fn worker(cluster: &Cluster) -> Result<Connection> {
    let connection = cluster.reconnect("work").await?;
    let settings = format!("SET application_name = '{WORKER}'; SET idempotence.wait = '{PATIENCE}'");
    connection.text(&settings).await?;
    Ok(connection)
}

pub async fn workers(cluster: &Cluster, count: usize) -> Result<Vec<Connection>> {
    try_join_all((0..count).map(|_| worker(cluster))).await
}

/// The SQLSTATE of an error, or `None` if the connection is gone.
pub fn sqlstate(error: &tokio_postgres::Error) -> Option<&str> {
    // 57P01: an administrator has ended the connection. The server says so and then closes it.
    error.code().map(SqlState::code).filter(|state| *state != "57P01")
}

/// The rows of a query, each split at the first `|`, which separates the columns.
pub fn rows(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(|row| row.split_once('|').unwrap_or((row, "")))
}

/// Checks that each effect has its outcome, that each outcome has its effect, and that this number of
/// requests took effect. Returns which client executed each request.
pub async fn each_took_effect_once(cluster: &Cluster, keys: usize) -> Result<HashMap<String, String>> {
    let connection = cluster.connect("work").await?;
    let twice = connection.text("SELECT key FROM effect GROUP BY key HAVING count(*) > 1").await?;
    ensure!(twice.is_empty(), "executed more than once:\n{twice}");
    let effects = "SELECT key, client FROM effect";
    let outcomes = "SELECT request, (response #>> '{}')::int FROM idempotence.outcomes WHERE session = 'work'";
    let lost = connection.text(&format!("{effects} EXCEPT {outcomes}")).await?;
    ensure!(lost.is_empty(), "effects without their outcome:\n{lost}");
    let empty = connection.text(&format!("{outcomes} EXCEPT {effects}")).await?;
    ensure!(empty.is_empty(), "outcomes without their effect:\n{empty}");
    let executed = connection.text(effects).await?;
    let executed: HashMap<String, String> = rows(&executed).map(|(key, by)| (key.into(), by.into())).collect();
    ensure!(executed.len() == keys, "{} of {keys} requests took effect", executed.len());
    Ok(executed)
}
