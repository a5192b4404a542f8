//! A layer for axum: a route below it executes a request with an Idempotency-Key once, and sends its answer after
//! COMMIT.
//!
//! [`Idempotent`] is the layer. A handler takes [`Conn`] as an argument, and fails with a [`Failure`].

mod answer;
mod body;
mod extract;
mod failure;
mod handler;
mod identity;
mod leased;
mod options;
mod protected;
mod service;
mod unprotected;

pub use crate::conn::Conn;
pub use failure::Failure;
pub use handler::Handler;
pub use identity::Principal;
pub use options::Idempotent;
pub use service::Protected;
