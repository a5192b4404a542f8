//! `idempotence`: a retried request takes effect once and is answered the same way every time.
//!
//! `docs/design.md` has the map of the modules and the glossary, `docs/reference.md` the words that callers use. A module
//! uses the modules below it on that map and none above it.

use pgrx::prelude::*;

pub mod api;
pub mod arguments;
pub mod board;
pub mod domain;
pub mod error;
pub mod guc;
pub mod journal;
pub mod lock;
pub mod model;
pub mod monitor;
pub mod names;
pub mod open;
pub mod pg;
pub mod requests;
pub mod sessions;
pub mod store;
pub mod sweep;
pub mod transaction;
pub mod wake;
pub mod worker;

pgrx::pg_module_magic!(name, version);

// The other scripts in sql/ come after the functions, see scripts/schema.sh.
extension_sql_file!("../sql/tables.sql", bootstrap);

/// Called when the library is loaded, by the postmaster or by a backend.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::refill();
    pg::init_trusted();
    guc::init();
    monitor::init();
    transaction::init();
    store::invalidation::init();
    worker::init();
}
