//! What a restore may have put into a segment: the ring that is made along with it knows nothing of the
//! ttl that it was recorded under. So such a segment is looked through before it is emptied, some pages
//! in each transaction, as a visit of the worker must be short.
//!
//! How far it was looked through is kept in the segment's row. Whatever moves rows (VACUUM FULL, CLUSTER)
//! makes another file, which is looked through from its beginning; so is one that rows are added to by SQL,
//! which is what a restore does: [`note`].

use crate::error::Error;
use crate::lock::Tag;
use crate::store::rel::Rel;
use crate::store::segment;
use crate::store::sql;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys;

/// The pages of one look: 32 MB, which a slow disk reads within a visit.
const PAGES: i64 = 4096;

/// Notes that somebody inserts into a segment by SQL, before it is done; without a segment, into `session`.
/// The sweep rests until the end of that transaction, since it does not see yet what that restores.
pub fn note(segment: Option<&str>) -> Result<(), Error> {
    Tag::sweep().share(None);
    let statement = match segment {
        Some(number) => format!(
            "UPDATE idempotence.segment SET restored = true, looked_to = 0
             WHERE number OPERATOR(pg_catalog.=) {number} AND (NOT restored OR looked_to OPERATOR(pg_catalog.>) 0)"
        ),
        None => format!(
            "UPDATE idempotence.segment SET sessions_at = pg_catalog.clock_timestamp()
             WHERE number OPERATOR(pg_catalog.=) {}",
            segment::OF_SESSIONS
        ),
    };
    sql::execute(&statement, &[]).map(drop)
}

/// How far a segment was looked through.
#[derive(Clone, Copy)]
pub struct Look {
    /// The file.
    pub file: pg_sys::Oid,
    /// Its first pages, so many.
    pub pages: i64,
}

impl Look {
    /// Whether it has begun and is not at its end.
    pub fn is_going_on(self, table: &Rel) -> bool {
        self.file == table.file() && (1..i64::from(table.pages())).contains(&self.pages)
    }

    /// Goes on for some pages: how far it has come then, whether that is the end, and until when the last of
    /// the outcomes there lives. The caller holds a lock that keeps a restore from adding to them meanwhile.
    pub fn go_on(self, segment: usize, table: &Rel) -> Result<(Look, bool, Option<i64>), Error> {
        let all = i64::from(table.pages());
        let from = if self.file == table.file() { self.pages.min(all) } else { 0 };
        let to = all.min(from + PAGES);
        let query = format!(
            "SELECT pg_catalog.max(expires_at) FROM ONLY idempotence.outcome_{segment}
             WHERE ctid OPERATOR(pg_catalog.>=) '({from},0)'::pg_catalog.tid AND ctid OPERATOR(pg_catalog.<) '({to},0)'::pg_catalog.tid"
        );
        let expires_at = sql::first::<TimestampWithTimeZone>(&query)?.map(pg_sys::TimestampTz::from);
        Ok((Look { file: table.file(), pages: to }, to == all, expires_at))
    }
}
