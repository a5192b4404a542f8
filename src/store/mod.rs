//! Our tables: nothing else reads or writes them, except the statements of the sweep (`sweep/`).
//!
//! Each table has a room of its own. `rel.rs` opens a table and scans it, `tuple.rs` reads a row, `write.rs` writes
//! one, and `sql.rs` executes statements where the planner should choose. `catalog.rs` lists the tables and
//! indexes, `cache.rs` says what a backend remembers, and `message.rs` and `invalidation.rs` how backends tell each
//! other of changes.
//!
//! Nothing here checks a privilege. Whoever calls in here has checked the right to the session before, see
//! `sessions/resolve.rs`.

pub mod audit;
pub mod cache;
pub mod catalog;
pub mod checkpoint;
mod client_row;
pub mod exclusive;
pub mod inbox;
pub mod invalidation;
pub mod message;
pub mod outcome;
pub mod outcome_long;
pub mod probe;
pub mod rel;
pub mod reply;
pub mod restore;
pub mod secret;
pub mod segment;
pub mod session;
pub mod session_live;
pub mod sql;
pub mod stream;
pub mod sweep;
pub mod tuple;
mod update;
mod way;
pub mod write;
