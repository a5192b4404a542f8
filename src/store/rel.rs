//! An open table of ours, its scans and its writes.

use crate::pg;
use crate::store::cache::{self, Table};
use pgrx::pg_sys;

/// How a table is opened, and what happens to its lock when it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read: the lock goes when the table is closed, so that a replay leaves none.
    Read,
    /// To write: the lock stays to the end of the transaction.
    Write,
}

/// An open table.
pub struct Rel {
    rel: pg_sys::Relation,
    access: Access,
}

impl Rel {
    /// Opens a table. Taking its lock also takes in what others have changed about it.
    pub fn open(table: Table, access: Access) -> Rel {
        let mode = match access {
            Access::Read => pg_sys::AccessShareLock,
            Access::Write => pg_sys::RowExclusiveLock,
        };
        loop {
            // SAFETY: the oid is that of our table, or of none if that was dropped meanwhile.
            let rel = unsafe { pg_sys::try_table_open(cache::oid(table), mode as i32) };
            if !rel.is_null() {
                return Rel { rel, access };
            }
            // Asking for the lock took in the message that the table is gone; so the next look tells
            // where the new one is, or that there is none.
            cache::forget();
        }
    }

    /// Takes the lock to write a table, to the end of the transaction, if nobody is in the way.
    pub fn try_lock(table: Table) -> bool {
        try_lock(cache::oid(table), pg_sys::RowExclusiveLock)
    }

    /// Whether it has no page, and so no row: cheaper to ask than to search its index.
    pub fn is_empty(&self) -> bool {
        self.pages() == 0
    }

    /// How many pages it has.
    pub fn pages(&self) -> u32 {
        // SAFETY: the relation is open.
        unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.rel, pg_sys::ForkNumber::MAIN_FORKNUM) }
    }

    /// The file that it is in: another one after each rewrite.
    pub fn file(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { pg::file_of(self.rel) }
    }

    /// Runs `visit` on each row that matches the keys under the snapshot, until it gives something.
    pub fn find<const N: usize, T>(
        &self,
        index: Option<cache::Index>,
        keys: &mut [pg_sys::ScanKeyData],
        snapshot: Snapshot,
        mut visit: impl FnMut(&Tuple<'_, N>) -> Option<T>,
    ) -> Option<T> {
        let index_oid = index.map_or(pg_sys::InvalidOid, cache::index_oid);
        // SAFETY: relation, index and keys belong together; the snapshots are registered or static for the
        // time of the scan; the tuple is used before the scan goes on. On an error the abort closes it.
        unsafe {
            let (shown, latest) = match snapshot {
                Snapshot::Itself => (&raw mut pg_sys::SnapshotSelfData, None),
                Snapshot::LatestMvcc => {
                    (&raw mut pg_sys::SnapshotAnyData, Some(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot())))
                }
            };
            let scan = pg_sys::systable_beginscan(
                self.rel,
                index_oid,
                index.is_some(),
                shown,
                keys.len() as i32,
                keys.as_mut_ptr(),
            );
            let mut found = None;
            while found.is_none() {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                if latest.is_some_and(|latest| !pg_sys::table_tuple_satisfies_snapshot(self.rel, (*scan).slot, latest))
                {
                    continue;
                }
                found = visit(&Tuple::read(tuple, (*self.rel).rd_att));
            }
            pg_sys::systable_endscan(scan);
            if let Some(latest) = latest {
                pg_sys::UnregisterSnapshot(latest);
            }
            found
        }
    }

    /// As [`Rel::find`], for rows that may change under one's eyes: what the cheaper snapshot misses is
    /// looked for again with the other, since it may be just being updated.
    pub fn find_changing<const N: usize, T>(
        &self,
        index: cache::Index,
        keys: &mut [pg_sys::ScanKeyData],
        mut visit: impl FnMut(&Tuple<'_, N>) -> Option<T>,
    ) -> Option<T> {
        // A scan writes in its keys.
        let mut again = keys.to_vec();
        self.find(Some(index), keys, Snapshot::Itself, &mut visit)
            .or_else(|| self.find(Some(index), &mut again, Snapshot::LatestMvcc, &mut visit))
    }

    /// The role that owns the table, and with it the extension.
    pub fn owner(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.rel).rd_rel).relowner }
    }

    /// Whether a row matches that is committed or that a transaction is at work on; then that one's id.
    pub fn find_dirty(&self, index: cache::Index, keys: &mut [pg_sys::ScanKeyData]) -> Dirty {
        // SAFETY: as in find(). Such a snapshot tells in its xmin who is inserting the row just fetched,
        // and in its xmax who is updating or deleting it; it is only used through this pointer.
        unsafe {
            let mut snapshot = std::mem::zeroed::<pg_sys::SnapshotData>();
            snapshot.snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
            let shown = &raw mut snapshot;
            let scan = pg_sys::systable_beginscan(
                self.rel,
                cache::index_oid(index),
                true,
                shown,
                keys.len() as i32,
                keys.as_mut_ptr(),
            );
            let tuple = pg_sys::systable_getnext(scan);
            let found = match (tuple.is_null(), (*shown).xmin, (*shown).xmax) {
                (true, _, _) => Dirty::Nothing,
                (false, pg_sys::InvalidTransactionId, pg_sys::InvalidTransactionId) => Dirty::Committed,
                (false, pg_sys::InvalidTransactionId, updater) => Dirty::InProgress(updater),
                (false, inserter, _) => Dirty::InProgress(inserter),
            };
            pg_sys::systable_endscan(scan);
            found
        }
    }

    /// Inserts a row and makes it seen by the commands that follow.
    pub fn insert(&self, columns: &[Option<pg_sys::Datum>]) {
        self.with_tuple(columns, |rel, tuple| {
            // SAFETY: the tuple was formed for this table.
            unsafe { pg_sys::CatalogTupleInsert(rel, tuple) }
        });
    }

    /// Puts a row in another's place.
    pub fn update(&self, mut at: pg_sys::ItemPointerData, columns: &[Option<pg_sys::Datum>]) {
        self.with_tuple(columns, |rel, tuple| {
            // SAFETY: the tuple was formed for this table, and `at` is a row of it that the caller's
            // advisory lock keeps others from changing.
            unsafe { pg_sys::CatalogTupleUpdate(rel, &mut at, tuple) }
        });
    }

    /// Deletes a row.
    pub fn delete(&self, mut at: pg_sys::ItemPointerData) {
        debug_assert!(self.access == Access::Write);
        // SAFETY: as in update(). The counter makes a row deletable that this very command inserted.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::CatalogTupleDelete(self.rel, &mut at);
            pg_sys::CommandCounterIncrement();
        }
    }

    fn with_tuple(&self, columns: &[Option<pg_sys::Datum>], write: impl FnOnce(pg_sys::Relation, pg_sys::HeapTuple)) {
        debug_assert!(self.access == Access::Write);
        let (mut values, mut nulls) = pg::split(columns);
        // SAFETY: values and nulls have one element a column of the table's row, checked here.
        unsafe {
            assert_eq!(columns.len(), (*(*self.rel).rd_att).natts as usize);
            let tuple = pg_sys::heap_form_tuple((*self.rel).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            write(self.rel, tuple);
            pg_sys::heap_freetuple(tuple);
            pg_sys::CommandCounterIncrement();
        }
    }
}

impl Drop for Rel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The abort that follows closes it.
            return;
        }
        let release = match self.access {
            Access::Read => pg_sys::AccessShareLock,
            Access::Write => pg_sys::NoLock,
        };
        // SAFETY: opened in open(), closed once.
        unsafe { pg_sys::table_close(self.rel, release as i32) }
    }
}

/// Takes a lock on a table or an index, to the end of the transaction, if nobody is in the way.
pub(super) fn try_lock(relation: pg_sys::Oid, mode: u32) -> bool {
    // SAFETY: asks for a lock without waiting; of a relation that is gone it is had, and does no harm.
    unsafe { pg_sys::ConditionalLockRelationOid(relation, mode as i32) }
}

/// Gives back what [`try_lock`] gave.
pub(super) fn unlock(relation: pg_sys::Oid, mode: u32) {
    // SAFETY: the caller took it just now.
    unsafe { pg_sys::UnlockRelationOid(relation, mode as i32) }
}

/// A table's indexes. The caller has locked it.
pub(super) fn indexes_of(table: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: the table is locked, so it is there and stays as it is; the list has so many oids.
    unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let list = pg_sys::RelationGetIndexList(rel);
        let count = if list.is_null() { 0 } else { (*list).length };
        let indexes = (0..count).map(|n| pg_sys::list_nth_oid(list, n)).collect();
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        indexes
    }
}

/// A table's TOAST table. The caller has locked the table.
pub(super) fn toast_of(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: as above.
    let toast = unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let toast = (*(*rel).rd_rel).reltoastrelid;
        pg_sys::table_close(rel, pg_sys::NoLock as i32);
        toast
    };
    (toast != pg_sys::InvalidOid).then_some(toast)
}

/// What a dirty look found.
pub enum Dirty {
    /// No row.
    Nothing,
    /// A row that stands.
    Committed,
    /// A row that the transaction given is inserting, updating or deleting, which may yet roll back.
    InProgress(pg_sys::TransactionId),
}

/// Which rows a scan sees.
#[derive(Clone, Copy)]
pub enum Snapshot {
    /// `SnapshotSelf`: all that is committed at this moment, and our own. For rows that are not
    /// updated, or only under a lock that the caller holds: it can miss one that is being updated.
    /// Takes no predicate locks: with an MVCC snapshot two SERIALIZABLE transactions with different new
    /// keys on one index page would abort each other.
    Itself,
    /// A fresh MVCC snapshot, for rows that may change under one's eyes. Every version of a row is
    /// fetched and then held against the snapshot, so that this too takes no predicate locks.
    LatestMvcc,
}

/// A row of `N` columns, valid until the scan goes on.
pub struct Tuple<'a, const N: usize> {
    tuple: &'a pg_sys::HeapTupleData,
    values: [pg_sys::Datum; N],
    nulls: [bool; N],
}

impl<const N: usize> Tuple<'_, N> {
    /// # Safety
    /// `tuple` must be a valid row of the table that `shape` describes.
    unsafe fn read<'a>(tuple: pg_sys::HeapTuple, shape: pg_sys::TupleDesc) -> Tuple<'a, N> {
        let mut values = [pg_sys::Datum::null(); N];
        let mut nulls = [true; N];
        // SAFETY: the arrays have as many elements as the table has columns, checked here.
        unsafe {
            assert_eq!((*shape).natts as usize, N, "the table has the columns that this library was made for");
            pg_sys::heap_deform_tuple(tuple, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            Tuple { tuple: &*tuple, values, nulls }
        }
    }

    /// Where the row is.
    pub fn at(&self) -> pg_sys::ItemPointerData {
        self.tuple.t_self
    }

    /// Whether the transaction's snapshot sees the row, see [`pg::snapshot_sees`].
    pub fn visible(&self) -> bool {
        // SAFETY: a valid tuple has a header.
        pg::snapshot_sees(unsafe { pg_sys::htup::HeapTupleHeaderGetXmin(self.tuple.t_data) })
    }

    /// Whether this transaction, not yet committed, wrote the row.
    pub fn is_ours(&self) -> bool {
        // SAFETY: as above.
        unsafe { pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::htup::HeapTupleHeaderGetXmin(self.tuple.t_data)) }
    }

    /// A column's value; `None` where it is null.
    pub fn datum(&self, column: usize) -> Option<pg_sys::Datum> {
        (!self.nulls[column]).then_some(self.values[column])
    }

    /// A bigint, timestamptz or count.
    pub fn int8(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
    }

    /// An integer.
    pub fn int4(&self, column: usize) -> Option<i32> {
        self.datum(column).map(|datum| datum.value() as i32)
    }

    /// A smallint.
    pub fn int2(&self, column: usize) -> Option<i16> {
        self.datum(column).map(|datum| datum.value() as i16)
    }

    /// A `"char"`.
    pub fn char(&self, column: usize) -> Option<u8> {
        self.datum(column).map(|datum| datum.value() as u8)
    }

    /// A boolean.
    pub fn bool(&self, column: usize) -> Option<bool> {
        self.datum(column).map(|datum| datum.value() as u8 != 0)
    }

    /// A role.
    pub fn oid(&self, column: usize) -> Option<pg_sys::Oid> {
        self.datum(column).map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    /// A uuid.
    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        // SAFETY: a uuid is passed as a pointer to its 16 bytes, in the row.
        self.datum(column).map(|datum| unsafe { *datum.cast_mut_ptr::<[u8; 16]>() })
    }

    /// A text, copied.
    pub fn text(&self, column: usize) -> Option<String> {
        // SAFETY: a text is a varlena; the database's encoding is UTF-8, checked at CREATE EXTENSION.
        self.datum(column).and_then(|datum| unsafe { <String as pgrx::FromDatum>::from_datum(datum, false) })
    }

    /// A bytea, copied.
    pub fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        // SAFETY: a bytea is a varlena.
        self.datum(column).and_then(|datum| unsafe { <Vec<u8> as pgrx::FromDatum>::from_datum(datum, false) })
    }

    /// An interval, in microseconds.
    pub fn interval_us(&self, column: usize) -> Option<i64> {
        // SAFETY: an interval is passed as a pointer to its value, in the row.
        let interval = self
            .datum(column)
            .and_then(|datum| unsafe { <pgrx::datum::Interval as pgrx::FromDatum>::from_datum(datum, false) })?;
        pg::interval_us(&interval)
    }

    /// A jsonb, copied out of the row and its TOAST table.
    pub fn jsonb(&self, column: usize) -> Option<pg::Jsonb> {
        // SAFETY: a jsonb column, whose table the scan keeps open and locked.
        self.datum(column).map(|datum| unsafe { pg::Jsonb::copied(datum) })
    }

    /// Whether a text column holds just these bytes. A key is short, but in a long row the toaster may
    /// have compressed it all the same, or moved it out.
    pub fn text_is(&self, column: usize, value: &str) -> bool {
        // SAFETY: a text is a varlena, whose table the scan keeps open and locked; what is neither
        // compressed nor moved out comes back as it is.
        self.datum(column).is_some_and(|datum| unsafe {
            let text = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            pgrx::varlena::varlena_to_byte_slice(text) == value.as_bytes()
        })
    }
}

/// The key `column = value` for a uuid column; columns count from 1 here, as PostgreSQL's do.
pub fn uuid_equals(column: i16, value: &[u8; 16]) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_UUID_EQ, pg::uuid(value))
}

/// The key `column = value` for a text column in collation "C".
pub fn text_equals(column: i16, value: &str) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_TEXTEQ, pg::text(value))
}

/// The key `column = value` for an integer column.
pub fn int4_equals(column: i16, value: i32) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_INT4EQ, value.into())
}

/// The key `column = value` for a role's column.
pub fn oid_equals(column: i16, value: pg_sys::Oid) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_OIDEQ, value.into())
}

/// The key `column IS NULL`.
pub fn is_null(column: i16) -> pg_sys::ScanKeyData {
    let flags = (pg_sys::SK_ISNULL | pg_sys::SK_SEARCHNULL) as i32;
    let none = pg_sys::InvalidOid;
    // SAFETY: fills the whole key; such a one has neither function nor value.
    unsafe {
        let mut key = std::mem::zeroed();
        let (no_strategy, no_value) = (0, pg_sys::Datum::null());
        pg_sys::ScanKeyEntryInitialize(&mut key, flags, column, no_strategy, none, none, none, no_value);
        key
    }
}

fn equals(column: i16, function: u32, value: pg_sys::Datum) -> pg_sys::ScanKeyData {
    // SAFETY: ScanKeyInit() fills the whole key, with the function that compares this type.
    unsafe {
        let mut key = std::mem::zeroed();
        pg_sys::ScanKeyInit(&mut key, column, pg_sys::BTEqualStrategyNumber as u16, function.into(), value);
        key
    }
}
