//! Client sessions in `idempotence.session`: the saved ones, and those whose end has to stay known. `session_live.rs`
//! has the sessions at work, saved or not.

use super::columns::*;
use crate::domain::end::End;
use crate::domain::identity::SessionId;
use crate::model::{ClientSession, KnownBy};
use crate::pg::Writer;
use crate::store::catalog::{Index, Table};
use crate::store::client_row::ClientColumns;
use crate::store::rel::{Access, Rel};
use crate::store::tuple::{char_equals, oid_equals};
use crate::store::write;
use pgrx::pg_sys;

const ROW: ClientColumns = ClientColumns {
    columns: [ID, CREATED_AT, OWNER, WINDOW_SIZE, TIMEOUT, ORDERING, NODE, CLIENT, REQUEST_ID],
    ended_at: Some(ENDED_AT),
    by_id: Index::Session,
    by_client: Index::SessionClient,
    by_request_id: Index::SessionRequestId,
};

/// A client session in `session`.
pub struct Saved {
    /// The part that never changes.
    pub session: ClientSession,
    /// When and how it ended, if it has.
    pub ended: Option<(i64, End)>,
    /// Whether the row is committed, that is, another transaction wrote it.
    pub committed: bool,
    /// The transaction that wrote the row.
    pub writer: Writer,
}

fn read(row: &Columns<'_>) -> Option<Saved> {
    let ended = match row.get(ENDED_AT) {
        Some(at) => Some((at, End::of_letter(row.char(ENDED)?)?)),
        None => None,
    };
    Some(Saved { session: ROW.read(row)?, ended, committed: !row.is_ours(), writer: row.writer() })
}

/// The session's row, if it has one.
pub fn find(id: &SessionId) -> Option<Saved> {
    ROW.find(&Rel::open(Table::Session, Access::Read), id, read).map(|(saved, _)| saved)
}

/// The session that a registration of an owner finds: by the client's name one that has not ended, by the id of the
/// registration one that has ended too.
pub fn find_registered(owner: pg_sys::Oid, by: KnownBy<'_>) -> Option<ClientSession> {
    ROW.find_registered::<COLUMNS>(Table::Session, owner, by)
}

/// The number of an owner's sessions that have a row for nothing but their end.
pub fn count_ended_unsaved(owner: pg_sys::Oid) -> i64 {
    let table = Rel::open(Table::Session, Access::Read);
    let count = |end: End| {
        let keys = &mut [oid_equals(OWNER, owner), char_equals(ENDED, end.letter(false))];
        table.count(Some(Index::SessionEnded), keys, i64::MAX, |_: &Columns<'_>| true)
    };
    End::ALL.into_iter().map(count).sum()
}

/// Saves a session that has no row yet. The caller holds the lock on its saving.
pub fn insert(session: &ClientSession) {
    write::insert(&Rel::open(Table::Session, Access::Write), &row(session, None));
}

/// Notes the end of a session; gives whether it did. The row of a saved session notes its end. A session without a row
/// gets one for its end if `keep` says so. A session that has ended already is left as it is. The caller holds the
/// session's lock exclusively.
pub fn end(session: &ClientSession, at: i64, end: End, keep: bool) -> bool {
    let table = Rel::open(Table::Session, Access::Write);
    let ended = |saved| row(session, Some((at, end.letter(saved))));
    match ROW.find(&table, &session.id, read) {
        Some((saved, place)) if saved.ended.is_none() => write::update(&table, place, &ended(true)),
        None if keep => drop(write::insert(&table, &ended(false))),
        _ => return false,
    }
    true
}

/// The row of a session; `ended` is when it ended, and the letter for how.
fn row(session: &ClientSession, ended: Option<(i64, u8)>) -> [Option<pg_sys::Datum>; COLUMNS] {
    let mut columns = ROW.write(session);
    for standing_only in [REQUIRE_PAYLOAD, INBOX, TIME_KEYS] {
        columns[standing_only] = Some(false.into());
    }
    columns[ENDED_AT] = ended.map(|(at, _)| at.into());
    columns[ENDED] = ended.map(|(_, letter)| (letter as i8).into());
    columns
}
