//! A Citus cluster of private servers: a coordinator and workers. Each has Citus and our extension, as in production.
//!
//! - [`kills`] kills nodes and their processes.
//!
//! Only `make test-citus` runs what needs this, on a server that has Citus. `IDEM_PG18_CONFIG` names its pg_config.

pub mod kills;
mod nodes;

pub use nodes::{Citus, DATABASE, PRELOADED};
