//! Requests: what each call on a request does, step by step. `api` has checked the arguments for NULL. Everything else
//! is checked here, beginning with the right to the session.
//!
//! `request.rs` resolves what a caller names: `keyed.rs` and `numbered.rs` are the two kinds. `keyed.rs` requests of a session with a journal have a
//! row there, see `journal/row.rs`; `keeping.rs` hides where things are kept. `find.rs` finds what
//! is kept of a request, `decide.rs` decides by it, and `start.rs` starts the request; `answer.rs` is what begin answers. `held.rs` finds the request that
//! a call completes. `waiting.rs` waits for another
//! holder. The calls are in `begin.rs`, `claim.rs`, `settle.rs`, `finish.rs`
//! (record, checkpoint, release, extend), `lookup.rs` and `once.rs`; `listing.rs` lists a session's outcomes, and
//! `explain/` tells all that is known of a request. Those of admins are in `repair.rs`, `repair_set.rs`
//! (forget and redact by prefix), `import.rs` with `imported.rs`, and `export.rs` with `at_rest.rs`.

pub mod answer;
pub mod at_rest;
pub mod begin;
pub mod claim;
pub mod decide;
pub mod explain;
pub mod export;
pub mod find;
pub mod finish;
pub mod held;
pub mod import;
pub mod imported;
pub mod keeping;
pub mod keyed;
pub mod listing;
pub mod lookup;
pub mod numbered;
pub mod once;
pub mod repair;
pub mod repair_set;
pub mod request;
pub mod settle;
pub mod start;
pub mod waiting;
