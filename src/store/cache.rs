//! What a backend remembers between transactions: where our tables are, the ring's pointer, the
//! sessions, the secret. Committed rows only.
//!
//! Everything is dropped at once when PostgreSQL tells that one of our tables changed: on DDL (also
//! DROP and CREATE EXTENSION), and when whoever changes `session` by SQL, or `secret`, says so. A change of
//! one standing session, or of the ring's pointer, drops just that: see `message.rs`. Such messages take
//! effect at commit. They are taken in at the start of each transaction and with every lock on a table, so
//! the order is: lock the table, then trust the cache. Sessions, on which rights rest, are used without one:
//! [`take_in_messages`] comes first there.

use crate::domain::identity::{Secret, SessionId};
use crate::domain::version;
use crate::error::Error;
use crate::pg;
use crate::protocol::quota::{Share, Sort};
use crate::store::client::Client;
use crate::store::message::{self, Changes};
use crate::store::session::Standing;
use crate::store::write::Way;
use pgrx::pg_sys;
use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

/// Our tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Table {
    /// `idempotence.outcome_0`
    Outcome0,
    /// `idempotence.outcome_1`
    Outcome1,
    /// `idempotence.outcome_2`
    Outcome2,
    /// `idempotence.session`
    Session,
    /// `idempotence.segment`
    Segment,
    /// `idempotence.checkpoint`
    Checkpoint,
    /// `idempotence.secret`
    Secret,
    /// `idempotence.audit`
    Audit,
    /// `idempotence.session_live`
    SessionLive,
    /// `idempotence.reply`
    Reply,
    /// `idempotence.stream`
    Stream,
    /// `idempotence.sweep`
    Sweep,
    /// `idempotence.restore`
    Restore,
    /// `idempotence.outcome_long`
    OutcomeLong,
}

impl Table {
    /// Its name, in the schema `idempotence`.
    pub fn name(self) -> &'static str {
        TABLES[self as usize]
    }
}

const TABLES: [&str; 14] = [
    "outcome_0",
    "outcome_1",
    "outcome_2",
    "session",
    "segment",
    "checkpoint",
    "secret",
    "audit",
    "session_live",
    "reply",
    "stream",
    "sweep",
    "restore",
    "outcome_long",
];

/// Our indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Index {
    /// By digest.
    Outcome0,
    /// By digest.
    Outcome1,
    /// By digest.
    Outcome2,
    /// By name.
    SessionName,
    /// By digest.
    Checkpoint,
    /// By id.
    Session,
    /// By owner and client.
    SessionClient,
    /// By the id of the registration.
    SessionRequestId,
    /// By owner and end.
    SessionEnded,
    /// By id.
    SessionLive,
    /// By owner and client.
    SessionLiveClient,
    /// By the id of the registration.
    SessionLiveRequestId,
    /// By session, stream and slot.
    Reply,
    /// By session and stream.
    Stream,
    /// By digest.
    OutcomeLong,
}

const INDEXES: [&str; 15] = [
    "outcome_0_pkey",
    "outcome_1_pkey",
    "outcome_2_pkey",
    "session_name_key",
    "checkpoint_pkey",
    "session_pkey",
    "session_client_idx",
    "session_request_id_idx",
    "session_ended_idx",
    "session_live_pkey",
    "session_live_client_idx",
    "session_live_request_id_idx",
    "reply_pkey",
    "stream_pkey",
    "outcome_long_pkey",
];

impl Index {
    /// Whether it leads to rows that are written over again and again, and to each by the whole key. While
    /// somebody holds an old snapshot, all that was there before stays, and the index leads to it too: so
    /// the newest is looked for first.
    pub fn is_of_rewritten(self) -> bool {
        matches!(self, Index::Reply | Index::Stream | Index::SessionLive)
    }
}

/// Where the ring stands, see `segment.rs`.
#[derive(Clone, Copy)]
pub struct Pointer {
    /// The segment that records go to.
    pub current: usize,
    /// Whether outcomes that outlived their segment may be in the table for them.
    pub long: bool,
}

/// All that is remembered.
#[derive(Default)]
pub struct Cache {
    /// So many messages were acted on.
    messages: u64,
    tables: Option<[pg_sys::Oid; TABLES.len()]>,
    indexes: Option<[pg_sys::Oid; INDEXES.len()]>,
    /// How each table takes its rows.
    pub(super) ways: [Option<Way>; TABLES.len()],
    /// See [`Pointer`].
    pub pointer: Option<Pointer>,
    /// The key of the digests.
    pub secret: Option<Secret>,
    /// Standing sessions by name.
    pub sessions: Few<String, Rc<Standing>>,
    /// Client sessions by id: what never changes of them.
    pub clients: Few<SessionId, Rc<Client>>,
    /// Client sessions that are saved in `session`; they stay so until they have ended.
    pub saved: Few<SessionId, ()>,
    /// How many more sessions of a sort each owner may surely have.
    pub quota: Few<(pg_sys::Oid, Sort), Share>,
}

impl Cache {
    fn act_on(&mut self, changes: Changes) {
        if changes.all {
            *self = Cache::default();
            return;
        }
        if changes.ring {
            self.pointer = None;
        }
        self.sessions.0.retain(|_, session| !changes.include(&session.id));
    }
}

/// A map of at most a thousand: with more, it forgets them all and starts again.
pub struct Few<K, V>(HashMap<K, V>);

const FEW: usize = 1000;

impl<K, V> Default for Few<K, V> {
    fn default() -> Few<K, V> {
        Few(HashMap::new())
    }
}

impl<K: Eq + Hash, V> Few<K, V> {
    /// What is remembered of it.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// As [`Few::get`], to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    /// Remembers.
    pub fn put(&mut self, key: K, value: V) {
        if self.0.len() >= FEW {
            self.0.clear();
        }
        self.0.insert(key, value);
    }
}

thread_local! {
    static OIDS: Cell<[pg_sys::Oid; TABLES.len()]> = const { Cell::new([pg_sys::InvalidOid; TABLES.len()]) };
    static CACHE: RefCell<Cache> = RefCell::default();
}

/// Uses the cache. `work` must not call into PostgreSQL: what it calls could come back here.
pub fn with<T>(work: impl FnOnce(&mut Cache) -> T) -> T {
    CACHE.with_borrow_mut(|cache| {
        if cache.messages != message::count() {
            cache.act_on(message::take_changes());
            cache.messages = message::count();
        }
        work(cache)
    })
}

/// What `get` remembers, or else what `read` finds, remembered by `put` if it is committed (the second
/// of what `read` gives) and nothing changed while it was read.
pub fn remembered<T: Clone>(
    get: impl FnOnce(&Cache) -> Option<T>,
    read: impl FnOnce() -> (T, bool),
    put: impl FnOnce(&mut Cache, T),
) -> T {
    if let Some(value) = with(|cache| get(cache)) {
        return value;
    }
    let messages = message::count();
    let (value, committed) = read();
    if committed && message::count() == messages {
        with(|cache| put(cache, value.clone()));
    }
    value
}

/// The table's oid.
pub fn oid(table: Table) -> pg_sys::Oid {
    let read = || {
        check_version();
        let oids = TABLES.map(look_up);
        crate::worker::announce();
        // The callback compares with these; they stay when the rest is dropped.
        OIDS.set(oids);
        (oids, true)
    };
    remembered(|cache| cache.tables, read, |cache, oids| cache.tables = Some(oids))[table as usize]
}

/// The index's oid. Looked up by name, since REINDEX CONCURRENTLY replaces an index under its name.
pub fn index_oid(index: Index) -> pg_sys::Oid {
    let read = || (INDEXES.map(look_up), true);
    remembered(|cache| cache.indexes, read, |cache, oids| cache.indexes = Some(oids))[index as usize]
}

/// Whether our tables are there.
pub fn is_installed() -> bool {
    TABLES.into_iter().all(|name| find(name) != pg_sys::InvalidOid)
}

/// The library may have been replaced before the tables were, or after them. Rows of another shape are
/// never read or written: 55000 then. Asked again at each call until they fit, and after that whenever a
/// table of ours has changed, which each upgrade script sees to.
pub fn check_version() {
    if let Some(tables) = pg::extension_version()
        && tables != version::LIBRARY
    {
        Error::OtherVersion { tables }.raise();
    }
}

fn look_up(name: &str) -> pg_sys::Oid {
    let oid = find(name);
    if oid == pg_sys::InvalidOid {
        Error::NotInstalled { relation: format!("idempotence.{name}") }.raise();
    }
    oid
}

fn find(name: &str) -> pg_sys::Oid {
    let c_name = std::ffi::CString::new(name).expect("a name of ours has no NUL");
    // SAFETY: both look a name up in the system caches; the strings live as long as the calls.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idempotence".as_ptr(), true);
        pg_sys::get_relname_relid(c_name.as_ptr(), schema)
    }
}

/// Takes in what others have changed and committed. Cheap when there is nothing.
pub fn take_in_messages() {
    // SAFETY: called inside a transaction, with nothing borrowed from the cache.
    unsafe { pg_sys::AcceptInvalidationMessages() }
}

/// Whether the relation is one of our tables, as far as this backend has looked.
pub(super) fn is_ours(relation: pg_sys::Oid) -> bool {
    OIDS.get().contains(&relation)
}
