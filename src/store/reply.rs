//! `idempotence.reply`: the answers of client sessions, in slots. A row is written only under its slot's
//! lock (where the order is strict, its stream's), and stays where it is: the next reply of its slot is
//! written over it.

use crate::domain::identity::SessionId;
use crate::domain::sequence::{Kept, Range};
use crate::error::Error;
use crate::pg::{self, Jsonb};
use crate::store::cache::{Index, Table};
use crate::store::outcome::{Class, Outcome};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, Tuple, int4_below, int4_equals, text_equals, uuid_equals};
use pgrx::pg_sys;
use uuid::Uuid;

const SESSION: usize = 0;
const FIRST: usize = 1;
const LAST: usize = 2;
const RECORDED_AT: usize = 3;
const RECORDED_BY: usize = 4;
const SLOT: usize = 5;
const CLASS: usize = 6;
const STREAM: usize = 7;
const FINGERPRINT: usize = 8;
const TOKEN: usize = 9;
const RESPONSE: usize = 10;
type Columns<'a> = Tuple<'a, 11>;

/// The letter in `class` of a reply that was dropped: what is left is that its numbers were done.
const DROPPED: u8 = b'd';

/// The stream of a session.
#[derive(Clone, Copy)]
pub struct StreamOf<'a> {
    /// The session.
    pub session: &'a SessionId,
    /// The stream's name; the empty one is the session's own numbering.
    pub stream: &'a str,
}

/// A row.
pub struct Reply {
    /// Where, and of which numbers.
    pub kept: Kept,
    /// Its outcome, if it is the one wanted and was not dropped.
    pub outcome: Option<Outcome>,
}

/// Whose outcome is wanted along with what is kept.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// Nobody's.
    None,
    /// Of the request with just these numbers.
    Of(Range),
    /// Of the request that this number is one of.
    With(i64),
}

impl Wanted {
    fn is(self, range: Range) -> bool {
        match self {
            Wanted::None => false,
            Wanted::Of(wanted) => wanted == range,
            Wanted::With(number) => (range.first..=range.last).contains(&number),
        }
    }
}

/// What is kept in a slot; with its outcome if that is wanted.
pub fn in_slot(of: StreamOf<'_>, slot: i32, wanted: Wanted, snapshot: Snapshot) -> Result<Option<Reply>, Error> {
    let table = Rel::open(Table::Reply, Access::Read);
    let found = find_in_slot(&table, of, slot, wanted, snapshot)?;
    Ok(found.map(|(reply, _)| reply))
}

fn find_in_slot<'rel>(
    table: &'rel Rel,
    of: StreamOf<'_>,
    slot: i32,
    wanted: Wanted,
    snapshot: Snapshot,
) -> Result<Option<(Reply, Tid<'rel>)>, Error> {
    if table.is_empty() {
        return Ok(None);
    }
    let keys = &mut [
        uuid_equals(SESSION as i16 + 1, of.session),
        text_equals(STREAM as i16 + 1, of.stream),
        int4_equals(SLOT as i16 + 1, slot),
    ];
    let read = |row: &Columns<'rel>| Some(read(row, of, wanted).map(|reply| (reply, row.at())));
    table.find(Some(Index::Reply), keys, snapshot, read).transpose()
}

/// What is kept in a stream; with the outcome wanted.
pub fn in_stream(of: StreamOf<'_>, wanted: Wanted, snapshot: Snapshot) -> Result<Vec<Reply>, Error> {
    let table = Rel::open(Table::Reply, Access::Read);
    let mut replies = Vec::new();
    if table.is_empty() {
        return Ok(replies);
    }
    let mut below = i32::MAX;
    let mut failed = None;
    loop {
        let keys = &mut [
            uuid_equals(SESSION as i16 + 1, of.session),
            text_equals(STREAM as i16 + 1, of.stream),
            int4_below(SLOT as i16 + 1, below),
        ];
        let is_end = table.visit_back(Index::Reply, keys, snapshot, |row: &Columns<'_>| match read(row, of, wanted) {
            Ok(reply) => {
                below = reply.kept.slot;
                replies.push(reply);
            }
            Err(error) => failed = Some(error),
        });
        match failed {
            Some(error) => return Err(error),
            None if is_end => return Ok(replies),
            None => {}
        }
    }
}

fn read(row: &Columns<'_>, of: StreamOf<'_>, wanted: Wanted) -> Result<Reply, Error> {
    let broken = || {
        let message = format!("a reply of session \"{}\" lacks a value", Uuid::from_bytes(*of.session));
        Error::Corrupted { message }
    };
    let number = |column| row.int8(column).ok_or_else(broken);
    let range = Range { first: number(FIRST)?, last: number(LAST)? };
    let class = match row.char(CLASS) {
        Some(b's') => Some(Class::Succeeded),
        Some(b'f') => Some(Class::Failed),
        Some(DROPPED) => None,
        _ => return Err(broken()),
    };
    let outcome = match class {
        // What is not asked for is not copied either.
        Some(class) if wanted.is(range) => Some(Outcome {
            class,
            response: row.jsonb(RESPONSE),
            fingerprint: row.uuid(FINGERPRINT),
            recorded_at: number(RECORDED_AT)?,
            expires_at: None,
            writer: row.writer(),
        }),
        _ => None,
    };
    let slot = row.int4(SLOT).ok_or_else(broken)?;
    let kept = Kept { range, slot, answers: class.is_some(), visible: row.visible() };
    Ok(Reply { kept, outcome })
}

/// Writes a reply, over the one that its slot keeps.
pub fn save(of: StreamOf<'_>, slot: i32, range: Range, outcome: &Outcome) -> Result<(), Error> {
    let mut columns = row(of, slot, range);
    columns[RECORDED_AT] = Some(outcome.recorded_at.into());
    columns[CLASS] = Some((outcome.class.letter() as i8).into());
    columns[FINGERPRINT] = outcome.fingerprint.as_ref().map(pg::uuid);
    columns[RESPONSE] = outcome.response.map(Jsonb::datum);
    debug_assert!(columns[TOKEN].is_none(), "only a leased claim has a token");
    let table = Rel::open(Table::Reply, Access::Write);
    match find_in_slot(&table, of, slot, Wanted::None, Snapshot::Itself)? {
        Some((_, earlier)) => table.update(earlier, &columns),
        None => table.insert(&columns),
    }
    Ok(())
}

/// Drops a reply's response and fingerprint; its numbers stay known as done.
/// The caller has its slot's lock; the reply may have been written over before that was had.
pub fn drop_response(of: StreamOf<'_>, reply: &Reply) -> Result<(), Error> {
    let Kept { range, slot, .. } = reply.kept;
    let table = Rel::open(Table::Reply, Access::Write);
    let now = find_in_slot(&table, of, slot, Wanted::None, Snapshot::Itself)?;
    let Some((_, at)) = now.filter(|(now, _)| now.kept.range == range && now.kept.answers) else { return Ok(()) };
    let mut columns = row(of, slot, range);
    columns[RECORDED_AT] = Some(pg::now_us().into());
    columns[CLASS] = Some((DROPPED as i8).into());
    table.update(at, &columns);
    Ok(())
}

fn row(of: StreamOf<'_>, slot: i32, range: Range) -> [Option<pg_sys::Datum>; 11] {
    let mut columns = [None; 11];
    columns[SESSION] = Some(pg::uuid(of.session));
    columns[FIRST] = Some(range.first.into());
    columns[LAST] = Some(range.last.into());
    columns[RECORDED_BY] = Some(pg::current_role().into());
    columns[SLOT] = Some(slot.into());
    columns[STREAM] = Some(pg::text(of.stream));
    columns
}
