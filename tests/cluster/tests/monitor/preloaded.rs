//! A server with the library preloaded, whose worker visits no database.

use anyhow::Result;
use idempotence_cluster_tests::{Cluster, Version, shop};

/// The setting that preloads the library.
pub const PRELOADED: (&str, &str) = ("shared_preload_libraries", "idempotence");

/// Starts such a server, with the database of the shop.
pub fn start(version: Version) -> Result<Cluster> {
    shop::start_with(version, &[PRELOADED, ("idempotence.databases", "")])
}
