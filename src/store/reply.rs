//! `idempotence.reply`: the replies of client sessions, a row for each slot that was used. A row is written only under
//! the lock of its lane: its slot's, or in a session with strict order its stream's. The next reply of the slot is
//! written over it. The sweep deletes the rows when it deletes their session.

use crate::domain::class::Class;
use crate::domain::sequence::{Kept, Range};
use crate::error::Error;
use crate::model::Stream;
use crate::pg::{self, Jsonb};
use crate::store::catalog::{Index, Table};
use crate::store::outcome::Outcome;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Hint, Tid, columns, int4_below, int4_equals, text_equals, uuid_equals};
use crate::store::write;
use pgrx::pg_sys;
use uuid::Uuid;

columns! { "reply", Columns, COLUMNS: SESSION, FIRST, LAST, RECORDED_AT, SLOT, CLASS, STREAM, RECORDED_BY, RESPONSE, FINGERPRINT, TOKEN }

/// The letter in the column `class` for a reply whose response was dropped. The row still tells that its numbers were
/// done.
const DROPPED: u8 = b'd';

/// A reply.
pub struct Reply {
    /// Its slot and its numbers.
    pub kept: Kept,
    /// Its outcome, if that was asked for and the response was not dropped.
    pub outcome: Option<Outcome>,
    /// Where its row stands.
    pub hint: Hint,
}

/// The reply that is kept in a slot. It is read with its outcome if it has any of the numbers `of`, and otherwise without.
pub fn in_slot(stream: Stream<'_>, slot: i32, of: Option<Range>, snapshot: Snapshot) -> Result<Option<Reply>, Error> {
    let table = Rel::open(Table::Reply, Access::Read);
    Ok(find_in_slot(&table, stream, slot, of, snapshot)?.map(|(reply, _)| reply))
}

fn find_in_slot<'rel>(
    table: &'rel Rel,
    stream: Stream<'_>,
    slot: i32,
    of: Option<Range>,
    snapshot: Snapshot,
) -> Result<Option<(Reply, Tid<'rel>)>, Error> {
    if table.is_empty() {
        return Ok(None);
    }
    let keys = &mut keys(stream, slot);
    let read =
        |row: &Columns<'rel>| Some(read(table, row, of).ok_or_else(|| broken(stream)).map(|reply| (reply, row.at())));
    table.find(Some(Index::Reply), keys, snapshot, read).transpose()
}

fn keys(stream: Stream<'_>, slot: i32) -> [pg_sys::ScanKeyData; 3] {
    [uuid_equals(SESSION, stream.session), text_equals(STREAM, stream.name), int4_equals(SLOT, slot)]
}

/// The replies that are kept in a stream, those with their outcomes that have any of the numbers `of`.
pub fn in_stream(stream: Stream<'_>, of: Option<Range>, snapshot: Snapshot) -> Result<Vec<Reply>, Error> {
    let table = Rel::open(Table::Reply, Access::Read);
    let mut replies = Vec::new();
    if table.is_empty() {
        return Ok(replies);
    }
    let mut below = i32::MAX;
    let mut is_broken = false;
    loop {
        let keys =
            &mut [uuid_equals(SESSION, stream.session), text_equals(STREAM, stream.name), int4_below(SLOT, below)];
        let is_end = table.visit_back(Index::Reply, keys, snapshot, |row: &Columns<'_>| match read(&table, row, of) {
            Some(reply) => {
                below = reply.kept.slot;
                replies.push(reply);
            }
            None => is_broken = true,
        });
        if is_broken || is_end {
            return if is_broken { Err(broken(stream)) } else { Ok(replies) };
        }
    }
}

fn broken(stream: Stream<'_>) -> Error {
    let session = Uuid::from_bytes(*stream.session);
    Error::Corrupted { message: format!("a reply of session \"{session}\" lacks a value") }
}

fn read(table: &Rel, row: &Columns<'_>, of: Option<Range>) -> Option<Reply> {
    let range = Range { first: row.get(FIRST)?, last: row.get(LAST)? };
    let class = match row.char(CLASS)? {
        DROPPED => None,
        letter => Some(Class::of_letter(letter)?),
    };
    let visible = row.visible();
    let outcome = match class {
        // An outcome that was not asked for is not copied.
        Some(class) if of.is_some_and(|of| of.meets(&range)) => Some(Outcome {
            class,
            response: row.jsonb(RESPONSE),
            fingerprint: row.uuid(FINGERPRINT),
            token: row.get(TOKEN),
            recorded_at: row.get(RECORDED_AT)?,
            expires_at: None,
            writer: row.writer(),
            visible,
        }),
        _ => None,
    };
    let slot = row.get(SLOT)?;
    let kept = Kept { range, slot, answers: class.is_some(), visible };
    Some(Reply { kept, outcome, hint: table.hint(row.at()) })
}

/// Writes a reply over the one that its slot keeps, and that may still stand where it stood before. The caller has the
/// lane's lock.
pub fn save(stream: Stream<'_>, slot: i32, range: Range, outcome: &Outcome, before: Option<Hint>) -> Result<(), Error> {
    debug_assert!(outcome.expires_at.is_none(), "a slot decides how long a reply is kept, not the clock");
    debug_assert!(0 <= slot && 1 <= range.first && range.first <= range.last);
    let mut columns = [None; COLUMNS];
    columns[SESSION] = Some(pg::uuid(stream.session));
    columns[FIRST] = Some(range.first.into());
    columns[LAST] = Some(range.last.into());
    columns[RECORDED_AT] = Some(outcome.recorded_at.into());
    columns[SLOT] = Some(slot.into());
    columns[CLASS] = Some((outcome.class.letter() as i8).into());
    columns[STREAM] = Some(pg::text(stream.name));
    columns[RECORDED_BY] = Some(pg::current_role_text());
    columns[RESPONSE] = outcome.response.map(Jsonb::datum);
    columns[FINGERPRINT] = outcome.fingerprint.as_ref().map(pg::uuid);
    columns[TOKEN] = outcome.token.map(Into::into);
    let table = Rel::open(Table::Reply, Access::Write);
    let is_it = |row: &Columns<'_>| {
        row.get(SLOT) == Some(slot) && row.uuid(SESSION) == Some(*stream.session) && row.text_is(STREAM, stream.name)
    };
    let former = match before.and_then(|hint| table.look_at(hint, |row: &Columns<'_>| is_it(row).then_some(row.at()))) {
        None => find_in_slot(&table, stream, slot, None, Snapshot::Itself)?.map(|(_, at)| at),
        found => found,
    };
    write::save(&table, former, &columns);
    Ok(())
}

/// Drops a reply's response and fingerprint. Its numbers stay known as done. The caller has the lane's lock.
pub fn drop_response(stream: Stream<'_>, reply: &Reply) {
    let recorded_by = pg::current_role_text();
    change(stream, reply, |columns| {
        for dropped in [RESPONSE, FINGERPRINT, TOKEN] {
            columns[dropped] = None;
        }
        columns[RECORDED_AT] = Some(pg::now_us().into());
        columns[RECORDED_BY] = Some(recorded_by);
        columns[CLASS] = Some((DROPPED as i8).into());
    });
}

/// Takes the response away from a reply, and keeps all else of it. The caller has the lane's lock.
pub fn redact(stream: Stream<'_>, reply: &Reply) {
    change(stream, reply, |columns| columns[RESPONSE] = None);
}

/// Changes columns of a reply that answers. If another reply was written over it before the caller had the lock, nothing is
/// changed.
fn change(stream: Stream<'_>, reply: &Reply, change: impl Fn(&mut [Option<pg_sys::Datum>; COLUMNS])) {
    let Kept { range, slot, .. } = reply.kept;
    let table = Rel::open(Table::Reply, Access::Write);
    table.find(Some(Index::Reply), &mut keys(stream, slot), Snapshot::Itself, |row: &Columns<'_>| {
        let is_it = row.get(FIRST) == Some(range.first) && row.get(LAST) == Some(range.last);
        let mut columns = row.columns();
        change(&mut columns);
        (is_it && row.char(CLASS) != Some(DROPPED)).then(|| write::update(&table, row.at(), &columns))
    });
}
