//! The errors of the library: every mistake that a caller can make. Each is a variant of [`Error`], and
//! has an SQLSTATE, a message that names the thing, a DETAIL that says what was found, and a HINT that says what to do
//! (`kinds.rs`).

mod kinds;
mod name;
mod raise;

pub use kinds::{Error, Missing, Superseded, Texts, WAIT_BY_SETTING};
pub use name::{RequestName, escaped, legible};
pub use raise::{OWN_SQLSTATES, call_when_raised, or_raise, own_number, unpack};
