//! The demonstration of the `idempotence` extension. Other tests use parts of it too: [`host`], which runs
//! programs; [`server`], a private PostgreSQL server; and [`proxy`], a network that fails on purpose.
//!
//! The rest is best read in this order: [`client`] and [`failure`], the retry loop to copy; [`bank`], the
//! work; [`plan`], how much load there is; [`keyed`] and [`numbered`], the clients that give their requests
//! keys and numbers; [`leased`] and [`settler`], the workers whose effects are outside the database, and who
//! settles what they leave in doubt, with their [`orders`] and the service [`outside`]; [`load`], which starts
//! them; [`chaos`], what goes wrong; [`stats`], what is counted; [`journal`] and [`told`], what the clients and
//! the workers were told; [`evidence`] and [`found`], what the database and the service hold; [`proof`], which
//! compares the two; and [`tables`], what is shown besides.

pub mod bank;
pub mod chaos;
pub mod client;
pub mod evidence;
pub mod failure;
pub mod found;
pub mod host;
pub mod journal;
pub mod keyed;
pub mod leased;
pub mod load;
pub mod numbered;
pub mod orders;
pub mod outside;
pub mod plan;
pub mod proof;
pub mod proxy;
pub mod server;
pub mod settler;
pub mod signals;
pub mod stats;
pub mod tables;
pub mod told;
