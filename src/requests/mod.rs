//! Requests: what each call on a request does, step by step. Arguments were checked for NULL by `api`; everything
//! else is checked here, the right to the session first.
//!
//! `request.rs` resolves what a caller names: `keyed.rs` and `numbered.rs` are the two kinds. `find.rs` finds what
//! is kept of a request. The calls are `begin.rs`, `finish.rs` (record, checkpoint, release), `lookup.rs`,
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
