//! `idempotence.session_live`: the client sessions at work, with the last sign of life of each. The table is unlogged:
//! it is empty after a crash, and it cannot be read on a standby.

use crate::domain::identity::SessionId;
use crate::domain::timeout::runs_out_at;
use crate::model::{ClientSession, KnownBy};
use crate::pg;
use crate::store::cache;
use crate::store::catalog::{Index, Table};
use crate::store::client_row::ClientColumns;
use crate::store::lease;
use crate::store::rel::{Access, Rel};
use crate::store::tuple::{columns, oid_equals};
use crate::store::write;
use pgrx::pg_sys;

columns! { "session_live", Columns, COLUMNS:
    ID, CREATED_AT, LAST_SEEN, OWNER, WINDOW_SIZE, TIMEOUT, ORDERING, NODE, CLIENT, REQUEST_ID
}

const ROW: ClientColumns = ClientColumns {
    columns: [ID, CREATED_AT, OWNER, WINDOW_SIZE, TIMEOUT, ORDERING, NODE, CLIENT, REQUEST_ID],
    ended_at: None,
    by_id: Index::SessionLive,
    by_client: Index::SessionLiveClient,
    by_request_id: Index::SessionLiveRequestId,
};

/// A client session at work.
pub struct Live {
    /// The part that never changes.
    pub session: ClientSession,
    /// When its last sign of life was written.
    pub last_seen: i64,
}

fn read(row: &Columns<'_>) -> Option<Live> {
    Some(Live { session: ROW.read(row)?, last_seen: row.get(LAST_SEEN)? })
}

/// The session's row, if the session is at work. A standby finds none.
pub fn find(id: &SessionId) -> Option<Live> {
    if pg::in_recovery() {
        return None;
    }
    ROW.find(&Rel::open(Table::SessionLive, Access::Read), id, read).map(|(live, _)| live)
}

/// When the last sign of life of the session was written, if the session is at work. A standby finds none.
pub fn last_seen(id: &SessionId) -> Option<i64> {
    if pg::in_recovery() {
        return None;
    }
    let table = Rel::open(Table::SessionLive, Access::Read);
    let here = |row: &Columns<'_>| {
        let seen = if row.uuid(ID)? == *id { row.get(LAST_SEEN) } else { None };
        seen.map(|seen: i64| (seen, row.is_ours()))
    };
    let before = cache::with(|cache| cache.at_work.get(id).copied());
    let there = before.and_then(|(hint, _)| table.look_at(hint, here).map(|found| (found, hint)));
    let ((seen, is_ours), hint) =
        there.or_else(|| ROW.find(&table, id, here).map(|(found, at)| (found, table.hint(at))))?;
    // What this transaction itself has written may be rolled back.
    if !is_ours && (there.is_none() || before.is_some_and(|(_, known)| known != seen)) {
        cache::with(|cache| cache::put(&mut cache.at_work, *id, (hint, seen)));
    }
    Some(seen)
}

/// The last sign of life that this backend remembers of the session. It was committed, so the session has that one or a
/// later one, unless the session has ended.
pub fn remembered(id: &SessionId) -> Option<i64> {
    cache::with(|cache| cache.at_work.get(id).map(|(_, seen)| *seen))
}

/// The session at work that a registration of an owner finds.
pub fn find_registered(owner: pg_sys::Oid, by: KnownBy<'_>) -> Option<ClientSession> {
    ROW.find_registered::<COLUMNS>(Table::SessionLive, owner, by)
}

/// The number of an owner's sessions at work, without those whose clock has run out.
pub fn count(owner: pg_sys::Oid) -> i64 {
    let now_us = pg::now_us();
    // A session's clock stands still while the server is down.
    let up_since = pg::up_since().unwrap_or(now_us);
    let table = Rel::open(Table::SessionLive, Access::Read);
    let keys = &mut [oid_equals(OWNER, owner)];
    let is_at_work = |row: &Columns<'_>| {
        let runs_out_at = runs_out_at(row.get::<i64>(LAST_SEEN)?.max(up_since), row.interval_us(TIMEOUT)?);
        // A lease keeps its session.
        Some(runs_out_at > now_us || lease::last_end(&row.uuid(ID)?, now_us).is_some())
    };
    table.count(Some(Index::SessionLiveClient), keys, i64::MAX, |row| is_at_work(row) == Some(true))
}

/// Whether a DBA has made the table logged, so that a crash does not empty it.
pub fn is_logged() -> bool {
    !Rel::open(Table::SessionLive, Access::Read).is_unlogged()
}

/// Locks the table to write it if no conflicting lock is held; gives whether it did.
pub fn try_lock() -> bool {
    Rel::try_lock(Table::SessionLive)
}

/// Puts a session to work or back to work, or writes its sign of life. The caller holds the session's lock exclusively
/// or the lock on its sign of life.
pub fn save(session: &ClientSession, last_seen: i64) {
    let table = Rel::open(Table::SessionLive, Access::Write);
    let former = ROW.find(&table, &session.id, read);
    write::save(&table, former.map(|(_, place)| place), &row(session, last_seen));
}

/// Puts a session to work whose id was made just now, so that it has no row yet.
pub fn insert(session: &ClientSession, last_seen: i64) {
    write::insert(&Rel::open(Table::SessionLive, Access::Write), &row(session, last_seen));
}

fn row(session: &ClientSession, last_seen: i64) -> [Option<pg_sys::Datum>; COLUMNS] {
    let mut columns = ROW.write(session);
    columns[LAST_SEEN] = Some(last_seen.into());
    columns
}

/// Deletes the session's row if it has one: the session is no longer at work. The caller holds its lock exclusively.
pub fn delete(id: &SessionId) {
    let table = Rel::open(Table::SessionLive, Access::Write);
    if let Some((_, place)) = ROW.find(&table, id, read) {
        write::delete(&table, place);
    }
}
