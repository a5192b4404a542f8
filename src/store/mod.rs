//! Our tables. Apart from this folder, only the statements of the sweep (`sweep/`) and the views and functions in
//! `sql/` access them.
//!
//! Each table has a module of its own. `rel.rs` opens a table and scans it, `tuple.rs` reads a row, and `write.rs`
//! writes a row. `sql.rs` executes statements where the planner should choose the plan; `inbox.rs` executes its own.
//! `catalog.rs` lists the tables and indexes, `cache.rs` is what a backend remembers of them, and `message.rs` and
//! `invalidation.rs` tell other backends of changes.
//!
//! Nothing here checks a privilege. The caller has checked the right to the session before, see `sessions/resolve.rs`.

pub mod audit;
mod batch;
pub mod blank;
pub mod by_prefix;
pub mod cache;
pub mod catalog;
pub mod checkpoint;
pub mod claimed;
mod client_row;
mod direct;
mod entries;
pub mod exclusive;
mod fresh;
pub mod granted;
pub mod inbox;
pub mod invalidation;
pub mod lease;
pub mod listing;
pub mod locked;
pub mod looks;
pub mod message;
pub mod moving;
pub mod outcome;
mod outcome_columns;
pub mod persistence;
pub mod probe;
pub mod ready;
pub mod rel;
pub mod reply;
pub mod restore;
mod row;
mod scan;
pub mod secret;
pub mod segment;
pub mod session;
pub mod session_live;
mod snapshot;
pub mod sql;
pub mod stream;
pub mod sweep;
pub mod tuple;
mod way;
pub mod witness;
pub mod write;
pub mod written;
