//! What we need of PostgreSQL that pgrx does not offer in a safe form, and all that differs between server versions.
//! Callers name everything here as `pg::…`.

mod attempt;
mod backend;
mod catch;
mod checked;
mod clock;
mod durable;
mod entry;
mod execute;
mod heap;
mod hooks;
mod jsonb;
mod kept;
mod keys;
mod log;
mod memory;
mod own;
mod process;
pub mod raw;
mod role;
mod server;
mod shared;
mod statement;
mod transaction;
mod trusted;
mod values;
mod wait;
mod watched;
#[cfg(not(test))]
mod wrapped;

pub use backend::*;
pub use catch::{Failure, in_transaction, replaced, replacing_error, rolled_back_on};
pub use checked::define_node_guc;
pub use clock::cancel_worker_after;
pub use durable::*;
pub(crate) use entry::c_function;
pub use entry::{Arguments, answered};
pub use execute::{Before, Came, Work, around_command};
pub use heap::*;
pub use hooks::*;
pub use jsonb::*;
pub use kept::{end_uses, forget_commands};
pub use keys::*;
pub use log::*;
pub use memory::{arena_is_in_use, begin_call, check_memory, in_own_memory, init as init_memory, make_sure_of, refill};
pub use own::{Own, finally};
pub use process::*;
pub use role::*;
pub use server::*;
pub use shared::*;
pub use statement::*;
pub use transaction::*;
pub use trusted::*;
pub use values::*;
pub use wait::*;
pub use watched::*;
