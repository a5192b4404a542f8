//! What a restore does to our tables by SQL is noted before it is done, by triggers: [`note`].

use crate::error::Error;
use crate::lock::Tag;
use crate::store::message;
use crate::store::segment::FIRST;
use crate::store::sql;

/// Notes that somebody inserts by SQL into a segment (its number), into the table of what outlived its
/// segment (`long`), or into `session` (nothing).
///
/// The sweep rests until the end of that transaction, since it does not see yet what that restores. So it
/// never meets the updates made here, either. A segment is looked through from its beginning afterwards.
pub fn note(table: Option<&str>) -> Result<(), Error> {
    Tag::sweep().share(None);
    let statement = match table {
        Some("long") => {
            // Takes effect at commit; until then nobody sees the rows.
            message::ring_changed();
            format!(
                "UPDATE idempotence.segment SET long_lived = true
                 WHERE number OPERATOR(pg_catalog.=) {FIRST} AND NOT long_lived"
            )
        }
        Some(number) => format!(
            "UPDATE idempotence.segment SET restored = true, looked_to = 0
             WHERE number OPERATOR(pg_catalog.=) {number} AND (NOT restored OR looked_to OPERATOR(pg_catalog.>) 0)"
        ),
        None => format!(
            "UPDATE idempotence.segment SET sessions_at = pg_catalog.clock_timestamp()
             WHERE number OPERATOR(pg_catalog.=) {FIRST}"
        ),
    };
    sql::execute(&statement, &[]).map(drop)
}
