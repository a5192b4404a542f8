//! Reads a segment: some of its pages, to learn how long its outcomes live ([`sample`]), or all of its pages,
//! part by part, to find the outcomes that still live ([`next_part`]).
//!
//! The segment's row says how far the parts have come. Two things make the look begin anew. Whatever moves rows
//! (VACUUM FULL, CLUSTER) makes another file, and the row tells which file was looked through. A statement that
//! adds rows by SQL, as a restore does, sets the row back (`note_restored` in `store/segment.rs`).

use crate::domain::identity::{Digest, SessionId};
use crate::domain::pace::{LIVING_ONE_IN, Sample};
use crate::error::Error;
use crate::store::rel::Rel;
use crate::store::segment::Scanned;
use crate::store::sql::{self, moment};
use pgrx::datum::Uuid;

/// The number of pages in a part: 32 MB, which even a slow disk reads within a visit.
const PAGES: i64 = 4096;

/// About how many pages a sample reads.
const SAMPLED: u32 = 128;

/// Reads some pages of a segment, spread over all of it. An outcome counts as living if it expires after
/// `before`.
pub fn sample(segment: usize, table: &Rel, before: i64) -> Result<Sample, Error> {
    let percent = (f64::from(SAMPLED) * 100.0 / f64::from(table.pages().max(1))).min(100.0);
    let most = 1.0 - 1.0 / LIVING_ONE_IN as f64;
    let query = format!(
        "SELECT ARRAY[s.rows, s.living,
                  COALESCE((EXTRACT(epoch FROM s.few_live_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 OPERATOR(pg_catalog.-) 946684800000000, 0),
                  COALESCE((EXTRACT(epoch FROM s.ttl) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, 0)]
         FROM (SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE o.expires_at OPERATOR(pg_catalog.>) $1),
                      pg_catalog.percentile_disc({most}) WITHIN GROUP (ORDER BY o.expires_at),
                      pg_catalog.percentile_disc({most}) WITHIN GROUP (ORDER BY o.expires_at OPERATOR(pg_catalog.-) o.recorded_at)
               FROM ONLY idempotence.outcome_{segment} o TABLESAMPLE pg_catalog.system ({percent})) s (rows, living, few_live_at, ttl)"
    );
    let found = sql::column::<Vec<i64>>(&query, &[moment(before).into()])?.pop();
    let Some([rows, living, few_live_at, ttl_us]) = found.and_then(|found| <[i64; 4]>::try_from(found).ok()) else {
        return Ok(Sample::default());
    };
    let of_all = |count: i64| (count as f64 * 100.0 / percent) as i64;
    Ok(Sample { rows: of_all(rows), living: of_all(living), few_live_at, ttl_us })
}

/// A run of pages of a segment.
pub struct SegmentPart {
    /// How far the segment was looked through before this part.
    pub before: Scanned,
    /// How far it is looked through once this part is done.
    pub after: Scanned,
    /// Whether the segment ends with this part.
    pub is_last: bool,
}

/// The part that comes next in a segment.
pub fn next_part(scanned: Scanned, table: &Rel) -> SegmentPart {
    let all = i64::from(table.pages());
    let from = if scanned.has_begun(table) { scanned.pages.min(all) } else { 0 };
    let to = all.min(from + PAGES);
    let upto = |pages| Scanned { file: table.file(), pages };
    SegmentPart { before: upto(from), after: upto(to), is_last: to == all }
}

impl SegmentPart {
    /// Finds at most `limit` outcomes of this part that expire after `before`. The caller holds a lock on the
    /// segment that keeps its file the same.
    pub fn living(&self, segment: usize, before: i64, limit: usize) -> Result<Vec<Digest>, Error> {
        let (from, to) = (self.before.pages, self.after.pages);
        let query = format!(
            "SELECT o.digest FROM ONLY idempotence.outcome_{segment} o
             WHERE o.ctid OPERATOR(pg_catalog.>=) '({from},0)'::pg_catalog.tid AND o.ctid OPERATOR(pg_catalog.<) '({to},0)'::pg_catalog.tid
               AND o.expires_at OPERATOR(pg_catalog.>) $2 LIMIT $1"
        );
        let found = sql::column::<Uuid>(&query, &[(limit as i64).into(), moment(before).into()])?;
        Ok(found.iter().map(|digest| Digest(*digest.as_bytes())).collect())
    }

    /// How many outcomes of this part had expired at `before`, for each session.
    pub fn expired(&self, segment: usize, before: i64) -> Result<Vec<(SessionId, u64)>, Error> {
        let (from, to) = (self.before.pages, self.after.pages);
        let query = format!(
            "SELECT o.session, pg_catalog.count(*) FROM ONLY idempotence.outcome_{segment} o
             WHERE o.ctid OPERATOR(pg_catalog.>=) '({from},0)'::pg_catalog.tid AND o.ctid OPERATOR(pg_catalog.<) '({to},0)'::pg_catalog.tid
               AND o.expires_at OPERATOR(pg_catalog.<=) $1 GROUP BY o.session"
        );
        let found = sql::pairs::<Uuid, i64>(&query, &[moment(before).into()])?;
        Ok(found.iter().map(|(id, count)| (*id.as_bytes(), count.unsigned_abs())).collect())
    }
}
