//! Tombstones: the rows of dropped standing sessions. A tombstone keeps the session's id for its name, so
//! that the session, made again, finds its outcomes. It goes, and the name is anybody's, when none of its
//! outcomes can be left. That is told in three stages, which the columns `ended` and `ended_at` note:
//!
//! * *dropped* (NULL): the sweep sees the drop, so it is committed. No transaction that begins from now on
//!   uses the session.
//! * *seen* (`d`): when all transactions that are older than that have ended, nothing more is recorded in it.
//! * *quiet* (`q`): when each segment is empty, or was opened after that, what was recorded is gone, but for
//!   what was moved to `outcome_long`, which is looked into.
//!
//! A session with `time_keys` keeps its tombstone: under a new one with a longer ttl, a key that was refused
//! as too old would be executed.

use crate::domain::cursor::Cursor;
use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::store::catalog::Table;
use crate::store::message;
use crate::store::sql::{self, ids};
use crate::store::write::as_ours;
use crate::sweep::parts::{self, Part};
use pgrx::datum::Uuid;

/// The most of `outcome_long` that is looked through for tombstones, in bytes.
const LONG_BYTES_MAX: i64 = 64 << 20;

/// Tombstones that may go some day, and where to go on.
pub fn find(from: Cursor, limit: usize) -> Result<Part, Error> {
    let condition = "t.name IS NOT NULL AND t.ended_at IS NOT NULL AND NOT t.time_keys";
    parts::find(Table::Session, "id", from, limit, condition, Vec::new())
}

/// Takes tombstones on to their next stage, or away after the last; how many went away. The caller has the
/// locks of their names.
pub fn advance(tombstones: &[SessionId]) -> Result<usize, Error> {
    let deleted = delete_quiet(tombstones)?;
    note(tombstones, "ended OPERATOR(pg_catalog.=) 'd'", 'q', ALL_YOUNGER)?;
    note(tombstones, "ended IS NULL", 'd', "true")?;
    Ok(deleted)
}

/// Begins all stages anew: the clock was wrong, so their moments say nothing.
pub fn begin_anew() -> Result<(), Error> {
    let statement = "UPDATE idempotence.session SET ended = NULL
        WHERE name IS NOT NULL AND ended_at IS NOT NULL AND ended IS NOT NULL";
    as_ours(|| sql::execute(statement, &[])).map(drop)
}

/// All transactions of this database are younger than the stage. Of a prepared one nobody knows how old it
/// is; of another role's, where this one may not look, neither.
const ALL_YOUNGER: &str = "NOT EXISTS (
      SELECT FROM pg_catalog.pg_stat_activity a
      WHERE a.datid OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                            WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
        AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
        AND (a.xact_start OPERATOR(pg_catalog.<=) s.ended_at
             OR a.backend_type OPERATOR(pg_catalog.=) 'client backend' AND a.state IS NULL))
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts p
                    WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database())";

fn note(tombstones: &[SessionId], stage: &str, next: char, condition: &str) -> Result<(), Error> {
    let statement = format!(
        "UPDATE idempotence.session s SET ended = '{next}', ended_at = pg_catalog.clock_timestamp()
         WHERE s.id OPERATOR(pg_catalog.=) ANY ($1) AND s.name IS NOT NULL AND s.ended_at IS NOT NULL AND s.{stage}
           AND ({condition})"
    );
    as_ours(|| sql::execute(&statement, &[ids(tombstones).into()])).map(drop)
}

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
    // Whoever comes with the same request under a new session has another id, and another digest.
    let checkpoints = "DELETE FROM idempotence.checkpoint WHERE session OPERATOR(pg_catalog.=) ANY ($1)";
    let sessions = "DELETE FROM idempotence.session WHERE id OPERATOR(pg_catalog.=) ANY ($1)";
    as_ours(|| {
        sql::execute(checkpoints, &[ids(&quiet).into()])?;
        sql::execute(sessions, &[ids(&quiet).into()])
    })?;
    quiet.iter().for_each(message::session_changed);
    Ok(quiet.len())
}
