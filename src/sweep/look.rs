//! Looks into the tables of outcomes: into some pages, to learn how long outcomes live ([`ttl`]); or into all pages of a
//! segment, part by part, to learn when the last of its outcomes expires ([`for_end`]).

use crate::domain::pace;
use crate::error::Error;
use crate::guc;
use crate::pg::Timestamptz;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::segment::Segment;
use crate::store::sql;

/// The number of pages in a part: 32 MB, which even a slow disk reads within a visit.
const PAGES: i64 = 4096;

/// About how many pages of a table are sampled: 8 MB. With fewer, a page more or less makes a difference in small tables.
const SAMPLED: f64 = 1024.0;

/// The ttl up to which outcomes are to go to segments, by a sample of those that were recorded while the segment was the
/// current one; `None` if there are none.
pub fn ttl(segment: &Segment<'_>) -> Result<Option<i64>, Error> {
    let of = |table: Table| {
        let pages = f64::from(Rel::open(table, Access::Read).pages());
        let percent = (SAMPLED * 100.0 / pages.max(1.0)).min(100.0);
        // Each row of the sample stands for so many.
        let (name, stands_for) = (table.name(), 100.0 / percent);
        format!(
            "SELECT (EXTRACT(epoch FROM o.expires_at OPERATOR(pg_catalog.-) o.recorded_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, {stands_for}::pg_catalog.float8
             FROM ONLY idempotence.{name} o TABLESAMPLE pg_catalog.system ({percent}) WHERE o.recorded_at OPERATOR(pg_catalog.>=) $1"
        )
    };
    let query = format!(
        "SELECT s.ttl, pg_catalog.sum(s.rows) FROM ({} UNION ALL {}) s (ttl, rows) GROUP BY s.ttl ORDER BY s.ttl",
        of(segment.table()),
        of(Table::OutcomeLong)
    );
    let sample = sql::pairs::<i64, f64>(&query, &[Timestamptz(segment.opened_at).into()])?;
    Ok(pace::ttl_us(&sample, guc::retention_us()))
}

/// Looks through the next part of a closed segment for the outcome that expires last, and notes in the segment's row what
/// was found so far. After the last part that is the segment's end.
///
/// Two things make the look begin anew. Whatever moves rows (VACUUM FULL, CLUSTER) makes another file, and the row tells
/// which file was looked through. A statement that adds rows by SQL, as a restore does, sets the row back
/// (`note_restored` in `store/segment.rs`).
pub fn for_end(segment: &Segment<'_>) -> Result<(), Error> {
    // The lock keeps the file the same until the part is done.
    let table = segment.open();
    let (all, file) = (i64::from(table.pages()), table.file());
    let from = segment.looked_to.filter(|_| segment.looked_in == file).map_or(0, |pages| pages.min(all));
    let to = all.min(from + PAGES);
    let number = segment.number;
    let statement = format!(
        "UPDATE idempotence.segment SET looked_to = $1, looked_in = $2,
                ends_at = GREATEST(CASE WHEN {from} OPERATOR(pg_catalog.=) 0 THEN '-infinity'::pg_catalog.timestamptz ELSE ends_at END, (
                  SELECT pg_catalog.max(o.expires_at) FROM ONLY idempotence.outcome_{number} o
                  WHERE o.ctid OPERATOR(pg_catalog.>=) '({from},0)'::pg_catalog.tid AND o.ctid OPERATOR(pg_catalog.<) '({to},0)'::pg_catalog.tid))
         WHERE number OPERATOR(pg_catalog.=) {number}"
    );
    let looked_to = (to < all).then_some(to);
    sql::execute(&statement, &[looked_to.into(), file.into()]).map(drop)
}
