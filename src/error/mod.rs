//! Every mistake a caller can make: one variant (`kinds.rs`), one SQLSTATE, a message that names the thing, a DETAIL
//! with what was found and a HINT that says what to do (`text.rs`).

mod kinds;
mod name;
mod raise;
mod text;

pub use kinds::{Error, Missing};
pub use name::RequestName;
pub use raise::{init, or_raise};

/// The hint where only the setting bounds the wait.
pub const WAIT_BY_SETTING: &str = "Try again as it is, or wait longer (setting idempotence.wait).";
