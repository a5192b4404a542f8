//! Requests: what each call on a request does, step by step. `api` has checked the arguments for NULL. Everything else
//! is checked here, beginning with the right to the session.
//!
//! `request.rs` resolves what a caller names: `keyed.rs` and `numbered.rs` are the two kinds. `find.rs` finds what
//! is kept of a request. The calls are in `begin.rs`, `finish.rs` (record, checkpoint, release), `lookup.rs`,
//! `once.rs` and `repair.rs`.

pub mod begin;
pub mod find;
pub mod finish;
pub mod keyed;
pub mod lookup;
pub mod numbered;
pub mod once;
pub mod repair;
pub mod request;
