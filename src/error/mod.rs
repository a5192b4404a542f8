//! The errors of the library: every mistake that a caller can make. Each is a variant of [`Error`] (`kinds.rs`). Each
//! has an SQLSTATE, a message that names the thing, a DETAIL that says what was found, and a HINT that says what to do
//! (`text.rs`).

mod kinds;
mod name;
mod raise;
mod text;

pub use kinds::{Error, Missing, NotExecuted, Superseded};
pub use name::RequestName;
pub use raise::{Noted, OWN_SQLSTATES, Told, call_when_raised, init, or_raise, unpack};
pub use text::WAIT_BY_SETTING;
