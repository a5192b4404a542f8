//! A roll: the names of the requests that a transaction has begun, in shared memory.
//!
//! **Reading without a lock.** A backend makes the roll's change count odd, changes the roll, and makes the count even.
//! A reader copies the roll and keeps the copy if the count was even and is still the same. PostgreSQL's
//! `pg_stat_activity` does it so. The rolls of prepared transactions are filled under the lock of the tallies.

use crate::pg;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

/// The state of a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// It was begun, and a commit would be refused.
    Begun,
    /// It has a checkpoint or a lease, and may be committed.
    Saved,
    /// Its outcome is recorded.
    Recorded,
    /// It was given up.
    Released,
}

/// The states by number, as the view shows them.
const STATES: [&str; 4] = ["begun", "saved", "recorded", "released"];

/// Where the names of a request stand in its roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub u32);

impl Place {
    /// In no roll: nobody watches.
    pub const UNWATCHED: Place = Place(u32::MAX);
    /// The roll had no room, and has only counted it.
    pub(super) const COUNTED: Place = Place(u32::MAX - 1);
}

/// A roll, all zeros at first. The names follow it.
#[repr(C, align(64))]
pub struct Roll {
    /// Odd while the roll is being changed.
    changes: AtomicU32,
    pub(super) head: Head,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Head {
    /// The process; in the roll of a prepared transaction the process that prepared it. 0: the roll is empty.
    pub(super) pid: i32,
    pub(super) database: u32,
    /// The number of bytes that names take.
    pub(super) used: u32,
    /// The number of requests for whose names there was no room.
    pub(super) unnamed: u32,
    /// The role that was current when the first request was begun.
    pub(super) role: pg_sys::Oid,
    /// In the roll of a prepared transaction its id. Once it has ended, the roll is free.
    pub(super) transaction: u64,
    /// When the first request was begun.
    pub(super) since: i64,
}

/// What stands before the three names of a request: session, stream, request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Entry {
    /// The half of the digest that is locked for it which names the lock.
    pub lock: u64,
    /// When it was begun.
    pub since: i64,
    /// The owner of its session.
    pub owner: pg_sys::Oid,
    /// The role that its session is lent to; 0 if it is not.
    pub usable_by: pg_sys::Oid,
    /// The role that was current when it was begun.
    pub role: pg_sys::Oid,
    pub(super) state: u32,
    pub(super) lengths: [u16; 3],
    pub(super) unused: u16,
}

/// The names of a request: its session, its stream, which is empty in a standing session, and its key or number.
pub type Names = [String; 3];

impl Entry {
    /// How far it is.
    pub fn state(&self) -> Option<&'static str> {
        STATES.get(self.state as usize).copied()
    }
}

/// The size of a roll with so many bytes for names.
pub fn roll_bytes(names: usize) -> usize {
    size_of::<Roll>() + names.next_multiple_of(align_of::<Roll>())
}

/// Changes a roll.
///
/// # Safety
/// Nobody else changes the roll meanwhile: it is this backend's own, or the lock of the tallies is held.
pub(super) unsafe fn change(roll: *mut Roll, work: impl FnOnce(&mut Head, *mut u8)) {
    // SAFETY: as the caller warrants. Readers only copy, and throw away a copy of a roll that was being changed.
    unsafe {
        let changes = &(*roll).changes;
        changes.store(changes.load(Relaxed).wrapping_add(1), Relaxed);
        fence(SeqCst);
        work(&mut (*roll).head, roll.add(1).cast());
        fence(SeqCst);
        changes.store(changes.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// A copy of a roll in shared memory that is not empty, and of the names in it. There is room for this many bytes of names.
pub(super) fn copy(roll: *const Roll, name_bytes: usize) -> Option<(Head, Vec<u8>)> {
    /// A roll changes for moments only. If it goes on for longer, its backend was interrupted in such a moment.
    const TRIES: usize = 1000;
    const PAUSE_US: i64 = 1_000;
    for _ in 0..TRIES {
        // SAFETY: the roll is in shared memory. Whoever changes it does so between two changes of the count, so a copy
        // that was made between the same even count is whole. The length is checked before it is relied on.
        unsafe {
            let before = (*roll).changes.load(Relaxed);
            fence(SeqCst);
            let head = (&raw const (*roll).head).read_volatile();
            if head.pid == 0 && before.is_multiple_of(2) {
                return None;
            }
            let length = (head.used as usize).min(name_bytes);
            let mut names = vec![0; length];
            names.as_mut_ptr().copy_from_nonoverlapping(roll.add(1).cast(), length);
            fence(SeqCst);
            if before.is_multiple_of(2) && (*roll).changes.load(Relaxed) == before {
                return Some((head, names));
            }
        }
        pg::nap(PAUSE_US);
    }
    None
}

/// The requests of a copied roll.
pub(super) fn named(names: &[u8]) -> impl Iterator<Item = (Entry, Names)> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(size_of::<Entry>())?;
        // SAFETY: the bytes are those of an entry, which any bytes are valid for. They need not be aligned here.
        let entry = unsafe { head.as_ptr().cast::<Entry>().read_unaligned() };
        let mut tail = tail;
        let mut text = |place: usize| {
            let (name, after) = tail.split_at_checked(entry.lengths[place].into())?;
            tail = after;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        let names = [text(0)?, text(1)?, text(2)?];
        let taken = (rest.len() - tail.len()).next_multiple_of(align_of::<Entry>());
        rest = rest.get(taken..).unwrap_or_default();
        Some((entry, names))
    })
}
