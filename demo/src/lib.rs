//! The demonstration of the `idempotence` extension, and the parts of it that other tests of real
//! servers use too: [`server`], a private PostgreSQL server, and [`proxy`], a network that fails
//! on purpose.
//!
//! To be read in this order: [`client`], the retry loop to copy; [`bank`], the work; [`load`], who
//! asks for what; [`chaos`], what goes wrong; [`journal`], what the clients were told; [`proof`],
//! how that is held against what the database holds.

pub mod bank;
pub mod chaos;
pub mod client;
mod host;
pub mod journal;
pub mod load;
pub mod proof;
pub mod proxy;
pub mod server;
pub mod stats;
