//! The background worker, which runs where the library is preloaded.
//!
//! A launcher starts, for each database and once a naptime, a process that sweeps the database and ends, as
//! autovacuum does. So no connection to a database is held, and new databases are found. These processes exchange
//! what they report on the board (`board.rs`).

mod launcher;
mod visit;

pub use launcher::init;
