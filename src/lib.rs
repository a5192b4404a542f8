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

extension_sql_file!("../sql/tables.sql", bootstrap);
extension_sql_file!("../sql/run.sql", name = "run");
extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = [retention, up_since, forget_cached, note_restored, stats, errors, held_requests]
);
extension_sql_file!("../sql/sweep.sql", name = "sweep", requires = [sweep_step, note_sweep]);
extension_sql_file!("../sql/holders.sql", name = "holders", requires = ["views", legible]);
extension_sql_file!("../sql/segments.sql", name = "segments", requires = ["holders"]);
extension_sql_file!("../sql/unfinished.sql", name = "unfinished", requires = ["segments", setting]);
extension_sql_file!(
    "../sql/checks.sql",
    name = "checks",
    requires = [
        "unfinished",
        naptime,
        max_sessions_per_role,
        launcher,
        is_visited,
        last_sweep,
        swept_instead,
        legible,
        table_columns,
        setting,
        milliseconds,
        restarts,
        deadlocks,
        clock_jump,
        clock_jump_by,
        lock_table_size,
        free_space,
        visits,
        databases,
        digest_fits,
        coordinator,
        idem_node
    ]
);
extension_sql_file!("../sql/health.sql", name = "health", requires = ["checks", setting, look_whether_ready]);
extension_sql_file!("../sql/grants.sql", name = "grants", requires = ["views", "sweep", "health", note_grant]);
extension_sql_file!("../sql/comments.sql", name = "comments", finalize);

/// Called when the library is loaded, by the postmaster or by a backend.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::init_memory();
    pg::init_trusted();
    error::init();
    guc::init();
    monitor::init();
    transaction::init();
    store::invalidation::init();
    worker::init();
}
