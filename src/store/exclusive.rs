//! Taking the locks that TRUNCATE takes, without waiting for them. A wait for them would make others wait behind it.

use crate::pg;
use crate::store::cache;
use crate::store::catalog::Table;
use crate::store::rel;
use pgrx::pg_sys;

/// How often one call tries for the locks. Look-ups hold a table for microseconds each, but there may be many of them.
const TRIES: u32 = 50;

/// The pause between two tries.
const PAUSE_US: i64 = 2_000;

/// Takes all locks that TRUNCATE takes, or none of them; gives whether it did.
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

/// Locks a table, its TOAST table and their indexes, until a lock is not free. `taken` collects the locks that it took.
///
/// The TOAST table comes first, since autovacuum may be at work there for long. A failed try then costs little: each
/// granted lock of this kind is logged, so that standbys take it too. Then comes the table, since nobody uses its
/// indexes without locking the table.
fn lock_parts(table: pg_sys::Oid, taken: &mut Vec<pg_sys::Oid>) -> bool {
    if !rel::try_lock(table, pg_sys::AccessShareLock) {
        return false;
    }
    let (toast, _) = rel::parts_of(table);
    rel::unlock(table, pg_sys::AccessShareLock);
    let mut take = |relation| {
        let got = rel::try_lock(relation, ALONE);
        taken.extend(got.then_some(relation));
        got
    };
    let mut relations = toast.into_iter().chain([table]);
    relations.all(|relation| take(relation) && rel::parts_of(relation).1.into_iter().all(&mut take))
}

const ALONE: u32 = pg_sys::AccessExclusiveLock;
