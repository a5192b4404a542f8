#![doc = include_str!("../README.md")]
// Without a driver much is left for one that is given from outside.
#![cfg_attr(not(any(feature = "sqlx", feature = "tokio-postgres")), allow(dead_code))]

#[cfg(feature = "axum")]
pub mod axum;
mod check;
mod client;
mod completer;
mod conn;
mod database;
mod error;
#[cfg(feature = "axum")]
mod http;
mod lease;
mod request;
mod retry;
mod run;
mod sql;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;
mod transaction;

pub use check::{Check, check};
pub use client::Client;
pub use completer::{Completer, complete};
pub use conn::Conn;
pub use database::{Ask, Connection, Database, Exclusive, Row, Sent};
pub use error::{BoxError, Cause, Error, Final};
pub use lease::{Lease, Leased};
pub use request::{Answer, Request, Ticket};
pub use run::{once, run};
#[cfg(feature = "sqlx")]
pub use sqlx::Connection as SqlxConnection;
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres::Connection as TokioPostgresConnection;
