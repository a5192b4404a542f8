//! `idempotence.checkpoint`: how far unfinished requests got. A checkpoint is written only under the request's lock. A
//! look-up reads it without that lock. The sweep deletes checkpoints that do not count any more.

use crate::domain::decision::{Fingerprint, KeptFacts};
use crate::error::{Error, RequestName};
use crate::pg::{self, Jsonb};
use crate::store::blank;
use crate::store::catalog::Table;
use crate::store::probe::Probe;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, columns};
use crate::store::write;
use pgrx::pg_sys;

columns! { "checkpoint", Columns, COLUMNS: DIGEST, SESSION, WRITTEN_AT, STREAM, REQUEST, POINT, STATE, FINGERPRINT, LAST }

/// A checkpoint.
#[derive(Clone)]
pub struct Checkpoint {
    /// The name of the point reached.
    pub point: String,
    /// What the next transaction of the request needs to go on.
    pub state: Option<Jsonb>,
    /// The fingerprint of the payload, if one was given.
    pub fingerprint: Option<Fingerprint>,
    /// When it was written.
    pub written_at: i64,
    /// The last number of a numbered request; `None` for a keyed one.
    pub last: Option<i64>,
    /// Whether this transaction's snapshot sees it.
    pub visible: bool,
}

impl Checkpoint {
    /// The facts for the decision. The checkpoint counts until `expires_at`.
    pub fn facts(&self, expires_at: i64) -> KeptFacts {
        KeptFacts { expires_at, visible: self.visible, fingerprint: self.fingerprint }
    }
}

/// Finds the request's checkpoint, which may not count any more.
pub fn find(probe: &Probe<'_>, snapshot: Snapshot) -> Result<Option<Checkpoint>, Error> {
    let Some(table) = Rel::open_unless_blank(Table::Checkpoint) else { return Ok(None) };
    Ok(find_in(&table, probe, snapshot)?.map(|(found, _)| found))
}

fn find_in<'rel>(
    table: &'rel Rel,
    probe: &Probe<'_>,
    snapshot: Snapshot,
) -> Result<Option<(Checkpoint, Tid<'rel>)>, Error> {
    if table.is_empty() {
        return Ok(None);
    }
    let read = |row: &Columns<'rel>| Some(read(row, probe).map(|found| (found, row.at())));
    table.find_digest(&probe.digest, snapshot, read).transpose()
}

fn read(row: &Columns<'_>, probe: &Probe<'_>) -> Result<Checkpoint, Error> {
    let name = || RequestName::in_stream(probe.session_name, probe.stream, probe.key);
    // As with outcomes, the digest only leads to the row. Another name under it is an error: to take it for "no
    // checkpoint" would be a guess.
    let same_request = row.text_is(STREAM, probe.stream) && row.text_is(REQUEST, probe.key);
    if row.uuid(SESSION).as_ref() != Some(probe.session) || !same_request {
        return Err(Error::Corrupted { message: format!("the checkpoint found for {} is another request's", name()) });
    }
    let broken = || Error::Corrupted { message: format!("the checkpoint of {} lacks a value", name()) };
    Ok(Checkpoint {
        point: row.get(POINT).ok_or_else(broken)?,
        state: row.jsonb(STATE),
        fingerprint: row.uuid(FINGERPRINT),
        written_at: row.get(WRITTEN_AT).ok_or_else(broken)?,
        last: row.get(LAST),
        visible: row.visible(),
    })
}

/// Writes the request's checkpoint, over an earlier one if there is one. The caller has the request's lock.
pub fn save(probe: &Probe<'_>, checkpoint: &Checkpoint) -> Result<(), Error> {
    let mut columns: [Option<pg_sys::Datum>; COLUMNS] = [None; COLUMNS];
    columns[DIGEST] = Some(pg::uuid(&probe.digest.0));
    columns[SESSION] = Some(pg::uuid(probe.session));
    columns[WRITTEN_AT] = Some(checkpoint.written_at.into());
    columns[LAST] = checkpoint.last.map(Into::into);
    columns[STREAM] = Some(pg::text(probe.stream));
    columns[REQUEST] = Some(pg::text(probe.key));
    columns[POINT] = Some(pg::text(&checkpoint.point));
    columns[FINGERPRINT] = checkpoint.fingerprint.as_ref().map(pg::uuid);
    columns[STATE] = checkpoint.state.map(Jsonb::datum);
    debug_assert!(probe.stream.is_empty() || checkpoint.last.is_some(), "a request of a named stream has numbers");
    let table = Rel::open(Table::Checkpoint, Access::Write);
    let earlier = find_in(&table, probe, Snapshot::Itself)?;
    write::save(&table, earlier.map(|(_, at)| at), &columns);
    blank::written(Table::Checkpoint);
    Ok(())
}

/// Takes the state away from the request's checkpoint, and keeps all else of it. Gives whether there was a state. The
/// caller has the request's lock.
pub fn redact(probe: &Probe<'_>) -> Result<bool, Error> {
    let found = find(probe, Snapshot::Itself)?.filter(|checkpoint| checkpoint.state.is_some());
    let redacted = found.map(|checkpoint| save(probe, &Checkpoint { state: None, ..checkpoint }));
    Ok(redacted.transpose()?.is_some())
}

/// Deletes the request's checkpoint if it has one; gives whether it had. The caller has the request's lock.
pub fn delete(probe: &Probe<'_>) -> Result<bool, Error> {
    let table = Rel::open(Table::Checkpoint, Access::Write);
    let found = find_in(&table, probe, Snapshot::Itself)?;
    Ok(found.map(|(_, at)| write::delete(&table, at)).is_some())
}
