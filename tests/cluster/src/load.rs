//! What clients under load have in common: isolation levels, counters, and the disturbance of their backends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt;
use tokio::time::sleep;

use crate::cluster::Cluster;

/// The isolation levels of a transaction.
pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Adds one to a counter.
pub fn count(what: &AtomicUsize) {
    what.fetch_add(1, Relaxed);
}

/// Checks that none of these counters is zero.
pub fn check_happened(kinds: &[(&str, &AtomicUsize)]) -> Result<()> {
    for (what, count) in kinds {
        ensure!(count.load(Relaxed) > 0, "there was no {what}");
    }
    Ok(())
}

/// Locks a mutex, even if another task panicked while it held the mutex.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills backends of an application at random and cancels their statements, until `finished` is set. Half
/// of the time it prefers a backend that waits for a lock.
pub async fn disturb(cluster: &Cluster, database: &str, application: &str, finished: &AtomicBool) -> Result<()> {
    let connection = cluster.connect(database).await?;
    while !finished.load(Relaxed) {
        let kills = rand::rng().random_bool(0.1);
        let (function, state) =
            if kills { ("pg_terminate_backend", "idle in transaction") } else { ("pg_cancel_backend", "active") };
        let waits = rand::rng().random_bool(0.5);
        let disturb = format!(
            "SELECT {function}(pid) FROM (SELECT pid FROM pg_stat_activity
             WHERE application_name = '{application}' AND state IN ('active', '{state}')
             ORDER BY {waits} AND wait_event_type = 'Lock' DESC NULLS LAST, random() LIMIT 1) a"
        );
        connection.text(&disturb).await?;
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
