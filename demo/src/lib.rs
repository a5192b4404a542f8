//! The demonstration of the `idempotence` extension, and the parts of it that other tests of real
//! servers use too: [`server`], a private PostgreSQL server, and [`proxy`], a network that fails
//! on purpose.
//!
//! To be read in this order: [`client`], the retry loop to copy; [`bank`], the work; [`load`], who
//! asks for what; [`numbered`], a client that numbers its requests; [`chaos`], what goes wrong;
//! [`journal`], what the clients were told; [`evidence`], what the database holds; [`proof`], how the one
//! is held against the other.

pub mod bank;
pub mod chaos;
pub mod client;
pub mod evidence;
pub mod host;
pub mod journal;
pub mod load;
pub mod numbered;
pub mod proof;
pub mod proxy;
pub mod server;
pub mod stats;
