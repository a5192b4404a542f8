//! `idempotence.session_live`: the client sessions at work, and when each was last heard of. Unlogged:
//! empty after a crash, and not to be read on a standby.

use crate::domain::identity::SessionId;
use crate::domain::liveness::runs_out_at;
use crate::pg;
use crate::store::cache::{Index, Table};
use crate::store::client::{Client, order_letter, order_of_letter};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, Tuple, oid_equals, text_equals, uuid_equals};
use pgrx::datum::IntoDatum;
use pgrx::pg_sys;
use uuid::Uuid;

const ID: usize = 0;
const CREATED_AT: usize = 1;
const LAST_SEEN: usize = 2;
const OWNER: usize = 3;
const WINDOW_SIZE: usize = 4;
const ORDERING: usize = 5;
const REQUEST_ID: usize = 6;
const TIMEOUT: usize = 7;
const CLIENT: usize = 8;
type Columns<'a> = Tuple<'a, 9>;

/// A client session at work.
pub struct Live {
    /// Itself.
    pub client: Client,
    /// When its last sign of life was written.
    pub last_seen: i64,
}

/// The session's row, if it is there.
pub fn find(id: &SessionId) -> Option<Live> {
    if pg::in_recovery() {
        return None;
    }
    find_in(&Rel::open(Table::SessionLive, Access::Read), id).map(|(live, _)| live)
}

fn find_in<'rel>(table: &'rel Rel, id: &SessionId) -> Option<(Live, Tid<'rel>)> {
    let read = |row: &Columns<'rel>| Some((read(row)?, row.at()));
    table.find_changing(Index::SessionLive, &mut [uuid_equals(ID as i16 + 1, id)], read)
}

/// The session of an owner's client.
pub fn find_by_client(owner: pg_sys::Oid, client: &str) -> Option<Live> {
    let table = Rel::open(Table::SessionLive, Access::Read);
    let keys = &mut [oid_equals(OWNER as i16 + 1, owner), text_equals(CLIENT as i16 + 1, client)];
    table.find_changing(Index::SessionLiveClient, keys, read)
}

/// The session that an owner registered under this id.
pub fn find_by_request_id(owner: pg_sys::Oid, request_id: &SessionId) -> Option<Live> {
    let table = Rel::open(Table::SessionLive, Access::Read);
    let keys = &mut [uuid_equals(REQUEST_ID as i16 + 1, request_id)];
    table.find_changing(Index::SessionLiveRequestId, keys, |row| read(row).filter(|live| live.client.owner == owner))
}

/// How many sessions an owner has at work, without those whose clock has run out.
pub fn count(owner: pg_sys::Oid) -> i64 {
    let now_us = pg::now_us();
    // While the server is down nobody's time passes.
    let up_since = pg::up_since().unwrap_or(now_us);
    let table = Rel::open(Table::SessionLive, Access::Read);
    let keys = &mut [oid_equals(OWNER as i16 + 1, owner)];
    let mut count = 0;
    table.find(Some(Index::SessionLiveClient), keys, Snapshot::LatestMvcc, |row: &Columns<'_>| -> Option<()> {
        count += i64::from(runs_out_at(row.int8(LAST_SEEN)?.max(up_since), row.interval_us(TIMEOUT)?) > now_us);
        None
    });
    count
}

fn read(row: &Columns<'_>) -> Option<Live> {
    let id = row.uuid(ID)?;
    Some(Live {
        client: Client {
            id,
            name: Uuid::from_bytes(id).to_string(),
            owner: row.oid(OWNER)?,
            client: row.text(CLIENT),
            request_id: row.uuid(REQUEST_ID),
            order: order_of_letter(row.char(ORDERING)?)?,
            window: row.int4(WINDOW_SIZE)?,
            timeout_us: row.interval_us(TIMEOUT)?,
            created_at: row.int8(CREATED_AT)?,
        },
        last_seen: row.int8(LAST_SEEN)?,
    })
}

fn columns(client: &Client, last_seen: i64) -> [Option<pg_sys::Datum>; 9] {
    let mut columns = [None; 9];
    columns[ID] = Some(pg::uuid(&client.id));
    columns[CREATED_AT] = Some(client.created_at.into());
    columns[LAST_SEEN] = Some(last_seen.into());
    columns[OWNER] = Some(client.owner.into());
    columns[WINDOW_SIZE] = Some(client.window.into());
    columns[ORDERING] = Some((order_letter(client.order) as i8).into());
    columns[REQUEST_ID] = client.request_id.as_ref().map(pg::uuid);
    columns[TIMEOUT] = pg::interval(client.timeout_us).into_datum();
    columns[CLIENT] = client.client.as_deref().map(pg::text);
    columns
}

/// Locks the table to write it, if nobody is in the way.
pub fn try_lock() -> bool {
    Rel::try_lock(Table::SessionLive)
}

/// Puts a session to work, or back to work, or writes its sign of life. The caller holds the session's lock
/// alone, or the lock of its sign of life.
pub fn save(client: &Client, last_seen: i64) {
    let table = Rel::open(Table::SessionLive, Access::Write);
    let columns = columns(client, last_seen);
    match find_in(&table, &client.id) {
        Some((_, at)) => table.update(at, &columns),
        None => table.insert(&columns),
    }
}

/// Takes a session from work, if it is there. The caller holds its lock alone.
pub fn delete(id: &SessionId) {
    let table = Rel::open(Table::SessionLive, Access::Write);
    if let Some((_, at)) = find_in(&table, id) {
        table.delete(at);
    }
}
