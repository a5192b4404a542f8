//! `idempotence.session`: standing sessions and their tombstones. The client sessions in the same table
//! are read and written in `client.rs`.

use crate::domain::identity::SessionId;
use crate::domain::limits::SESSION_CHARS_MAX;
use crate::domain::time_key;
use crate::error::Error;
use crate::guc;
use crate::pg;
use crate::store::cache::{self, Index, Table};
use crate::store::client::Client;
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, Tuple, is_null, oid_equals, text_equals};
use pgrx::datum::IntoDatum;
use pgrx::pg_sys;
use std::rc::Rc;

pub(super) const ID: usize = 0;
pub(super) const CREATED_AT: usize = 1;
pub(super) const ENDED_AT: usize = 2;
pub(super) const OWNER: usize = 3;
pub(super) const WINDOW_SIZE: usize = 4;
pub(super) const REQUIRE_PAYLOAD: usize = 5;
pub(super) const INBOX: usize = 6;
pub(super) const TIME_KEYS: usize = 7;
pub(super) const ORDERING: usize = 8;
pub(super) const ENDED: usize = 9;
pub(super) const REQUEST_ID: usize = 10;
const TTL: usize = 11;
pub(super) const TIMEOUT: usize = 12;
const NAME: usize = 13;
pub(super) const CLIENT: usize = 14;
const USABLE_BY: usize = 15;
pub(super) const COLUMNS: usize = 16;
pub(super) type Columns<'a> = Tuple<'a, COLUMNS>;

/// A standing session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// The same for all its lives.
    pub id: SessionId,
    /// What callers know it by.
    pub name: String,
    /// Whose it is.
    pub owner: pg_sys::Oid,
    /// Whom it is lent to.
    pub usable_by: Option<pg_sys::Oid>,
    /// Every request must come with a payload.
    pub require_payload: bool,
    /// It only deduplicates: `idem_once`, never `idem_begin`.
    pub inbox: bool,
    /// Its keys are UUIDv7 and too old ones are refused.
    pub time_keys: bool,
    /// How long its outcomes live; `None`: as long as the setting `retention` says.
    pub ttl_us: Option<i64>,
    /// When it was made.
    pub created_at: i64,
    /// When it was dropped, if it was.
    pub dropped_at: Option<i64>,
}

/// The session of a request.
#[derive(Clone)]
pub enum Session {
    /// Its requests have keys.
    Standing(Rc<Standing>),
    /// Its requests are numbered.
    Client(Rc<Client>),
}

impl Session {
    /// What callers know it by.
    pub fn name(&self) -> &str {
        match self {
            Session::Standing(session) => &session.name,
            Session::Client(session) => &session.name,
        }
    }

    /// The id of a client session.
    pub fn client_id(&self) -> Option<&SessionId> {
        match self {
            Session::Standing(_) => None,
            Session::Client(session) => Some(&session.id),
        }
    }
}

/// What a caller wants to do, and so which role's privileges he must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// Work with its requests: those of the owner, or of the role that it is lent to.
    Use,
    /// Change, lend, drop it, make it again: those of the owner.
    Own,
}

impl Standing {
    /// Finds the session of a request and checks the caller's right to it: the one place where that is
    /// done. Before any lock, so that nobody blocks, or learns of, another's requests.
    pub fn of_caller(name: &str, right: Right, action: &'static str) -> Result<Rc<Standing>, Error> {
        // What is remembered is used without a lock on the table, so what others changed is taken in here.
        cache::take_in_messages();
        let session = Standing::remembered(name).filter(|session| session.dropped_at.is_none());
        match session {
            Some(session) => session.allowed(right, action),
            None => Err(not_standing(name, action)),
        }
    }

    /// The session, if the caller has the right to it.
    pub fn allowed(self: Rc<Standing>, right: Right, action: &'static str) -> Result<Rc<Standing>, Error> {
        self.check_right(right, action)?;
        Ok(self)
    }

    /// 42501 unless the caller has the right.
    pub fn check_right(&self, right: Right, action: &'static str) -> Result<(), Error> {
        let is_lent = || right == Right::Use && self.usable_by.is_some_and(pg::has_privileges_of);
        if pg::has_privileges_of(self.owner) || is_lent() {
            Ok(())
        } else {
            Err(Error::NotYours { session: self.name.clone(), action, right })
        }
    }

    /// How long its outcomes live.
    pub fn ttl_us(&self) -> i64 {
        self.ttl_us.unwrap_or_else(guc::retention_us)
    }

    fn remembered(name: &str) -> Option<Rc<Standing>> {
        cache::remembered(
            |cache| cache.sessions.get(name).map(|session| Some(Rc::clone(session))),
            || match find(name) {
                Some((session, committed)) => (Some(Rc::new(session)), committed),
                // That there is none is not remembered: the names that are asked for have no bound.
                None => (None, false),
            },
            |cache, session| {
                if let Some(session) = session {
                    cache.sessions.put(session.name.clone(), session);
                }
            },
        )
    }

    fn columns(&self) -> [Option<pg_sys::Datum>; COLUMNS] {
        let mut columns = [None; COLUMNS];
        columns[ID] = Some(pg::uuid(&self.id));
        columns[CREATED_AT] = Some(self.created_at.into());
        columns[ENDED_AT] = self.dropped_at.map(Into::into);
        columns[OWNER] = Some(self.owner.into());
        columns[REQUIRE_PAYLOAD] = Some(self.require_payload.into());
        columns[INBOX] = Some(self.inbox.into());
        columns[TIME_KEYS] = Some(self.time_keys.into());
        columns[TTL] = self.ttl_us.and_then(|us| pg::interval(us).into_datum());
        columns[NAME] = Some(pg::text(&self.name));
        columns[USABLE_BY] = self.usable_by.map(Into::into);
        columns
    }
}

/// 42501 unless the caller has the privileges of a client session's owner.
pub fn check_owner(owner: pg_sys::Oid, session: &str, action: &'static str) -> Result<(), Error> {
    if pg::has_privileges_of(owner) {
        Ok(())
    } else {
        Err(Error::NotYours { session: session.into(), action, right: Right::Own })
    }
}

/// Whether there is any session, or a tombstone of one.
pub fn any() -> bool {
    let table = Rel::open(Table::Session, Access::Read);
    table.find(None, &mut [], Snapshot::LatestMvcc, |_: &Columns<'_>| Some(())).is_some()
}

/// How many standing sessions an owner has, with their tombstones; it need not be known beyond `enough`.
pub fn count(owner: pg_sys::Oid, enough: i64) -> i64 {
    let table = Rel::open(Table::Session, Access::Read);
    let keys = &mut [oid_equals(OWNER as i16 + 1, owner), is_null(CLIENT as i16 + 1)];
    let mut count = 0;
    table.find(Some(Index::SessionClient), keys, Snapshot::LatestMvcc, |row: &Columns<'_>| {
        // Client sessions without a client's name are there as well.
        count += i64::from(row.datum(NAME).is_some());
        (count >= enough).then_some(())
    });
    count
}

/// As [`unknown`], of a session that may be a client's.
fn not_standing(name: &str, action: &'static str) -> Error {
    let Some(id) = time_key::client_session(name) else { return unknown(name) };
    match Client::of_caller(name, &id, action) {
        Err(error) => error,
        Ok(session) => Error::Invalid {
            message: format!("session \"{}\" is a client session", session.name),
            detail: "It is neither an inbox nor to be changed or dropped: its client registered it as it is.".into(),
            hint: "Use its requests with idem_begin() and idem_record(); end it with idem_close().",
        },
    }
}

/// What a name means that no standing session has.
pub fn unknown(name: &str) -> Error {
    if time_key::client_session(name).is_some() {
        Error::SessionEnded { session: name.into(), how: None }
    } else if name.chars().nth(SESSION_CHARS_MAX).is_some() {
        Error::LimitExceeded {
            what: "the name of a session".into(),
            found: format!("{} characters", name.chars().count()),
            limit: format!("{SESSION_CHARS_MAX} characters"),
            hint: "The first argument is the session, the second one the request.",
        }
    } else {
        Error::NoSuchSession { session: name.into() }
    }
}

/// The session or its tombstone as it is now, and whether that is committed.
pub fn find(name: &str) -> Option<(Standing, bool)> {
    let table = Rel::open(Table::Session, Access::Read);
    let found = find_in(&table, name)?;
    Some((found.session, found.committed))
}

struct Found<'rel> {
    session: Standing,
    at: Tid<'rel>,
    committed: bool,
}

fn find_in<'rel>(table: &'rel Rel, name: &str) -> Option<Found<'rel>> {
    let keys = &mut [text_equals(NAME as i16 + 1, name)];
    table.find(Some(Index::SessionName), keys, Snapshot::LatestMvcc, |row: &Columns<'rel>| {
        let session = Standing {
            id: row.uuid(ID)?,
            name: row.text(NAME)?,
            owner: row.oid(OWNER)?,
            usable_by: row.oid(USABLE_BY).filter(|role| *role != pg_sys::InvalidOid),
            require_payload: row.bool(REQUIRE_PAYLOAD)?,
            inbox: row.bool(INBOX)?,
            time_keys: row.bool(TIME_KEYS)?,
            ttl_us: row.interval_us(TTL),
            created_at: row.int8(CREATED_AT)?,
            dropped_at: row.int8(ENDED_AT),
        };
        Some(Found { session, at: row.at(), committed: !row.is_ours() })
    })
}

/// Saves a session: in the place of its former row, or as a new one. The caller holds its lock.
pub fn save(session: &Standing) {
    let table = Rel::open(Table::Session, Access::Write);
    match find_in(&table, &session.name) {
        Some(former) => table.update(former.at, &session.columns()),
        None => table.insert(&session.columns()),
    }
    message::session_changed(&session.id);
}
