//! Sessions: which session a name means and who may use it (`resolve.rs`), making and changing standing sessions
//! (`standing.rs`), and the life of a client session: it registers (`register.rs`), stays alive by signs of life
//! (`liveness.rs`), becomes durable with its first outcome (`save.rs`), acknowledges and allocates numbers and
//! is closed (`client.rs`).
//!
//! Requests use sessions, never the reverse.

pub mod client;
pub mod find;
pub mod giving_up;
pub mod liveness;
pub mod position;
pub mod quota;
pub mod register;
pub mod resolve;
pub mod save;
pub mod standing;
