//! `idempotence.outcome_0` to `outcome_2`, which have the outcomes of keyed requests, and `outcome_long`, which has the
//! outcomes that outlive a segment.
//!
//! Rows are inserted and deleted but never updated, except an inbox's expired ones (see `inbox.rs`). So a probe may use
//! `SnapshotSelf`, with the request's lock or without it.
//!
//! A redaction is no update either. The row is deleted where it is, and inserted without its response where a record would
//! insert it now, in one transaction. But the current segment is probed first. So a probe without the request's lock may
//! pass the place of the new row before the commit and the former one after it, and find neither. Such a caller probes
//! again before it relies on that there is none (see `requests/find.rs`). It misses nothing twice, since an outcome is
//! redacted once at most.

use crate::domain::class::Class;
use crate::domain::decision::{Fingerprint, KeptFacts};
use crate::domain::time_key;
use crate::error::{Error, RequestName};
use crate::lock::Tag;
use crate::pg::{self, Jsonb, Writer};
use crate::store::blank;
use crate::store::catalog::Table;
use crate::store::claimed::Claimed;
use crate::store::outcome_columns::*;
use crate::store::probe::Probe;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::segment;
use crate::store::snapshot::{RowState, row_state};
use crate::store::tuple::Tid;
use crate::store::write;
use pgrx::{PgSqlErrorCode, pg_sys};

/// The outcome of a request: what is kept of it once it was executed.
#[derive(Clone)]
pub struct Outcome {
    /// Success or final failure.
    pub class: Class,
    /// The response.
    pub response: Option<Jsonb>,
    /// The fingerprint of the payload, if one was given.
    pub fingerprint: Option<Fingerprint>,
    /// The token of the lease that it was recorded with, if it was.
    pub token: Option<i64>,
    /// When it was recorded.
    pub recorded_at: i64,
    /// When it expires; `None` in a client session, which keeps it until its slot is needed.
    pub expires_at: Option<i64>,
    /// The transaction that wrote it, whose commit makes it durable.
    pub writer: Writer,
    /// Whether this transaction's snapshot sees it.
    pub visible: bool,
}

impl Outcome {
    /// Whether it has not expired at that moment. An expired outcome counts as absent, even while its row is there.
    pub fn lives_at(&self, moment: i64) -> bool {
        self.expires_at.is_none_or(|expires_at| expires_at > moment)
    }

    /// The facts for the decision.
    pub fn facts(&self) -> KeptFacts {
        let expires_at = self.expires_at.unwrap_or(i64::MAX);
        KeptFacts { expires_at, visible: self.visible, fingerprint: self.fingerprint }
    }
}

/// Finds the request's outcome that has not expired at `asked_at`. If there is none, gives an expired one that is still
/// there, and the locks that were claimed. `access` is for the current segment.
pub fn find(
    probe: &Probe<'_>,
    asked_at: i64,
    snapshot: Snapshot,
    access: Access,
) -> Result<(Option<Outcome>, Option<Claimed>), Error> {
    let mut expired = None;
    let made_at = || time_key::made_from_to([probe.key]);
    let (living, claimed) = segment::probe(access, made_at, |table| {
        let Some((found, _)) = find_in(table, probe, snapshot)? else { return Ok::<_, Error>(None) };
        if found.lives_at(asked_at) {
            return Ok(Some(found));
        }
        expired = Some(found);
        Ok(None)
    })?;
    Ok((living.or(expired), claimed))
}

/// The request's outcome in some table that lives at `now_us` and that this transaction has not inserted.
pub fn find_of_others(probe: &Probe<'_>, now_us: i64) -> bool {
    let lives =
        |row: &Columns<'_>| row.get::<i64>(EXPIRES_AT).filter(|expires_at| !row.is_ours() && *expires_at > now_us);
    segment::all().any(|table| {
        let table = Rel::open(table, Access::Read);
        !table.is_empty() && table.find_digest(&probe.digest, Snapshot::Itself, lives).is_some()
    })
}

fn find_in<'rel>(
    table: &'rel Rel,
    probe: &Probe<'_>,
    snapshot: Snapshot,
) -> Result<Option<(Outcome, Tid<'rel>)>, Error> {
    let read = |row: &Columns<'rel>| {
        if matches!(snapshot, Snapshot::WithInserted) && matches!(row_state(), RowState::BeingInserted(_)) {
            return Some(Err(recorded_beside(probe)));
        }
        Some(read(row, table.table, probe).map(|found| (found, row.at())))
    };
    table.find_digest(&probe.digest, snapshot, read).transpose()
}

fn recorded_beside(probe: &Probe<'_>) -> Error {
    Error::RecordedBeside(RequestName::new(probe.session_name, probe.key))
}

/// When the outcome in a row expires.
pub(super) fn expires_at(row: &Columns<'_>, table: Table, probe: &Probe<'_>) -> Result<i64, Error> {
    // The digest only leads to the row. What counts is the name.
    if row.uuid(SESSION).as_ref() != Some(probe.session) || !row.text_is(KEY, probe.key) {
        let name = RequestName::new(probe.session_name, probe.key);
        return Err(Error::Corrupted { message: format!("the outcome found for {name} is another request's") });
    }
    row.get(EXPIRES_AT).ok_or_else(|| broken(table))
}

fn broken(table: Table) -> Error {
    Error::Corrupted { message: format!("an outcome in {} lacks a value", table.name()) }
}

fn read(row: &Columns<'_>, table: Table, probe: &Probe<'_>) -> Result<Outcome, Error> {
    let expires_at = expires_at(row, table, probe)?;
    Ok(Outcome {
        class: row.char(CLASS).and_then(Class::of_letter).ok_or_else(|| broken(table))?,
        response: row.jsonb(RESPONSE),
        fingerprint: row.uuid(FINGERPRINT),
        token: row.get(TOKEN),
        recorded_at: row.get(RECORDED_AT).ok_or_else(|| broken(table))?,
        expires_at: Some(expires_at),
        writer: row.writer(),
        visible: row.visible(),
    })
}

/// Deletes the request's outcome from every table that has one; gives its class if there was one. The caller has the
/// request's lock.
pub fn clear(probe: &Probe<'_>) -> Result<Option<Class>, Error> {
    Ok(take_out(probe)?.map(|(outcome, _)| outcome.class))
}

/// As [`clear`]. Gives the outcome, which of several is the one that lives longest, and who recorded it.
fn take_out(probe: &Probe<'_>) -> Result<Option<(Outcome, String)>, Error> {
    let mut taken: Option<(Outcome, String)> = None;
    for name in segment::all() {
        if find_in(&Rel::open(name, Access::Read), probe, Snapshot::Itself)?.is_none() {
            continue;
        }
        // The row is looked for again under the lock that keeps the segment from being emptied. Without that lock the
        // segment could be emptied and filled anew, and another request's row could be in the same place.
        let table = Rel::open(name, Access::Write);
        let found = table.find_digest(&probe.digest, Snapshot::Itself, |row| {
            Some(read(row, name, probe).map(|outcome| (outcome, row.get(RECORDED_BY).unwrap_or_default(), row.at())))
        });
        let Some((outcome, recorded_by, at)) = found.transpose()? else { continue };
        write::delete(&table, at);
        if taken.as_ref().is_none_or(|(taken, _)| outcome.expires_at > taken.expires_at) {
            taken = Some((outcome, recorded_by));
        }
    }
    Ok(taken)
}

/// Takes the response away from the request's outcome, and keeps all else of it. Gives its class; `None`: no outcome of
/// it has a response. The caller has the request's lock.
pub fn redact(probe: &Probe<'_>) -> Result<Option<Class>, Error> {
    let tells = |name| {
        let response = |row: &Columns<'_>| row.datum(RESPONSE);
        Rel::open(name, Access::Read).find_digest(&probe.digest, Snapshot::Itself, response).is_some()
    };
    if !segment::all().any(tells) {
        return Ok(None);
    }
    // An expired outcome is kept too: a begin that came before the expiry, and waits for the lock, will replay it.
    Ok(take_out(probe)?.map(|(outcome, recorded_by)| {
        insert_by(probe, &Outcome { response: None, ..outcome }, pg::text(&recorded_by));
        outcome.class
    }))
}

/// Inserts an outcome. The caller has the request's lock, and has found since then that the request has no outcome.
pub fn insert(probe: &Probe<'_>, outcome: &Outcome) {
    debug_assert!(Tag::request(&probe.digest).is_held_by_us());
    insert_by(probe, outcome, pg::current_role_text());
}

/// As [`insert`], recorded by that role. An import has no lock of the request, and looks after it has inserted (see
/// `import.rs`).
pub fn insert_by(probe: &Probe<'_>, outcome: &Outcome, recorded_by: pg_sys::Datum) {
    let table = segment::open_for_outcomes(outcome.expires_at.unwrap_or(i64::MAX));
    let mut columns: [Option<pg_sys::Datum>; COLUMNS] = [None; COLUMNS];
    columns[DIGEST] = Some(pg::uuid(&probe.digest.0));
    columns[SESSION] = Some(pg::uuid(probe.session));
    columns[RECORDED_AT] = Some(outcome.recorded_at.into());
    columns[EXPIRES_AT] = outcome.expires_at.map(Into::into);
    columns[CLASS] = Some((outcome.class.letter() as i8).into());
    columns[KEY] = Some(pg::text(probe.key));
    columns[RECORDED_BY] = Some(recorded_by);
    columns[FINGERPRINT] = outcome.fingerprint.as_ref().map(pg::uuid);
    columns[TOKEN] = outcome.token.map(Into::into);
    columns[RESPONSE] = outcome.response.map(Jsonb::datum);
    debug_assert!(probe.stream.is_empty(), "only keyed requests have their outcomes here");
    debug_assert!(outcome.expires_at.is_some_and(|expires_at| expires_at > outcome.recorded_at));
    // Another outcome of the request is there only if it was inserted past the request's lock since this transaction looked:
    // by an import that is about to find that, or by a restore.
    let insert = || write::insert(&table, &columns);
    pg::replacing_error(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, insert, |error| {
        let of_digest = error.message().contains(&format!("{}_pkey", table.table.name()));
        of_digest.then(|| recorded_beside(probe))
    });
    blank::written(table.table);
}
