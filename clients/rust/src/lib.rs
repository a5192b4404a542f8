#![doc = include_str!("../README.md")]
// Without a driver much is left for one that is given from outside.
#![cfg_attr(not(any(feature = "sqlx", feature = "tokio-postgres")), allow(dead_code))]

#[cfg(feature = "axum")]
pub mod axum;
mod check;
mod client;
mod database;
mod error;
#[cfg(feature = "axum")]
mod http;
mod lease;
mod run;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

pub use check::{Check, check};
pub use client::Client;
pub use database::{Ask, Conn, Database, Row, Sent, Transaction};
pub use error::{BoxError, Error, Final};
pub use lease::{Lease, Leased};
pub use run::{Answer, Request, Ticket, once, run};
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres::Tx as TokioPostgresTx;
