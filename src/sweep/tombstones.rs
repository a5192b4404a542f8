//! Tombstones: the rows of dropped standing sessions.
//!
//! A tombstone keeps the session's id for its name, so that the session finds its outcomes if it is made again.
//! When none of its outcomes can be left, the sweep deletes the tombstone, and anybody may use the name. A
//! tombstone goes through three stages. Its columns `ended` and `ended_at` note the stage, and since when:
//!
//! * *dropped* (NULL): the session was dropped. As soon as the sweep sees that, the drop is committed, and no
//!   transaction that begins later uses the session. The sweep notes *seen*.
//! * *seen* (`d`): transactions that began before this stage may still record in the session, and so may whoever has
//!   a lease. When all of them have ended and nothing is unfinished, nothing more is recorded in it. The sweep notes *quiet*.
//! * *quiet* (`q`): outcomes of the session may lie in segments that were opened before this stage, and in
//!   `outcome_long`. When each of these segments is empty, and `outcome_long` has no outcome of the session, the
//!   sweep deletes the tombstone.
//!
//! A session with `time_keys` keeps its tombstone for ever. A new session of its name might have a longer ttl. So does a
//! session with a journal: a new session of its name might have another journal, or none.
//! Then a key that was refused as too old would be executed.

use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::store::message;
use crate::store::sql::{self, ids};
use crate::store::write::as_ours;
use pgrx::datum::Uuid;

/// The largest size of `outcome_long`, in bytes, at which it is looked through for tombstones. No index finds a
/// session's rows there.
const LONG_BYTES_MAX: i64 = 64 << 20;

/// The condition for a tombstone that may be deleted some day.
pub const NOT_FOR_EVER: &str =
    "t.name IS NOT NULL AND t.ended_at IS NOT NULL AND NOT t.time_keys AND t.journal IS NULL";

/// Takes tombstones on to their next stage, and deletes those that have come to the end of the last. Returns the
/// number deleted. The caller holds the locks of their names.
pub fn advance(tombstones: &[SessionId]) -> Result<usize, Error> {
    let deleted = delete_quiet(tombstones)?;
    let all_done = format!("{ALL_YOUNGER} AND {NOTHING_UNFINISHED}");
    note(tombstones, "ended OPERATOR(pg_catalog.=) 'd'", 'q', &all_done)?;
    note(tombstones, "ended IS NULL", 'd', "true")?;
    Ok(deleted)
}

/// Sets all tombstones back to the first stage: the clock was wrong, so the moments of their stages say nothing.
pub fn begin_anew() -> Result<(), Error> {
    let statement = "UPDATE idempotence.session SET ended = NULL
        WHERE name IS NOT NULL AND ended_at IS NOT NULL AND ended IS NOT NULL";
    as_ours(|| sql::execute(statement, &[])).map(drop)
}

/// The condition that all transactions of this database began after the stage of tombstone `s`. It is not met while
/// there is a prepared transaction, since nothing tells when that began. It is not met either while there is a backend
/// of another role whose activity this role may not see.
const ALL_YOUNGER: &str = "NOT EXISTS (
      SELECT FROM pg_catalog.pg_stat_activity a
      WHERE a.datid OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                            WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
        AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
        AND (a.xact_start OPERATOR(pg_catalog.<=) s.ended_at
             OR a.backend_type OPERATOR(pg_catalog.=) 'client backend' AND a.state IS NULL))
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts p
                    WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database())";

/// The condition that no request of tombstone `s` is unfinished. The holder of a lease, or an admin, may record it long
/// after the drop. The record deletes lease and checkpoint, so as long as it has not committed they are seen.
const NOTHING_UNFINISHED: &str =
    "NOT EXISTS (SELECT FROM idempotence.lease l WHERE l.session OPERATOR(pg_catalog.=) s.id)
    AND NOT EXISTS (SELECT FROM idempotence.checkpoint c WHERE c.session OPERATOR(pg_catalog.=) s.id)";

/// Notes, as of now, the `next` stage in those tombstones that meet both conditions, `stage` and `condition`.
fn note(tombstones: &[SessionId], stage: &str, next: char, condition: &str) -> Result<(), Error> {
    let statement = format!(
        "UPDATE idempotence.session s SET ended = '{next}', ended_at = pg_catalog.clock_timestamp()
         WHERE s.id OPERATOR(pg_catalog.=) ANY ($1) AND s.name IS NOT NULL AND s.ended_at IS NOT NULL AND s.{stage}
           AND ({condition})"
    );
    as_ours(|| sql::execute(&statement, &[ids(tombstones).into()])).map(drop)
}

/// Deletes quiet tombstones that have no outcome left. Returns the number deleted.
fn delete_quiet(tombstones: &[SessionId]) -> Result<usize, Error> {
    let query = format!(
        "SELECT s.id FROM idempotence.session s
         WHERE s.id OPERATOR(pg_catalog.=) ANY ($1) AND s.name IS NOT NULL AND s.ended OPERATOR(pg_catalog.=) 'q'
           AND NOT EXISTS (
             SELECT FROM idempotence.segment r
             WHERE (r.opened_at OPERATOR(pg_catalog.<=) s.ended_at OR r.restored)
               AND pg_catalog.pg_relation_size(pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', r.number))) OPERATOR(pg_catalog.>) 0)
           AND pg_catalog.pg_relation_size('idempotence.outcome_long') OPERATOR(pg_catalog.<=) {LONG_BYTES_MAX}
           AND NOT EXISTS (SELECT FROM idempotence.outcome_long o WHERE o.session OPERATOR(pg_catalog.=) s.id)"
    );
    let quiet: Vec<SessionId> =
        sql::column::<Uuid>(&query, &[ids(tombstones).into()])?.iter().map(|id| *id.as_bytes()).collect();
    if quiet.is_empty() {
        return Ok(0);
    }
    let sessions = "DELETE FROM idempotence.session WHERE id OPERATOR(pg_catalog.=) ANY ($1)";
    as_ours(|| sql::execute(sessions, &[ids(&quiet).into()]))?;
    quiet.iter().for_each(message::session_changed);
    Ok(quiet.len())
}
