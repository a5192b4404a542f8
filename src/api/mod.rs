//! The SQL functions: check arguments for NULL, call what does the work, shape the row. Nothing else.
//!
//! No function is STRICT: a NULL would silently become a NULL answer. `request` is text or bigint with
//! one meaning, so that it does not matter which one a driver hits.

pub mod admin;
pub mod client_sessions;
pub mod former;
pub mod ids;
pub mod internal;
mod null;
pub mod requests;
pub mod standing_sessions;
pub mod ticket;
