//! The index of a long list, which finds its entries. A short list has none: going through all entries costs less.

use super::entry::{Entry, RequestKey};
use crate::domain::identity::Digest;
use std::collections::{HashMap, TryReserveError};
use std::hash::{BuildHasher, Hash, RandomState};
use std::iter::successors;

/// The greatest length of a list without an index. It is small in tests, so that they soon exceed it.
pub const SCANNED_MAX: usize = if cfg!(test) { 4 } else { 16 };

/// The places of all entries, by name and by lock.
#[derive(Default)]
pub struct EntryIndex {
    hasher: RandomState,
    /// The newest entry of each hash of a name.
    names: HashMap<u64, usize>,
    /// The newest entry of each lock.
    locks: HashMap<Digest, usize>,
    /// For each entry, the entry before it with the same hash of its name, and the entry before it with the same lock.
    before: Vec<(Option<usize>, Option<usize>)>,
}

impl EntryIndex {
    /// Makes room for one more entry.
    pub fn reserve(&mut self) -> Result<(), TryReserveError> {
        self.names.try_reserve(1)?;
        self.locks.try_reserve(1)?;
        self.before.try_reserve(1)
    }

    /// Adds an entry, which goes to the end of the list.
    pub fn add(&mut self, entry: &Entry) {
        let place = self.before.len();
        let of_name = self.names.insert(self.hash(entry.key()), place);
        let of_lock = self.locks.insert(entry.open.lock, place);
        self.before.push((of_name, of_lock));
    }

    /// Takes the last entry away.
    pub fn remove(&mut self, entry: &Entry) {
        let Some((of_name, of_lock)) = self.before.pop() else { return };
        let hash = self.hash(entry.key());
        put_back(&mut self.names, hash, of_name);
        put_back(&mut self.locks, entry.open.lock, of_lock);
    }

    /// The newest entry of a request, and its place.
    pub fn newest<'a>(&self, key: RequestKey<'_>, entries: &'a [Entry]) -> Option<(usize, &'a Entry)> {
        let newest = self.names.get(&self.hash(key)).copied();
        // That it is another name with the same hash is rare.
        let place = successors(newest, |at| self.before[*at].0).find(|at| entries[*at].is(key))?;
        Some((place, &entries[place]))
    }

    /// The newest entry under a lock.
    pub fn newest_under<'a>(&self, lock: &Digest, entries: &'a [Entry]) -> Option<&'a Entry> {
        self.locks.get(lock).map(|place| &entries[*place])
    }

    /// How many different locks the entries have.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    fn hash(&self, key: RequestKey<'_>) -> u64 {
        self.hasher.hash_one((key.session, key.stream, key.request))
    }
}

fn put_back<K: Eq + Hash>(map: &mut HashMap<K, usize>, key: K, before: Option<usize>) {
    match before {
        Some(place) => map.insert(key, place),
        None => map.remove(&key),
    };
}
