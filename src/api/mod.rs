//! The SQL functions. Each checks its arguments for NULL, calls the function that does the work, and shapes the
//! row. They do nothing else.
//!
//! No function is STRICT: that would silently make a NULL answer of a NULL argument. `request` is text, bigint or
//! uuid, with the same meaning, so that it does not matter which of them a driver sends.

#![allow(clippy::too_many_arguments, reason = "an SQL function has as many as its callers need")]

pub mod admin;
mod call;
pub mod client_sessions;
pub mod health;
pub mod ids;
pub mod internal;
pub mod leases;
pub mod looking;
pub mod monitor;
pub mod moving;
mod null;
pub mod repair_sets;
pub mod repairs;
pub mod requests;
pub mod run;
#[cfg(test)]
mod sql_tests;
pub mod standing_sessions;
mod ticket;

/// The schema of the functions that only the extension's own SQL calls. `sql/tables.sql` makes it, so `scripts/schema.sh`
/// leaves out what pgrx would make it by.
#[pgrx::pg_schema]
mod idempotence {}
