//! A server with one database that has the extension: what most tests start with.

use anyhow::Result;

use crate::cluster::Cluster;
use crate::version::Version;

/// The name of the database.
pub const DATABASE: &str = "shop";

/// Starts a server with the database.
pub fn start(version: Version) -> Result<Cluster> {
    start_with(version, &[])
}

/// Starts a server with these settings and with the database.
pub fn start_with(version: Version, settings: &[(&str, &str)]) -> Result<Cluster> {
    with_database(Cluster::start_with(version, settings)?)
}

/// Starts a server with the database and with the background worker, which visits it every second.
pub fn start_preloaded(version: Version) -> Result<Cluster> {
    with_database(Cluster::start_preloaded(version)?)
}

/// Starts a server with the database and with counters. The background worker never visits it.
pub fn start_unvisited(version: Version) -> Result<Cluster> {
    start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.databases", "")])
}

fn with_database(server: Cluster) -> Result<Cluster> {
    server.create_database(DATABASE)?;
    Ok(server)
}
