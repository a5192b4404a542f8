//! The rules, without a server: no `pg_sys`, no I/O, nothing that can fail but by saying no.

pub mod databases;
pub mod decision;
pub mod fingerprint;
pub mod identity;
pub mod limits;
pub mod liveness;
pub mod pace;
pub mod sequence;
pub mod time_key;
pub mod version;
