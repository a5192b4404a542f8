//! The rules, without a server: no `pg_sys`, no I/O, and no failure except a refusal.

pub mod allowance;
pub mod class;
pub mod clock;
pub mod cursor;
pub mod databases_setting;
pub mod decision;
pub mod end;
pub mod final_error;
pub mod fingerprint;
pub mod identity;
pub mod lease;
pub mod limits;
pub mod moments;
pub mod node;
pub mod pace;
pub mod right;
pub mod sequence;
pub mod time_key;
pub mod timeout;
pub mod version;
