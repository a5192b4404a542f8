//! The sweep's steps that delete abandoned checkpoints and leases.

use crate::domain::cursor::Cursor;
use crate::domain::identity::Digest;
use crate::domain::limits::KEEP_SLACK_US;
use crate::guc;
use crate::lock::Tag;
use crate::pg::{self, Timestamptz};
use crate::store::catalog::Table;
use crate::store::sql;
use crate::sweep::parts::{self, Done};

/// The condition for a checkpoint, or a lease that has run out, that nobody can continue any more.
///
/// In a standing session it counts as long as an outcome would that was recorded at the time in column `since`. In a
/// client session it counts until its number is given up. Where the session is not known, it counts for the
/// retention. $2 is the present moment less the slack that time keys ahead of the clock need. $3 is the
/// retention in seconds.
fn abandoned(since: &str) -> String {
    format!(
        "t.{since} OPERATOR(pg_catalog.<=) $2 AND COALESCE(
      (SELECT CASE
                WHEN s.name IS NOT NULL
                THEN t.{since} OPERATOR(pg_catalog.+)
                       pg_catalog.make_interval(secs => COALESCE(EXTRACT(epoch FROM s.ttl)::pg_catalog.float8, $3)) OPERATOR(pg_catalog.<=) $2
                ELSE EXISTS (SELECT FROM idempotence.stream m
                             WHERE m.session OPERATOR(pg_catalog.=) t.session AND m.stream OPERATOR(pg_catalog.=) t.stream
                               AND m.acked OPERATOR(pg_catalog.>=) t.request::pg_catalog.int8)
              END
       FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) t.session),
      t.{since} OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => $3) OPERATOR(pg_catalog.<=) $2)"
    )
}

/// Deletes at most `limit` abandoned checkpoints. Returns the number deleted, and where to go on.
///
/// The checkpoint of a key that is at work is left alone: the key's claim is taken. The claim to a number has
/// the name of its lane and does not protect the checkpoint. It need not: the number was given up, or its
/// session is not known.
pub fn delete_checkpoints(from: Cursor, limit: usize) -> Done {
    delete(Table::Checkpoint, "written_at", from, limit)
}

/// Deletes at most `limit` abandoned leases. Returns the number deleted, and where to go on. A lease is kept under the
/// very digest that is locked for its request.
pub fn delete_leases(from: Cursor, limit: usize) -> Done {
    delete(Table::Lease, "leased_until", from, limit)
}

fn delete(table: Table, since: &str, from: Cursor, limit: usize) -> Done {
    let now = Timestamptz(pg::now_us().saturating_sub(KEEP_SLACK_US));
    let retention_s = guc::retention_us() as f64 / 1e6;
    let mut abandoned = abandoned(since);
    if table == Table::Checkpoint {
        // A checkpoint counts as long as the lease of its request. A key's lease is kept under the same digest. A number's
        // checkpoint counts until the number is given up, whatever becomes of its lease.
        abandoned += " AND NOT EXISTS (SELECT FROM idempotence.lease l WHERE l.digest OPERATOR(pg_catalog.=) t.digest)";
    }
    let (ids, next) = parts::find(table, "digest", from, limit, &abandoned, vec![now.into(), retention_s.into()])?;
    let idle = |digest: &[u8; 16]| Tag::request(&Digest(*digest)).try_acquire();
    let idle: Vec<_> = ids.into_iter().filter(idle).collect();
    if idle.is_empty() {
        return Ok((0, next));
    }
    // It may have been written again, or its request recorded, before the claim was taken here. A number's checkpoint may be
    // locked without the claim, by a redaction.
    let table = table.name();
    let statement = format!(
        "DELETE FROM idempotence.{table} WHERE digest OPERATOR(pg_catalog.=) ANY (ARRAY(
           SELECT t.digest FROM idempotence.{table} t
           WHERE t.digest OPERATOR(pg_catalog.=) ANY ($1) AND ({abandoned}) FOR UPDATE OF t SKIP LOCKED))"
    );
    let deleted = sql::execute(&statement, &[sql::ids(&idle).into(), now.into(), retention_s.into()])?;
    Ok((deleted, next))
}
