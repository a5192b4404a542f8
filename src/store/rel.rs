//! An open table of ours: its lock on the table, and scans by direct access. `write.rs` writes rows by direct access.
//! Statements by SQL (`sql.rs`, `inbox.rs`) do not go through this module, except to open the table.
//!
//! To change a row, a caller opens the table to write first and finds the row after that. A place that was found before
//! the table was locked may belong to another row by now.

use crate::domain::identity::{Digest, SessionId};
use crate::lock;
use crate::pg::{self, raw};
use crate::store::blank;
use crate::store::cache;
use crate::store::catalog::{Index, Table};
use crate::store::claimed::Claimed;
use crate::store::entries::Entries;
use crate::store::invalidation;
use crate::store::scan::{Scan, not_on_these, sees};
pub use crate::store::snapshot::Snapshot;
use crate::store::tuple::{Hint, Tid, Tuple, uuid_equals};
use crate::store::way::indexes_of;
use crate::store::written;
use pgrx::itemptr::item_pointer_get_both;
use pgrx::pg_sys;

/// How a table is opened, and what happens to its lock when it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read. The lock is given back when the table is closed, so that a replay leaves none.
    Read,
    /// To look for a row that is written next if it is not there: with the locks of a writer, if they are to be had (see
    /// `claimed.rs`).
    Claim,
    /// To write. The lock stays to the end of the transaction.
    Write,
}

/// An open table.
pub struct Rel {
    pub(super) rel: pg_sys::Relation,
    pub(super) table: Table,
    pub(super) access: Access,
    claimed: Option<Claimed>,
    /// The lock that is given back when the table is closed.
    mode: pg_sys::LOCKMODE,
}

impl Rel {
    /// Opens a table. Taking its lock also takes in pending messages about changes of it.
    pub fn open(table: Table, access: Access) -> Rel {
        loop {
            let oid = cache::oid(table);
            let (rel, claimed) = match access {
                // SAFETY: the oid is that of our table, or of no relation if the table was dropped meanwhile.
                Access::Read => (unsafe { pg_sys::try_table_open(oid, pg_sys::AccessShareLock as i32) }, None),
                Access::Claim => Claimed::open(oid),
                Access::Write => (open_to_write(oid), None),
            };
            if !rel.is_null() {
                let stays = access == Access::Write || claimed.is_some();
                let mode = (if stays { pg_sys::NoLock } else { pg_sys::AccessShareLock }) as pg_sys::LOCKMODE;
                return Rel { rel, table, access, claimed, mode };
            }
            // The attempt to lock the table took in the message that it is gone. The next look-up finds the oid of
            // the new table, or raises an error if there is none.
            invalidation::forget();
        }
    }

    /// Opens a table to read it that seldom has a row; `None`: it has no page, or cannot be read here. A standby has no rows of
    /// an unlogged table. That costs nothing while the table is known to have no page (see `blank.rs`).
    pub fn open_unless_blank(table: Table) -> Option<Rel> {
        let noted = blank::note(table)?;
        let table = Rel::open(table, Access::Read);
        if table.is_unlogged() && pg::in_recovery() {
            return None;
        }
        if table.is_empty() {
            // If this transaction itself has emptied the table, that may be rolled back.
            // SAFETY: the relation is open.
            if !unsafe { pg::is_rewritten_by_us(table.rel) } {
                noted.is_blank();
            }
            return None;
        }
        Some(table)
    }

    /// Takes the lock to write a table if no conflicting lock is held; gives whether it did. The lock stays to the end
    /// of the transaction.
    pub fn try_lock(table: Table) -> bool {
        lock::as_transaction(|| try_lock(cache::oid(table), pg_sys::RowExclusiveLock))
    }

    /// Closes the table; gives the locks of a writer, if it was opened to claim and they were to be had.
    pub fn into_claimed(mut self) -> Option<Claimed> {
        self.claimed.take()
    }

    /// Whether the table is unlogged.
    pub fn is_unlogged(&self) -> bool {
        // SAFETY: the relation is open.
        let persistence = unsafe { (*(*self.rel).rd_rel).relpersistence } as u8;
        persistence == pg_sys::RELPERSISTENCE_UNLOGGED
    }

    /// Whether the table has no page, and so no row. This is cheaper than a search of its index.
    pub fn is_empty(&self) -> bool {
        self.pages() == 0
    }

    /// The number of its pages.
    pub fn pages(&self) -> u32 {
        // SAFETY: the relation is open.
        unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.rel, pg_sys::ForkNumber::MAIN_FORKNUM) }
    }

    /// The number of the file that it is stored in. Each rewrite of the table makes another file.
    pub fn file(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { pg::file_of(self.rel) }
    }

    /// Where the row at `at` stands, for [`Rel::look_at`].
    pub fn hint(&self, at: Tid<'_>) -> Hint {
        Hint { file: self.file(), tid: at.get() }
    }

    /// Runs `visit` on the row that stands where the hint says, as `SnapshotSelf` sees it. It may be any row of the table:
    /// `visit` looks whether it is the one that is wanted. That takes a fifth of the instructions of a search.
    pub fn look_at<'rel, const N: usize, T>(
        &'rel self,
        hint: Hint,
        visit: impl FnOnce(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<T> {
        let (block, _) = item_pointer_get_both(hint.tid);
        if hint.file != self.file() || block >= self.pages() {
            return None;
        }
        // SAFETY: the page is there, since the table is locked. A line pointer without a row gives false. The row stays in
        // its page as long as the buffer is pinned, which an error or a panic of `visit` leaves to the abort. The guarded
        // closure has nothing to drop and does not panic.
        unsafe {
            let mut tuple = pg_sys::HeapTupleData { t_self: hint.tid, ..std::mem::zeroed() };
            let mut buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
            let itself = &raw mut pg_sys::SnapshotSelfData;
            if !raw::guarded(|| raw::heap_fetch(self.rel, itself, &mut tuple, &mut buffer, false)) {
                return None;
            }
            let found = visit(&Tuple::read(&mut tuple, (*self.rel).rd_att));
            pg_sys::ReleaseBuffer(buffer);
            found
        }
    }

    /// Runs `visit` on each row that matches the keys and that the snapshot sees, until `visit` gives a value.
    pub fn find<'rel, const N: usize, T>(
        &'rel self,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
        mut visit: impl FnMut(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<T> {
        let mut scan = Scan::begin(self.rel, self.claimed.as_ref(), index, keys, snapshot)?;
        let mut found = None;
        while found.is_none() {
            // SAFETY: the tuple is one of this open table, and is used before the scan goes on.
            let Some(tuple) = scan.next().map(|tuple| unsafe { Tuple::read(tuple, (*self.rel).rd_att) }) else { break };
            found = visit(&tuple);
        }
        scan.end();
        found
    }

    /// As [`Rel::find`], for the rows of a digest, which is the first column of a table of requests and of its index.
    pub fn find_digest<'rel, const N: usize, T>(
        &'rel self,
        digest: &Digest,
        snapshot: Snapshot,
        visit: impl FnMut(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<T> {
        self.find(Some(self.table.by_digest()), &mut [uuid_equals(0, &digest.0)], snapshot, visit)
    }

    /// Runs `visit` on the rows of one digest after the other, until it gives true for that digest. One scan goes from digest to
    /// digest. It shows the rows of [`Snapshot::WithInserted`].
    pub(super) fn find_each<'a, const N: usize, I>(
        &self,
        asked: impl Iterator<Item = (&'a Digest, I)>,
        mut visit: impl FnMut(&mut I, &Tuple<'_, N>) -> bool,
    ) {
        // The digest is the first column of the table and of its index.
        let keys = &mut [uuid_equals(0, &[0; 16])];
        let (index, mut begun) = (self.table.by_digest(), None);
        let oid = cache::index_oid(index);
        for (digest, mut item) in asked {
            keys[0].sk_argument = pg::uuid(&digest.0);
            let entries = match &mut begun {
                Some(entries) => entries,
                None => {
                    let snapshot = Snapshot::WithInserted;
                    // SAFETY: as in Scan::begin().
                    let all = unsafe { raw::guarded(|| self.entries(oid, keys, snapshot.begin().0, false)) };
                    begun.insert(all.unwrap_or_else(|| not_on_these(Some(index))))
                }
            };
            let again = || {
                // SAFETY: within a guard.
                unsafe {
                    entries.again(keys);
                    entries.next()
                }
            };
            // SAFETY: as in Scan::begin().
            let mut row = unsafe { raw::guarded(again) };
            // SAFETY: as in find().
            while !row.is_null() && !visit(&mut item, &unsafe { Tuple::read(row, (*self.rel).rd_att) }) {
                // SAFETY: as in Scan::begin().
                row = unsafe { raw::guarded(|| entries.next()) };
            }
        }
        if let Some(entries) = begun {
            // SAFETY: as above.
            unsafe { raw::guarded(|| entries.end()) }
        }
    }

    /// What `read` makes of each row that matches the keys and that the snapshot sees, without rows of which it gives
    /// nothing.
    pub fn all<'rel, const N: usize, T>(
        &'rel self,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
        mut read: impl FnMut(&Tuple<'rel, N>) -> Option<T>,
    ) -> Vec<T> {
        let mut found = Vec::new();
        self.find(index, keys, snapshot, |row| {
            found.extend(read(row));
            None::<()>
        });
        found
    }

    /// How many of the rows that match the keys `counts` counts, as the latest snapshot sees them. Counting stops at `enough`.
    pub fn count<const N: usize>(
        &self,
        index: Option<Index>,
        keys: &mut [pg_sys::ScanKeyData],
        enough: i64,
        counts: impl Fn(&Tuple<'_, N>) -> bool,
    ) -> i64 {
        let mut count = 0;
        self.find(index, keys, Snapshot::LatestMvcc, |row| {
            count += i64::from(counts(row));
            (count >= enough).then_some(())
        });
        count
    }

    /// Runs `visit` on the rows that match the keys and that the snapshot sees, from the end of an index of rewritten
    /// rows. Gives true if the scan came to the first matching entry. Gives false if it met a former version of the row
    /// that it visited last, since there may be any number of those. The caller then scans again below that row's key,
    /// which skips the former versions.
    pub fn visit_back<'rel, const N: usize>(
        &'rel self,
        index: Index,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
        mut visit: impl FnMut(&Tuple<'rel, N>),
    ) -> bool {
        let oid = cache::index_oid(index);
        // SAFETY: as in Scan::begin(). No guarded closure has anything to drop, and none panics.
        unsafe {
            let (entries, latest) = raw::guarded(|| {
                let (shown, latest) = snapshot.begin();
                (self.entries(oid, keys, shown, true), latest)
            });
            let mut entries = entries.unwrap_or_else(|| not_on_these(Some(index)));
            let mut is_visited = false;
            // The scan stays at an index entry until it has looked at all versions behind the entry.
            let is_end = loop {
                let is_next_entry = !entries.has_more();
                if is_next_entry && !raw::guarded(|| entries.advance()) {
                    break true;
                }
                let row = raw::guarded(|| {
                    let row = entries.fetch();
                    let is_seen = row.is_null() || latest.is_none_or(|latest| sees(self.rel, latest, entries.slot()));
                    if is_seen { row } else { std::ptr::null_mut() }
                });
                if !row.is_null() {
                    visit(&Tuple::read(row, (*self.rel).rd_att));
                    is_visited = true;
                } else if is_visited && is_next_entry {
                    break false;
                }
            };
            raw::guarded(|| {
                entries.end();
                Snapshot::end(latest);
            });
            is_end
        }
    }

    /// # Safety
    /// As for [`Entries::begin`].
    unsafe fn entries(
        &self,
        index: pg_sys::Oid,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: pg_sys::Snapshot,
        is_backward: bool,
    ) -> Option<Entries> {
        // SAFETY: as the caller warrants. The table is open.
        unsafe { Entries::begin(self.rel, self.claimed.as_ref(), index, keys, snapshot, is_backward) }
    }

    /// As [`Rel::find`], for rows that another transaction may be updating. `SnapshotSelf`, the cheaper snapshot, may
    /// miss such a row. So a row that it does not find is searched again with the other snapshot.
    pub fn find_changing<'rel, const N: usize, T>(
        &'rel self,
        index: Index,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<T> {
        // A scan writes into its keys.
        let mut again = keys.to_vec();
        self.find(Some(index), keys, Snapshot::Itself, &mut visit)
            .or_else(|| self.find(Some(index), &mut again, Snapshot::LatestMvcc, &mut visit))
    }

    /// Whether the transaction's snapshot does not see a row of the session, whose id is the second column of each table of
    /// requests.
    pub fn any_unseen<const N: usize>(&self, session: &SessionId) -> bool {
        let keys = &mut [uuid_equals(1, session)];
        self.find(None, keys, Snapshot::LatestMvcc, |row: &Tuple<'_, N>| (!row.visible()).then_some(())).is_some()
    }

    /// The role that owns the table, and with it the extension.
    pub fn owner(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.rel).rd_rel).relowner }
    }
}

impl Drop for Rel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The abort that follows closes the table.
            return;
        }
        // SAFETY: the table was opened in open(), and is closed once.
        unsafe { raw::harmless::table_close(self.rel, self.mode) }
    }
}

/// Opens a table with the lock to write it; gives null if the table is gone. The lock belongs to the transaction. If it
/// belonged to the running portal, a cursor that fails inside a savepoint would take the lock away, while rows that
/// were written before the cursor stay.
fn open_to_write(oid: pg_sys::Oid) -> pg_sys::Relation {
    written::note();
    let mode = pg_sys::RowExclusiveLock as i32;
    // SAFETY: any oid may be locked. The table is opened under that lock. The closure has nothing to drop and does not
    // panic.
    unsafe {
        raw::guarded(|| {
            lock::as_transaction(|| raw::LockRelationOid(oid, mode));
            let rel = raw::try_table_open(oid, pg_sys::NoLock as i32);
            if rel.is_null() {
                lock::as_transaction(|| raw::harmless::UnlockRelationOid(oid, mode));
            }
            rel
        })
    }
}

/// Takes a lock on a table that is not ours, as a statement does that names it, and takes in what has changed. Gives true.
pub fn lock(relation: pg_sys::Oid, mode: u32) -> bool {
    // SAFETY: any oid may be locked. The closure has nothing to drop and does not panic.
    unsafe {
        raw::guarded(|| {
            raw::LockRelationOid(relation, mode as i32);
            raw::AcceptInvalidationMessages();
        });
    }
    true
}

/// Takes a lock on a table or an index if no conflicting lock is held; gives whether it did. The lock stays to the end
/// of the transaction, unless [`unlock`] gives it back.
pub fn try_lock(relation: pg_sys::Oid, mode: u32) -> bool {
    // SAFETY: takes a lock without waiting. The lock on a relation that is gone is granted, and does no harm.
    unsafe { pg_sys::ConditionalLockRelationOid(relation, mode as i32) }
}

/// Gives back a lock that [`try_lock`] took.
pub fn unlock(relation: pg_sys::Oid, mode: u32) {
    // SAFETY: the caller took the lock just now.
    unsafe { pg_sys::UnlockRelationOid(relation, mode as i32) }
}

/// The TOAST table of a table, if it has one, and the indexes of the table. The caller has locked the table.
pub(super) fn parts_of(table: pg_sys::Oid) -> (Option<pg_sys::Oid>, Vec<pg_sys::Oid>) {
    // SAFETY: the table is locked, so it exists and does not change.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let parts = (Some((*(*rel).rd_rel).reltoastrelid), indexes_of(rel));
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        (parts.0.filter(|toast| *toast != pg_sys::InvalidOid), parts.1)
    }
}
