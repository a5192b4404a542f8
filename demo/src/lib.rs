//! The demonstration of the `idempotence` extension. Other tests use parts of it too: [`host`], which runs
//! programs; [`server`], a private PostgreSQL server; and [`proxy`], a network that fails on purpose.
//!
//! The rest is best read in this order: [`client`] and [`failure`], the retry loop to copy; [`bank`], the
//! work; [`plan`], how much load there is; [`keyed`] and [`numbered`], the clients that give their requests
//! keys and numbers; [`load`], which starts them; [`chaos`], what goes wrong; [`stats`], what is counted;
//! [`journal`], what the clients were told; [`evidence`], what the database holds; and [`proof`], which
//! compares the two.

pub mod bank;
pub mod chaos;
pub mod client;
pub mod evidence;
pub mod failure;
pub mod host;
pub mod journal;
pub mod keyed;
pub mod load;
pub mod numbered;
pub mod plan;
pub mod proof;
pub mod proxy;
pub mod server;
pub mod stats;
