//! The background worker, which runs where the library is preloaded.
//!
//! A launcher starts, for each database and once a naptime, a process that sweeps the database and ends, as
//! autovacuum does. So no connection to a database is held, and new databases are found. These processes exchange
//! what they report on the board (`board.rs`).

use crate::board;
use crate::pg;
use crate::store::blank;
use crate::wake;
use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use std::time::Duration;

mod launcher;
mod visit;

/// How long after a failure of its own the launcher is started again. After a crash of the server the launcher
/// comes back together with the server.
const RESTART: Duration = Duration::from_secs(5);

/// Reserves the board and registers the launcher, while the postmaster preloads the library.
pub fn init() {
    if !pg::is_preloading() {
        return;
    }
    board::init();
    wake::init();
    blank::init();
    BackgroundWorkerBuilder::new("idempotence launcher")
        .set_library("idempotence")
        .set_function("idempotence_launcher")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(RESTART))
        .load();
}
