//! Looks for the outcomes of many requests at once: each table is opened once, and one scan of its index goes from digest
//! to digest.
//!
//! The scans use a dirty snapshot. It shows what `SnapshotSelf` shows, and also the rows that other transactions are
//! inserting. So whoever wants to insert learns who is at work on the same requests.

use crate::domain::identity::Digest;
use crate::domain::time_key;
use crate::error::Error;
use crate::model::StandingSession;
use crate::pg::{Writer, raw};
use crate::store::cache;
use crate::store::outcome;
use crate::store::outcome_columns::{self, Columns};
use crate::store::probe::Probe;
use crate::store::rel::Rel;
use crate::store::segment;
use crate::store::snapshot::{self, RowState};
use crate::store::tuple::{Tuple, uuid_equals};
use pgrx::pg_sys;

/// An outcome that has not expired.
#[derive(Clone, Copy)]
pub struct Living {
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
    /// The transaction that wrote it.
    pub writer: Writer,
}

/// What was found of many requests.
pub struct FoundKeys {
    /// The outcome of each request, if one lives.
    pub outcomes: Vec<Option<Living>>,
    /// Whether another transaction is at work on one of the requests, or one of them has a row that has expired. To insert
    /// such a request takes more than an insertion.
    pub contended: bool,
}

/// Finds the outcomes of requests, of a key and a digest each, that live at `now_us`.
pub fn find(session: &StandingSession, asked: &[(&str, Digest)], now_us: i64) -> Result<FoundKeys, Error> {
    let mut found = FoundKeys { outcomes: vec![None; asked.len()], contended: false };
    let made_at = || time_key::made_from_to(asked.iter().map(|(key, _)| *key));
    segment::probe(made_at, |table| {
        if table.is_empty() {
            return Ok(None);
        }
        let mut scan = DirtyScan::begin(table);
        for ((key, digest), outcome) in asked.iter().zip(&mut found.outcomes).filter(|(_, outcome)| outcome.is_none()) {
            let (session, session_name) = (&session.id, &*session.name);
            let probe = Probe { session, session_name, stream: "", key, digest: *digest };
            let look = |row: &Columns<'_>, state| match state {
                RowState::BeingInserted(_) => {
                    found.contended = true;
                    None
                }
                RowState::Committed { changing } => {
                    let expires_at = outcome::expires_at(row, table.table, &probe);
                    let has_expired = matches!(expires_at, Ok(expires_at) if expires_at <= now_us);
                    found.contended |= changing.is_some() || has_expired;
                    let living = || expires_at.map(|_| Living { visible: row.visible(), writer: row.writer() });
                    (!has_expired).then(living)
                }
            };
            *outcome = scan.find(digest, look).transpose()?;
        }
        Ok::<Option<()>, Error>(None)
    })?;
    Ok(found)
}

/// A scan of a table of outcomes for one digest after the other. Nothing in it may be kept while the caller waits for
/// somebody, since a scan keeps a page from being vacuumed.
pub(super) struct DirtyScan<'rel> {
    table: &'rel Rel,
    key: pg_sys::ScanKeyData,
    scan: pg_sys::SysScanDesc,
}

impl<'rel> DirtyScan<'rel> {
    pub fn begin(table: &'rel Rel) -> DirtyScan<'rel> {
        // The digest is the first column of the table and of its index.
        let key = uuid_equals(outcome_columns::DIGEST, &[0; 16]);
        let mut scan = DirtyScan { table, key, scan: std::ptr::null_mut() };
        scan.start();
        scan
    }

    fn start(&mut self) {
        // SAFETY: relation, index and key belong together. The snapshot is there for good.
        unsafe {
            let snapshot = raw::guarded(|| snapshot::dirty());
            let index = cache::index_oid(self.table.table.by_digest());
            self.scan = pg_sys::systable_beginscan(self.table.rel, index, true, snapshot, 1, &mut self.key);
        }
    }

    /// Runs `visit` on each row with this digest, until it gives a value.
    pub fn find<const N: usize, T>(
        &mut self,
        digest: &Digest,
        mut visit: impl FnMut(&Tuple<'_, N>, RowState) -> Option<T>,
    ) -> Option<T> {
        self.key.sk_argument = digest.0.as_ptr().into();
        // SAFETY: as in start(). The datum of a uuid points to its bytes, and the digest outlives this search. A tuple is
        // used before the scan goes on. On an error the abort closes the scan.
        unsafe {
            let entries = (*self.scan).iscan;
            if entries.is_null() {
                // The server was started with -P. Then the scan uses no index.
                pg_sys::systable_endscan(self.scan);
                self.start();
            } else {
                pg_sys::index_rescan(entries, &mut self.key, 1, std::ptr::null_mut(), 0);
            }
            loop {
                let tuple = pg_sys::systable_getnext(self.scan);
                if tuple.is_null() {
                    return None;
                }
                let found = visit(&Tuple::read(tuple, (*self.table.rel).rd_att), snapshot::row_state());
                if found.is_some() {
                    return found;
                }
            }
        }
    }
}

impl Drop for DirtyScan<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The abort that follows closes the scan.
            return;
        }
        // SAFETY: the scan was begun in start(), and is ended once.
        unsafe { pg_sys::systable_endscan(self.scan) }
    }
}
