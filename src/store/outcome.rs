//! `idempotence.outcome_0` … `outcome_2`: what was recorded, and `outcome_long`: what of it outlived its
//! segment. Rows are inserted and deleted, never updated (but for an inbox's expired ones, see `inbox.rs`),
//! so a probe under the request's lock may use `SnapshotSelf`. One without that lock may too: a row moves
//! from a segment to `outcome_long`, atomically, and is looked for there last.

use crate::domain::decision::{Fingerprint, OutcomeFacts};
use crate::domain::identity::{Digest, SessionId};
use crate::error::{Error, Name};
use crate::pg::{self, Jsonb, Writer};
use crate::store::cache::{Index, Table};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::segment::{self, LONG};
use crate::store::tuple::{Tid, Tuple, uuid_equals};
use pgrx::pg_sys;

const DIGEST: usize = 0;
const SESSION: usize = 1;
const RECORDED_AT: usize = 2;
const EXPIRES_AT: usize = 3;
const RECORDED_BY: usize = 4;
const CLASS: usize = 5;
const KEY: usize = 6;
const FINGERPRINT: usize = 7;
const TOKEN: usize = 8;
const RESPONSE: usize = 9;
type Columns<'a> = Tuple<'a, 10>;

/// A success or a final failure; the letters stand in the column `class`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// `s`
    Succeeded,
    /// `f`
    Failed,
}

impl Class {
    /// The letter stored.
    pub fn letter(self) -> u8 {
        match self {
            Class::Succeeded => b's',
            Class::Failed => b'f',
        }
    }
}

/// What is kept of an executed request.
pub struct Outcome {
    /// See [`Class`].
    pub class: Class,
    /// What it answered.
    pub response: Option<Jsonb>,
    /// Of the payload, where one was given.
    pub fingerprint: Option<Fingerprint>,
    /// When it was recorded.
    pub recorded_at: i64,
    /// When it may be forgotten; `None` where its session decides that, not the clock.
    pub expires_at: Option<i64>,
    /// Whose commit makes it last.
    pub writer: Writer,
}

impl Outcome {
    /// Whether it still counts. An expired one that is still there is absent.
    pub fn lives_at(&self, moment: i64) -> bool {
        self.expires_at.is_none_or(|expires_at| expires_at > moment)
    }

    /// What the decision rests on; `visible`: whether the transaction's snapshot sees it.
    pub fn facts(&self, visible: bool) -> OutcomeFacts {
        OutcomeFacts { expires_at: self.expires_at.unwrap_or(i64::MAX), visible, fingerprint: self.fingerprint }
    }
}

/// An outcome found, expired or not.
pub struct Found {
    /// What it says.
    pub outcome: Outcome,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
}

/// Which request a probe looks for.
pub struct Wanted<'a> {
    /// Its session.
    pub session: &'a SessionId,
    /// The session's name, for messages.
    pub session_name: &'a str,
    /// Its stream; empty in a standing session.
    pub stream: &'a str,
    /// Its key or number.
    pub key: &'a str,
    /// Where it is kept.
    pub digest: Digest,
}

/// Finds the request's outcome that lives at `asked_at`; failing that, an expired one that is still there.
pub fn find(wanted: &Wanted<'_>, asked_at: i64, snapshot: Snapshot) -> Result<Option<Found>, Error> {
    let mut expired = None;
    for place in segment::probe_order() {
        match find_in(place, wanted, snapshot)? {
            Some(found) if found.outcome.lives_at(asked_at) => return Ok(Some(found)),
            Some(found) => expired = Some(found),
            None => {}
        }
    }
    // Last: a row may have moved here since the segments were looked into, but never moves back.
    match if segment::any_long() { find_in(LONG, wanted, snapshot)? } else { None } {
        Some(found) if found.outcome.lives_at(asked_at) => Ok(Some(found)),
        found => Ok(found.or(expired)),
    }
}

/// A table of outcomes and its index.
type Place = (Table, Index);

fn find_in(place: Place, wanted: &Wanted<'_>, snapshot: Snapshot) -> Result<Option<Found>, Error> {
    let table = Rel::open(place.0, Access::Read);
    let found = find_in_open(&table, place, wanted, snapshot)?;
    Ok(found.map(|(found, _)| found))
}

fn find_in_open<'rel>(
    table: &'rel Rel,
    (name, index): Place,
    wanted: &Wanted<'_>,
    snapshot: Snapshot,
) -> Result<Option<(Found, Tid<'rel>)>, Error> {
    if table.is_empty() {
        return Ok(None);
    }
    let keys = &mut [uuid_equals(DIGEST as i16 + 1, &wanted.digest.0)];
    let read = |row: &Columns<'rel>| Some(read(row, name, wanted).map(|found| (found, row.at())));
    table.find(Some(index), keys, snapshot, read).transpose()
}

fn read(row: &Columns<'_>, table: Table, wanted: &Wanted<'_>) -> Result<Found, Error> {
    // The digest only leads here; what counts is the name.
    if row.uuid(SESSION).as_ref() != Some(wanted.session) || !row.text_is(KEY, wanted.key) {
        let name = Name::new(wanted.session_name, wanted.key);
        return Err(Error::Corrupted { message: format!("the outcome found for {name} is another request's") });
    }
    let broken = || Error::Corrupted { message: format!("an outcome in {} lacks a value", table.name()) };
    let class = match row.char(CLASS) {
        Some(b's') => Class::Succeeded,
        Some(b'f') => Class::Failed,
        _ => return Err(broken()),
    };
    Ok(Found {
        outcome: Outcome {
            class,
            response: row.jsonb(RESPONSE),
            fingerprint: row.uuid(FINGERPRINT),
            recorded_at: row.int8(RECORDED_AT).ok_or_else(broken)?,
            expires_at: Some(row.int8(EXPIRES_AT).ok_or_else(broken)?),
            writer: row.writer(),
        },
        visible: row.visible(),
    })
}

/// Deletes what is kept of the request, wherever it is; gives what it was, where there was anything.
pub fn clear(wanted: &Wanted<'_>) -> Result<Option<Class>, Error> {
    let mut cleared = None;
    for place in segment::probe_order().into_iter().chain([LONG]) {
        if find_in(place, wanted, Snapshot::Itself)?.is_none() {
            continue;
        }
        // Looked for again under the lock that keeps the segment from being emptied and filled anew: by
        // then another's row could stand in the place.
        let table = Rel::open(place.0, Access::Write);
        if let Some((found, at)) = find_in_open(&table, place, wanted, Snapshot::Itself)? {
            table.delete(at);
            cleared = Some(found.outcome.class);
        }
    }
    Ok(cleared)
}

/// Inserts an outcome.
pub fn insert(wanted: &Wanted<'_>, outcome: &Outcome) {
    let (_, table) = segment::open_for_outcomes();
    let mut columns: [Option<pg_sys::Datum>; 10] = [None; 10];
    columns[DIGEST] = Some(pg::uuid(&wanted.digest.0));
    columns[SESSION] = Some(pg::uuid(wanted.session));
    columns[RECORDED_AT] = Some(outcome.recorded_at.into());
    columns[EXPIRES_AT] = outcome.expires_at.map(Into::into);
    columns[RECORDED_BY] = Some(pg::current_role().into());
    columns[CLASS] = Some((outcome.class.letter() as i8).into());
    columns[KEY] = Some(pg::text(wanted.key));
    columns[FINGERPRINT] = outcome.fingerprint.as_ref().map(pg::uuid);
    columns[RESPONSE] = outcome.response.map(Jsonb::datum);
    debug_assert!(columns[TOKEN].is_none(), "only a leased claim has a token");
    table.insert(&columns);
}
