//! What a backend remembers between transactions, and until when: where our tables are, how they are written,
//! where the ring stands, the secret, the sessions, and how many sessions may still be made.
//!
//! What is remembered was committed when it was read, with two exceptions. What is remembered of a client session never
//! changes, so a row that this transaction has written itself is remembered as well. And the number of sessions that
//! may still be made is an estimate: it also counts sessions that this transaction has made and may roll back.
//!
//! A message from another backend (`invalidation.rs`) makes this one forget. DDL on one of our tables, a change of
//! `session` by SQL, and a change of the secret make it forget everything. A change of a standing session makes it
//! forget the sessions of the same set, and a change of the ring's pointer makes it forget the pointer. A message goes
//! out when the transaction that sent it commits. A backend takes messages in at the start of each transaction and with
//! every new lock on a table. So the order is: lock the table, then trust the cache. Rights rest on standing sessions,
//! which are used without a lock on their table. Whoever uses one calls [`take_in_messages`] first.

use crate::board;
use crate::domain::allowance::{Allowance, Kind};
use crate::domain::identity::{Digest, Secret, SessionId};
use crate::model::{ClientSession, StandingSession};
use crate::pg::Own;
use crate::store::catalog::{self, INDEXES, Index, TABLES, Table};
use crate::store::invalidation::{self, Changes};
use crate::store::tuple::Hint;
use crate::store::way::Way;
use pgrx::pg_sys;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::rc::Rc;

/// Where the ring stands, see `segment.rs`.
#[derive(Clone)]
pub struct Pointer {
    /// The segment that records go to.
    pub current: usize,
    /// When the last of its outcomes expires at the latest.
    pub ends_at: i64,
    /// What is known of the segment after the current one, and of the one before it.
    pub others: [Other; 2],
}

/// What is known of a segment that is not the current one.
#[derive(Clone)]
pub enum Other {
    /// Any request may have an outcome there.
    Any,
    /// It has no outcome.
    Blank,
    /// It has no UUIDv7 of these times, see `fresh.rs`.
    NoneOf(Range<i64>),
}

impl Other {
    /// Whether it may have an outcome of one of some keys. `made_at` tells when the first and the last of them were made,
    /// if they are UUIDv7s.
    pub fn may_have(&self, made_at: impl FnOnce() -> Option<(i64, i64)>) -> bool {
        match self {
            Other::Any => true,
            Other::Blank => false,
            Other::NoneOf(times) => made_at().is_none_or(|(first, last)| first < times.start || last >= times.end),
        }
    }
}

/// All that is remembered. Entries are added to its maps by [`put`].
#[derive(Default)]
pub struct Cache {
    /// The count of messages up to which the cache is true.
    messages: u64,
    tables: Option<[pg_sys::Oid; TABLES.len()]>,
    indexes: Option<[pg_sys::Oid; INDEXES.len()]>,
    /// How each table takes its rows.
    pub(super) ways: [Option<Way>; TABLES.len()],
    /// Where the ring stands.
    pub pointer: Option<Pointer>,
    /// The key of the digests.
    pub secret: Option<Secret>,
    /// Standing sessions by name.
    pub standing: HashMap<String, Rc<StandingSession>>,
    /// Client sessions by id: the part of each that never changes.
    pub clients: HashMap<SessionId, Rc<ClientSession>>,
    /// Client sessions that are known to have a row in `session`. They keep it at least until they have ended.
    pub saved: HashMap<SessionId, ()>,
    /// Where the rows of client sessions at work stood, and the last sign of life in each.
    pub at_work: HashMap<SessionId, (Hint, i64)>,
    /// Where the lease stood that was last found or written.
    pub lease: Option<(Digest, Hint)>,
    /// How many more sessions of a kind each owner may have.
    pub quota: HashMap<(pg_sys::Oid, Kind), Allowance>,
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
        self.standing.retain(|_, session| !changes.include(&session.id));
    }
}

const ENTRIES_MAX: usize = 1000;

/// Remembers one more entry of a map. A map that is full forgets all former ones.
pub fn put<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, value: V) {
    if map.len() >= ENTRIES_MAX {
        map.clear();
    }
    map.insert(key, value);
}

static CACHE: Own<Cache> = Own::new();

/// Uses the cache. `work` must not call into PostgreSQL, see [`Own::with`].
pub fn with<T>(work: impl FnOnce(&mut Cache) -> T) -> T {
    CACHE.with(|cache| {
        if cache.messages != invalidation::count() {
            cache.act_on(invalidation::take_changes());
            cache.messages = invalidation::count();
        }
        work(cache)
    })
}

/// Gives the value that `get` finds in the cache. If `get` finds none, gives the value that `read` reads from the
/// tables. `read` also tells whether the value may be remembered. If so, `put` puts it into the cache, unless a message
/// came while it was read.
pub fn remembered<T: Clone>(
    get: impl FnOnce(&Cache) -> Option<T>,
    read: impl FnOnce() -> (T, bool),
    put: impl FnOnce(&mut Cache, T),
) -> T {
    remembered_if_there(get, || Some(read()), put).expect("what is read is there")
}

/// As [`remembered`], for what there may be none of. That there is none is not remembered: callers may ask for any number of
/// names.
pub fn remembered_if_there<T: Clone>(
    get: impl FnOnce(&Cache) -> Option<T>,
    read: impl FnOnce() -> Option<(T, bool)>,
    put: impl FnOnce(&mut Cache, T),
) -> Option<T> {
    if let Some(value) = with(|cache| get(cache)) {
        return Some(value);
    }
    let messages = invalidation::count();
    let (value, lasts) = read()?;
    if lasts && invalidation::count() == messages {
        with(|cache| put(cache, value.clone()));
    }
    Some(value)
}

/// The oid of a table.
pub fn oid(table: Table) -> pg_sys::Oid {
    let read = || {
        catalog::check_version();
        let oids = TABLES.map(catalog::look_up);
        board::announce();
        invalidation::watch(oids);
        (oids, true)
    };
    remembered(|cache| cache.tables, read, |cache, oids| cache.tables = Some(oids))[table as usize]
}

/// The oid of an index. The index is looked up by name, since REINDEX CONCURRENTLY replaces it under its name.
pub fn index_oid(index: Index) -> pg_sys::Oid {
    let read = || (INDEXES.map(catalog::look_up), true);
    remembered(|cache| cache.indexes, read, |cache, oids| cache.indexes = Some(oids))[index as usize]
}

/// Takes in the pending messages, which tell what others have changed and committed. Without any it costs little.
pub fn take_in_messages() {
    // SAFETY: called inside a transaction, while nothing is borrowed from the cache.
    unsafe { pg_sys::AcceptInvalidationMessages() }
}
