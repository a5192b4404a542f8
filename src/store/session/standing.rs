//! Standing sessions in `idempotence.session`, and their tombstones: the rows of dropped sessions.

use super::columns::*;
use crate::domain::identity::SessionId;
use crate::model::StandingSession;
use crate::pg;
use crate::store::catalog::{Index, Table};
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{is_null, oid_equals, text_equals, uuid_equals};
use crate::store::write;
use pgrx::datum::IntoDatum;
use pgrx::pg_sys;

/// The number of standing sessions of an owner, with their tombstones. Counting stops at `enough`.
pub fn count(owner: pg_sys::Oid, enough: i64) -> i64 {
    let table = Rel::open(Table::Session, Access::Read);
    let keys = &mut [oid_equals(OWNER, owner), is_null(CLIENT)];
    // The index has client sessions without a client's name under the same key.
    table.count(Some(Index::SessionClient), keys, enough, |row: &Columns<'_>| row.datum(NAME).is_some())
}

/// The session or its tombstone as it is now, and whether the row is committed.
pub fn find(name: &str) -> Option<(StandingSession, bool)> {
    let table = Rel::open(Table::Session, Access::Read);
    find_in(&table, name, |row| Some((read(row)?, !row.is_ours())))
}

/// The session or its tombstone, by its id.
pub fn find_by_id(id: &SessionId) -> Option<StandingSession> {
    let table = Rel::open(Table::Session, Access::Read);
    let keys = &mut [uuid_equals(ID, id)];
    table.find(Some(Index::Session), keys, Snapshot::LatestMvcc, read)
}

fn find_in<'rel, T>(table: &'rel Rel, name: &str, read: impl Fn(&Columns<'rel>) -> Option<T>) -> Option<T> {
    table.find_changing(Index::SessionName, &mut [text_equals(NAME, name)], read)
}

fn read(row: &Columns<'_>) -> Option<StandingSession> {
    Some(StandingSession {
        id: row.uuid(ID)?,
        name: row.get(NAME)?,
        owner: row.get(OWNER)?,
        usable_by: row.get(USABLE_BY).filter(|role: &pg_sys::Oid| *role != pg_sys::InvalidOid),
        require_payload: row.get(REQUIRE_PAYLOAD)?,
        inbox: row.get(INBOX)?,
        time_keys: row.get(TIME_KEYS)?,
        ttl_us: row.interval_us(TTL),
        max_attempts: row.get(MAX_ATTEMPTS),
        node: row.get(NODE),
        journal: row.get(JOURNAL),
        created_at: row.get(CREATED_AT)?,
        dropped_at: row.get(ENDED_AT),
    })
}

/// Saves a session, over its former row if it has one. The caller holds the lock on its name.
pub fn save(session: &StandingSession) {
    debug_assert!(session.ttl_us.is_some() || !session.time_keys, "time keys need a ttl");
    let table = Rel::open(Table::Session, Access::Write);
    let former = find_in(&table, &session.name, |row| Some(row.at()));
    write::save(&table, former, &row(session));
    message::session_changed(&session.id);
}

fn row(session: &StandingSession) -> [Option<pg_sys::Datum>; COLUMNS] {
    let mut columns = [None; COLUMNS];
    columns[ID] = Some(pg::uuid(&session.id));
    columns[CREATED_AT] = Some(session.created_at.into());
    columns[ENDED_AT] = session.dropped_at.map(Into::into);
    columns[OWNER] = Some(session.owner.into());
    columns[REQUIRE_PAYLOAD] = Some(session.require_payload.into());
    columns[INBOX] = Some(session.inbox.into());
    columns[TIME_KEYS] = Some(session.time_keys.into());
    columns[TTL] = session.ttl_us.and_then(|us| pg::interval(us).into_datum());
    columns[NAME] = Some(pg::text(&session.name));
    columns[MAX_ATTEMPTS] = session.max_attempts.map(Into::into);
    columns[JOURNAL] = session.journal.as_deref().map(pg::text);
    columns[USABLE_BY] = session.usable_by.map(Into::into);
    columns[NODE] = session.node.as_deref().map(pg::text);
    columns
}
