//! Client sessions in `idempotence.session`: those with an outcome, and those whose end has to be known.
//! The ones at work are in `live.rs`, saved or not.

use crate::domain::identity::SessionId;
use crate::domain::liveness::End;
use crate::domain::sequence::Order;
use crate::error::Error;
use crate::lock::{By, Tag};
use crate::pg;
use crate::store::cache::{self, Index, Table};
use crate::store::live;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::session::{
    self, CLIENT, COLUMNS, CREATED_AT, Columns, ENDED, ENDED_AT, ID, INBOX, ORDERING, OWNER, REQUEST_ID,
    REQUIRE_PAYLOAD, TIME_KEYS, TIMEOUT, WINDOW_SIZE,
};
use crate::store::tuple::{Tid, char_equals, is_null, oid_equals, text_equals, uuid_equals};
use pgrx::datum::IntoDatum;
use pgrx::pg_sys;
use std::rc::Rc;
use uuid::Uuid;

/// What never changes of a client session.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// Made up by the server, never used again.
    pub id: SessionId,
    /// The id as text, which callers know it by.
    pub name: String,
    /// Who registered it.
    pub owner: pg_sys::Oid,
    /// The name of the client, unique for its owner among sessions that have not ended.
    pub client: Option<String>,
    /// The id of the registration.
    pub request_id: Option<SessionId>,
    /// See [`Order`].
    pub order: Order,
    /// So many replies are kept.
    pub window: i32,
    /// The longest silence it outlasts.
    pub timeout_us: i64,
    /// When it was registered.
    pub created_at: i64,
}

/// A client session in `session`.
pub struct Saved {
    /// Itself.
    pub client: Client,
    /// When and how it ended, if it has.
    pub ended: Option<(i64, End)>,
    /// No longer only this transaction's.
    pub committed: bool,
}

impl Client {
    /// Finds a client session by the name given and checks the caller's right to it. Whether it has
    /// ended is not looked at here.
    pub fn of_caller(name: &str, id: &Uuid, action: &'static str) -> Result<Rc<Client>, Error> {
        let id = *id.as_bytes();
        let client = match Client::remembered(&id) {
            Some(client) => client,
            None => Client::hardly_known(name, &id)?,
        };
        session::check_owner(client.owner, &client.name, action)?;
        Ok(client)
    }

    /// What was not found may be a transaction's that was prepared before a crash, say; and that may be
    /// committing just now, so it is looked for once more after its lock.
    fn hardly_known(name: &str, id: &SessionId) -> Result<Rc<Client>, Error> {
        let session = name.to_owned();
        if pg::in_recovery() {
            return Err(Error::SessionNotHere { session });
        }
        let held = Tag::client(id).is_held_by_another();
        match Client::remembered(id) {
            Some(client) => Ok(client),
            None if held => Err(Error::SessionInDoubt { session }),
            None => Err(Error::SessionEnded { session, how: None }),
        }
    }

    fn remembered(id: &SessionId) -> Option<Rc<Client>> {
        cache::remembered(
            |cache| cache.clients.get(id).map(|client| Some(Rc::clone(client))),
            || match live::find(id).map(|live| live.client).or_else(|| find(id).map(|saved| saved.client)) {
                // Its row may be this transaction's own and never be committed, but what it says of this
                // id stays true; whether the session is there is looked at with each use.
                Some(client) => (Some(Rc::new(client)), true),
                None => (None, false),
            },
            |cache, client| {
                if let Some(client) = client {
                    cache.clients.put(client.id, client);
                }
            },
        )
    }

    /// What a registration could know it by.
    pub fn known_by(&self) -> impl Iterator<Item = By<'_>> {
        let id = self.request_id.as_ref().map(By::Id);
        id.into_iter().chain(self.client.as_deref().map(By::Client))
    }

    /// The columns of its row in `session`.
    fn columns(&self, ended: Option<(i64, u8)>) -> [Option<pg_sys::Datum>; COLUMNS] {
        let mut columns = [None; COLUMNS];
        columns[ID] = Some(pg::uuid(&self.id));
        columns[CREATED_AT] = Some(self.created_at.into());
        columns[ENDED_AT] = ended.map(|(at, _)| at.into());
        columns[OWNER] = Some(self.owner.into());
        columns[WINDOW_SIZE] = Some(self.window.into());
        for standing_only in [REQUIRE_PAYLOAD, INBOX, TIME_KEYS] {
            columns[standing_only] = Some(false.into());
        }
        columns[ORDERING] = Some((order_letter(self.order) as i8).into());
        columns[ENDED] = ended.map(|(_, letter)| (letter as i8).into());
        columns[REQUEST_ID] = self.request_id.as_ref().map(pg::uuid);
        columns[TIMEOUT] = pg::interval(self.timeout_us).into_datum();
        columns[CLIENT] = self.client.as_deref().map(pg::text);
        columns
    }
}

/// The letter that stands for an order in the column `ordering`.
pub fn order_letter(order: Order) -> u8 {
    match order {
        Order::Any => b'a',
        Order::Strict => b's',
    }
}

/// What a letter in the column `ordering` stands for.
pub fn order_of_letter(letter: u8) -> Option<Order> {
    match letter {
        b'a' => Some(Order::Any),
        b's' => Some(Order::Strict),
        _ => None,
    }
}

/// The session's row, if it has one.
pub fn find(id: &SessionId) -> Option<Saved> {
    find_in(&Rel::open(Table::Session, Access::Read), id).map(|(saved, _)| saved)
}

fn find_in<'rel>(table: &'rel Rel, id: &SessionId) -> Option<(Saved, Tid<'rel>)> {
    let read = |row: &Columns<'rel>| Some((read(row)?, row.at()));
    table.find_changing(Index::Session, &mut [uuid_equals(ID as i16 + 1, id)], read)
}

/// The session of an owner's client that has not ended.
pub fn find_by_client(owner: pg_sys::Oid, client: &str) -> Option<Saved> {
    let table = Rel::open(Table::Session, Access::Read);
    let keys = &mut [
        oid_equals(OWNER as i16 + 1, owner),
        text_equals(CLIENT as i16 + 1, client),
        is_null(ENDED_AT as i16 + 1),
    ];
    table.find_changing(Index::SessionClient, keys, read)
}

/// The session that an owner registered under this id, ended or not.
pub fn find_by_request_id(owner: pg_sys::Oid, request_id: &SessionId) -> Option<Saved> {
    let table = Rel::open(Table::Session, Access::Read);
    let keys = &mut [uuid_equals(REQUEST_ID as i16 + 1, request_id)];
    table.find_changing(Index::SessionRequestId, keys, |row| read(row).filter(|saved| saved.client.owner == owner))
}

fn read(row: &Columns<'_>) -> Option<Saved> {
    let id = row.uuid(ID)?;
    let ended = match row.int8(ENDED_AT) {
        Some(at) => Some((at, End::of_letter(row.char(ENDED)?)?)),
        None => None,
    };
    Some(Saved {
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
        ended,
        committed: !row.is_ours(),
    })
}

/// How many sessions of an owner have a row for nothing but their end.
pub fn count_ended_unsaved(owner: pg_sys::Oid) -> i64 {
    let table = Rel::open(Table::Session, Access::Read);
    let mut count = 0;
    for end in End::ALL {
        let keys = &mut [oid_equals(OWNER as i16 + 1, owner), char_equals(ENDED as i16 + 1, end.letter(false))];
        table.find(Some(Index::SessionEnded), keys, Snapshot::LatestMvcc, |_: &Columns<'_>| -> Option<()> {
            count += 1;
            None
        });
    }
    count
}

/// Makes a session durable; it has no row yet.
pub fn insert(client: &Client) {
    Rel::open(Table::Session, Access::Write).insert(&client.columns(None));
}

/// Notes the end of a session: of a saved one in its row, of another in a row of its own if `keep` says so.
/// One that has ended already is left as it is. Whether anything was noted. The caller holds its lock.
pub fn end(client: &Client, at: i64, end: End, keep: bool) -> bool {
    let table = Rel::open(Table::Session, Access::Write);
    let ended = |saved| client.columns(Some((at, end.letter(saved))));
    match find_in(&table, &client.id) {
        Some((saved, row)) if saved.ended.is_none() => table.update(row, &ended(true)),
        None if keep => table.insert(&ended(false)),
        _ => return false,
    }
    true
}
