//! A Citus cluster of private servers: a coordinator and workers. Each has Citus and our extension, as in production.
//!
//! - [`load`] has clients that go on, whatever happens to the nodes, and proves each answer that they got.
//! - [`kills`] kills nodes and their processes.
//!
//! Only `make test-citus` runs what needs this, on a server that has Citus. `IDEM_PG15_CONFIG` names its pg_config.

pub mod kills;
pub mod load;
mod nodes;

pub use nodes::{Citus, DATABASE, PRELOADED};
