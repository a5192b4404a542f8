//! Sessions. `resolve.rs` finds the session that a name means and checks who may use it. `standing.rs` makes, changes
//! and drops standing sessions. The rest is the life of a client session: a client registers it (`register.rs`), signs
//! of life keep it alive (`liveness.rs`), its first outcome makes it durable (`save.rs`), and its client acknowledges
//! and allocates numbers and closes it (`calls.rs`).
//!
//! Requests use sessions, never the reverse.

pub mod calls;
pub mod giving_up;
pub mod liveness;
pub mod quota;
pub mod register;
pub mod resolve;
pub mod save;
pub mod standing;
