//! A server with the library preloaded, whose worker visits no database.

pub use idempotence_cluster_tests::shop::start_unvisited as start;

/// The setting that preloads the library.
pub const PRELOADED: (&str, &str) = ("shared_preload_libraries", "idempotence");
