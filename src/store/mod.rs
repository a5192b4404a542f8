//! The only code that touches our tables: one file per table.
//!
//! Tables are read and written through PostgreSQL's own catalog access (`systable_*`,
//! `CatalogTuple*`), which serves any table that has neither triggers nor constraints beyond its
//! indexes. No ACL is checked on this way: whoever calls in here has checked the right to the session
//! before (see `session::check_owner`).

pub mod audit;
pub mod cache;
pub mod checkpoint;
pub mod client;
pub mod due;
pub mod inbox;
pub mod live;
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
