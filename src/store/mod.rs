//! The only code that touches our tables: one file per table.
//!
//! Tables are scanned by direct access (`systable_*`, see `rel.rs`) and written directly or by SQL (see
//! `write.rs`). No ACL is checked on this way: whoever calls in here has checked the right to the session
//! before (see `session::Right`).

pub mod audit;
pub mod cache;
pub mod checkpoint;
pub mod client;
pub mod due;
pub mod inbox;
pub mod live;
pub mod long;
pub mod look;
pub mod message;
pub mod orphans;
pub mod outcome;
pub mod part;
pub mod rel;
pub mod reply;
pub mod restored;
pub mod ring;
pub mod secret;
pub mod segment;
pub mod session;
pub mod sql;
pub mod stream;
pub mod swept;
pub mod tombstones;
pub mod tuple;
mod update;
mod write;

pub use write::{as_ours, is_ours};
