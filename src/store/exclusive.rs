//! The locks that TRUNCATE takes, taken without waiting. Whoever waited for them would make others wait behind.

use crate::pg;
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::rel;
use pgrx::pg_sys;

/// How often the locks of a segment are asked for in one step, and how long the pauses are. Look-ups
/// hold the tables for microseconds each, but there may be many of them.
const TRIES: u32 = 50;
const PAUSE_US: i64 = 2_000;

/// Takes what TRUNCATE takes, without waiting: all of it or nothing.
pub fn lock_alone(table: Table) -> bool {
    for attempt in 0..TRIES {
        if attempt > 0 {
            pg::nap(PAUSE_US);
        }
        let mut taken = Vec::new();
        if lock_parts(cache::oid(table), &mut taken) {
            return true;
        }
        for relation in taken {
            rel::unlock(relation, ALONE);
        }
    }
    false
}

/// Locks a table, its TOAST table and their indexes. The TOAST table first: autovacuum may be at work there
/// for long, and each lock of this kind that is had is logged, for standbys to take it too. Then the table:
/// nobody comes to its indexes but by way of it.
fn lock_parts(table: pg_sys::Oid, taken: &mut Vec<pg_sys::Oid>) -> bool {
    let take = |relation, taken: &mut Vec<pg_sys::Oid>| {
        let got = rel::try_lock(relation, ALONE);
        if got {
            taken.push(relation);
        }
        got
    };
    if !rel::try_lock(table, pg_sys::AccessShareLock) {
        return false;
    }
    let toast = rel::toast_of(table);
    rel::unlock(table, pg_sys::AccessShareLock);
    toast.is_none_or(|toast| lock_parts(toast, taken))
        && take(table, taken)
        && rel::indexes_of(table).into_iter().all(|index| take(index, taken))
}

const ALONE: u32 = pg_sys::AccessExclusiveLock;
