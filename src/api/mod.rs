//! The SQL functions. Each checks its arguments for NULL, calls the function that does the work, and shapes the
//! row. They do nothing else.
//!
//! No function is STRICT: that would silently make a NULL answer of a NULL argument. `request` is text, bigint or
//! uuid, with the same meaning, so that it does not matter which of them a driver sends.

#![allow(clippy::too_many_arguments, reason = "an SQL function has as many as its callers need")]
#![allow(clippy::result_large_err, reason = "pgrx takes an error as it is, and once")]

mod call;
pub mod ids;
pub mod internal;
pub mod monitor;
pub mod moving;
pub mod repairs;
pub mod requests;
pub mod run;
pub mod sessions;
#[cfg(test)]
mod sql_tests;

/// The schema of the functions that only the extension's own SQL calls. `sql/tables.sql` makes it, so `scripts/schema.sh`
/// leaves out what pgrx would make it by.
#[pgrx::pg_schema]
mod idempotence {}
