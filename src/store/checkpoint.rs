//! `idempotence.checkpoint`: how far unfinished requests got. Read and written under the request's lock.

use crate::domain::decision::{CheckpointFacts, Fingerprint};
use crate::domain::identity::Digest;
use crate::domain::limits::KEEP_SLACK_US;
use crate::error::{Error, Name};
use crate::guc;
use crate::lock::Tag;
use crate::pg::{self, Jsonb};
use crate::store::cache::{Index, Table};
use crate::store::outcome::Wanted;
use crate::store::part::{self, Place};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::sql;
use crate::store::tuple::{Tid, Tuple, uuid_equals};
use pgrx::pg_sys;

const DIGEST: usize = 0;
const SESSION: usize = 1;
const WRITTEN_AT: usize = 2;
const REQUEST: usize = 3;
const POINT: usize = 4;
const FINGERPRINT: usize = 5;
const STATE: usize = 6;
const STREAM: usize = 7;
const LAST: usize = 8;
type Columns<'a> = Tuple<'a, 9>;

/// A checkpoint.
pub struct Checkpoint {
    /// The name of the point reached.
    pub point: String,
    /// What the continuing needs.
    pub state: Option<Jsonb>,
    /// Of the payload, where one was given.
    pub fingerprint: Option<Fingerprint>,
    /// When it was written.
    pub written_at: i64,
    /// The last number of a numbered request.
    pub last: Option<i64>,
}

/// A checkpoint found, fresh or stale.
pub struct Found {
    /// What it says.
    pub checkpoint: Checkpoint,
    visible: bool,
}

impl Found {
    /// What the decision rests on; it counts until `expires_at`.
    pub fn facts(&self, expires_at: i64) -> CheckpointFacts {
        CheckpointFacts { expires_at, visible: self.visible, fingerprint: self.checkpoint.fingerprint }
    }
}

/// Finds the request's checkpoint.
pub fn find(wanted: &Wanted<'_>, snapshot: Snapshot) -> Result<Option<Found>, Error> {
    let table = Rel::open(Table::Checkpoint, Access::Read);
    let found = find_in(&table, wanted, snapshot)?;
    Ok(found.map(|(found, _)| found))
}

fn find_in<'rel>(
    table: &'rel Rel,
    wanted: &Wanted<'_>,
    snapshot: Snapshot,
) -> Result<Option<(Found, Tid<'rel>)>, Error> {
    if table.is_empty() {
        return Ok(None);
    }
    let keys = &mut [uuid_equals(DIGEST as i16 + 1, &wanted.digest.0)];
    let read = |row: &Columns<'rel>| Some(read(row, wanted).map(|found| (found, row.at())));
    table.find(Some(Index::Checkpoint), keys, snapshot, read).transpose()
}

fn read(row: &Columns<'_>, wanted: &Wanted<'_>) -> Result<Found, Error> {
    let name = || Name::in_stream(wanted.session_name, wanted.stream, wanted.key);
    // As with outcomes: the digest only leads here, and "not mine, so nothing there" would be a guess.
    let same_request = row.text_is(STREAM, wanted.stream) && row.text_is(REQUEST, wanted.key);
    if row.uuid(SESSION).as_ref() != Some(wanted.session) || !same_request {
        return Err(Error::Corrupted { message: format!("the checkpoint found for {} is another request's", name()) });
    }
    match (row.text(POINT), row.int8(WRITTEN_AT)) {
        (Some(point), Some(written_at)) => {
            let (state, fingerprint) = (row.jsonb(STATE), row.uuid(FINGERPRINT));
            let checkpoint = Checkpoint { point, state, fingerprint, written_at, last: row.int8(LAST) };
            Ok(Found { checkpoint, visible: row.visible() })
        }
        _ => Err(Error::Corrupted { message: format!("the checkpoint of {} lacks a value", name()) }),
    }
}

/// Writes the request's checkpoint, in the place of an earlier one.
pub fn save(wanted: &Wanted<'_>, checkpoint: &Checkpoint) -> Result<(), Error> {
    let mut columns: [Option<pg_sys::Datum>; 9] = [None; 9];
    columns[DIGEST] = Some(pg::uuid(&wanted.digest.0));
    columns[SESSION] = Some(pg::uuid(wanted.session));
    columns[WRITTEN_AT] = Some(checkpoint.written_at.into());
    columns[LAST] = checkpoint.last.map(Into::into);
    columns[STREAM] = Some(pg::text(wanted.stream));
    columns[REQUEST] = Some(pg::text(wanted.key));
    columns[POINT] = Some(pg::text(&checkpoint.point));
    columns[FINGERPRINT] = checkpoint.fingerprint.as_ref().map(pg::uuid);
    columns[STATE] = checkpoint.state.map(Jsonb::datum);
    let table = Rel::open(Table::Checkpoint, Access::Write);
    match find_in(&table, wanted, Snapshot::Itself)? {
        Some((_, earlier)) => table.update(earlier, &columns),
        None => table.insert(&columns),
    }
    Ok(())
}

/// Deletes the request's checkpoint, if it has one; whether it had.
pub fn delete(wanted: &Wanted<'_>) -> Result<bool, Error> {
    let table = Rel::open(Table::Checkpoint, Access::Write);
    let found = find_in(&table, wanted, Snapshot::Itself)?;
    if let Some((_, at)) = &found {
        table.delete(*at);
    }
    Ok(found.is_some())
}

/// Which checkpoints nobody can continue any more. One of a standing session counts as long as an outcome
/// would that was recorded in its place; one of a client session until its number is given up, and as long
/// as the session is known. $2 is now, without the slack that a time key ahead of the clock needs; $3 is the
/// retention in seconds.
const ABANDONED: &str = "
    COALESCE(
      (SELECT CASE
                WHEN s.name IS NOT NULL
                THEN t.written_at OPERATOR(pg_catalog.+)
                       pg_catalog.make_interval(secs => COALESCE(EXTRACT(epoch FROM s.ttl)::pg_catalog.float8, $3)) OPERATOR(pg_catalog.<=) $2
                ELSE EXISTS (SELECT FROM idempotence.stream m
                             WHERE m.session OPERATOR(pg_catalog.=) t.session AND m.stream OPERATOR(pg_catalog.=) t.stream
                               AND m.acked OPERATOR(pg_catalog.>=) t.request::pg_catalog.int8)
              END
       FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) t.session),
      t.written_at OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => $3) OPERATOR(pg_catalog.<=) $2)";

/// Deletes abandoned checkpoints, at most `limit`; how many, and where to go on. Those whose request is at
/// work are left alone. A number that was given up is not, and neither is anything in a session that is not
/// known.
pub fn delete_abandoned(from: Place, limit: usize) -> Result<(usize, Option<Place>), Error> {
    let now = sql::moment(pg::now_us().saturating_sub(KEEP_SLACK_US));
    let retention_s = guc::retention_us() as f64 / 1e6;
    let part = part::find(Table::Checkpoint, "digest", from, limit, ABANDONED, vec![now.into(), retention_s.into()])?;
    let idle = |digest: &[u8; 16]| Tag::request(&Digest(*digest)).try_acquire();
    let idle: Vec<_> = part.ids.into_iter().filter(idle).collect();
    if idle.is_empty() {
        return Ok((0, part.next));
    }
    // It may have been written again, or recorded, before its lock was had.
    let statement = format!(
        "DELETE FROM idempotence.checkpoint t WHERE t.digest OPERATOR(pg_catalog.=) ANY ($1) AND ({ABANDONED})"
    );
    let deleted = sql::execute(&statement, &[sql::ids(&idle).into(), now.into(), retention_s.into()])?;
    Ok((deleted, part.next))
}
