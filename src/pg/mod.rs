//! What we need of PostgreSQL that pgrx does not offer in a safe form, and all that differs between server versions.
//! Callers name everything here as `pg::…`.

mod around;
mod attempt;
mod backend;
mod checked;
mod command;
mod condition;
mod durable;
mod execute;
mod filled;
mod heap;
mod hooks;
mod jsonb;
mod kept;
mod keys;
mod listed;
mod loaded;
mod log;
mod memory;
mod process;
pub mod raw;
mod role;
mod scratch;
mod server;
mod shared;
mod transaction;
mod values;
mod wait;
#[cfg(not(test))]
mod wrapped;

pub use around::*;
pub use backend::*;
pub use checked::{define_checked_guc, read_configuration};
pub use command::{columns_of, outside_of_script};
pub use condition::{Conditions, Prepared};
pub use durable::*;
pub use execute::{Command, Order};
pub use filled::{Filled, RowStore, Shape};
pub use heap::*;
pub use hooks::*;
pub use jsonb::*;
pub use kept::end_uses;
pub use keys::*;
pub use listed::Listed;
pub use loaded::*;
pub use log::*;
pub use memory::{arena_is_in_use, begin_call, check_memory, in_own_memory, init as init_memory, make_sure_of, refill};
pub use process::*;
pub use role::*;
pub use scratch::TextRoom;
pub use server::*;
pub use shared::*;
pub use transaction::*;
pub use values::*;
pub use wait::*;
