//! The requests in flight, by name.
//!
//! A slot has the names of the requests that its transaction has begun, in the order of the open list, which adds them,
//! takes them away and notes their states. If a name finds no room, the slot only counts it.
//!
//! **Reading without a lock.** A backend makes the slot's change count odd, changes the slot, and makes the count even.
//! A reader copies the slot and keeps the copy if the count was even and is still the same. PostgreSQL's
//! `pg_stat_activity` does it so. The slots of prepared transactions are filled under the lock of the lines.

use crate::domain::identity::Digest;
use crate::model::Session;
use crate::monitor::area::{Area, area};
use crate::pg;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

/// The state of a request in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
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

impl State {
    const ALL: [State; 4] = [State::Begun, State::Saved, State::Recorded, State::Released];

    /// As the view shows it.
    pub fn name(self) -> &'static str {
        match self {
            State::Begun => "begun",
            State::Saved => "saved",
            State::Recorded => "recorded",
            State::Released => "released",
        }
    }
}

/// Where the names of a request stand in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// In no slot: nobody watches.
    pub const UNWATCHED: Place = Place(u32::MAX);
    /// The slot had no room, and has only counted it.
    const COUNTED: Place = Place(u32::MAX - 1);

    /// A place for tests that see the list without shared memory.
    #[cfg(test)]
    pub fn number(number: u32) -> Place {
        Place(number)
    }

    /// Its number.
    #[cfg(test)]
    pub fn as_number(self) -> u32 {
        self.0
    }
}

/// A slot, all zeros at first. The names follow it.
#[repr(C, align(64))]
pub struct Slot {
    /// Odd while the slot is being changed.
    changes: AtomicU32,
    head: Head,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Head {
    /// The process; in the slot of a prepared transaction the process that prepared it. 0: the slot is empty.
    pid: i32,
    database: u32,
    /// The number of bytes that names take.
    used: u32,
    /// The number of requests for whose names there was no room.
    unnamed: u32,
    /// The role that was current when the first request was begun.
    role: u32,
    /// In the slot of a prepared transaction its id. Once it has ended, the slot is free.
    transaction: u32,
    /// When the first request was begun.
    since: i64,
}

/// What stands before the three names of a request: session, stream, request.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    lock: u64,
    since: i64,
    owner: u32,
    usable_by: u32,
    role: u32,
    state: u32,
    lengths: [u16; 3],
    unused: u16,
}

/// The size of a slot with so many bytes for names.
pub fn slot_bytes(names: usize) -> usize {
    size_of::<Slot>() + names.next_multiple_of(align_of::<Slot>())
}

/// The slot of this backend, where somebody watches.
fn mine() -> Option<(&'static Area, *mut Slot)> {
    let area = area()?;
    Some((area, area.slot(pg::backend_place()?)))
}

/// Changes a slot.
///
/// # Safety
/// Nobody else changes the slot meanwhile: it is this backend's own, or the lock of the lines is held.
unsafe fn change(slot: *mut Slot, work: impl FnOnce(&mut Head, *mut u8)) {
    // SAFETY: as the caller warrants. Readers only copy, and throw away a copy of a slot that was being changed.
    unsafe {
        let changes = &(*slot).changes;
        changes.store(changes.load(Relaxed).wrapping_add(1), Relaxed);
        fence(SeqCst);
        work(&mut (*slot).head, slot.add(1).cast());
        fence(SeqCst);
        changes.store(changes.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Adds a request that this transaction has begun, by its stream and its key or number.
pub fn add(session: &Session, stream: &str, request: &str, lock: &Digest, since: i64) -> Place {
    let Some((area, slot)) = mine() else { return Place::UNWATCHED };
    let (owner, usable_by) = match session {
        Session::Standing(session) => (session.owner, session.usable_by.unwrap_or(pg_sys::InvalidOid)),
        Session::Client(session) => (session.owner, pg_sys::InvalidOid),
    };
    let names = [session.name(), stream, request];
    let bytes = size_of::<Entry>() + names.iter().map(|name| name.len()).sum::<usize>();
    let entry = Entry {
        lock: lock.lock_id(),
        since,
        owner: owner.to_u32(),
        usable_by: usable_by.to_u32(),
        role: pg::current_role().to_u32(),
        state: State::Begun as u32,
        lengths: names.map(|name| name.len() as u16),
        unused: 0,
    };
    let mut place = Place::COUNTED;
    // SAFETY: the slot is this backend's own. What is written is within the room for names, as was checked.
    unsafe {
        change(slot, |head, at| {
            if head.used == 0 && head.unnamed == 0 {
                let (pid, database) = (pg::process_id(), pg::current_database().to_u32());
                *head = Head { pid, database, role: entry.role, since, ..Head::default() };
            }
            let (from, to) = (head.used as usize, head.used as usize + bytes.next_multiple_of(align_of::<Entry>()));
            if to > area.name_bytes() {
                head.unnamed += 1;
                return;
            }
            at.add(from).cast::<Entry>().write(entry);
            let mut at = at.add(from + size_of::<Entry>());
            for name in names {
                at.copy_from_nonoverlapping(name.as_ptr(), name.len());
                at = at.add(name.len());
            }
            place = Place(from as u32);
            head.used = to as u32;
        });
    }
    place
}

/// Takes away the request that was added last.
pub fn take_away(place: Place) {
    with_slot(place, |head, _| match place {
        Place::COUNTED => head.unnamed -= 1,
        Place(from) => head.used = from,
    });
}

/// Notes the state of a request.
pub fn note(place: Place, state: State) {
    if place == Place::COUNTED {
        return;
    }
    // SAFETY: the place is that of an entry.
    with_slot(place, |_, at| unsafe { (*at.add(place.0 as usize).cast::<Entry>()).state = state as u32 });
}

fn with_slot(place: Place, work: impl FnOnce(&mut Head, *mut u8)) {
    if place == Place::UNWATCHED {
        return;
    }
    if let Some((_, slot)) = mine() {
        // SAFETY: the slot is this backend's own.
        unsafe { change(slot, work) };
    }
}

/// Empties the slot of this backend, at the end of its transaction.
pub fn clear() {
    let Some((_, slot)) = mine() else { return };
    // SAFETY: the slot is this backend's own.
    unsafe {
        if (*slot).head.pid != 0 {
            change(slot, |head, _| *head = Head::default());
        }
    }
}

/// Copies the names to a slot of prepared transactions, when PREPARE TRANSACTION begins. If it fails after that, its
/// transaction ends, so that nobody sees the slot and another transaction takes it.
pub fn keep_prepared() {
    let Some((area, slot)) = mine() else { return };
    // SAFETY: the slot is this backend's own.
    if unsafe { (*slot).head.used } == 0 {
        return;
    }
    let transaction = pg::transaction_id();
    let of = |number: usize| {
        // SAFETY: the slot is in shared memory. The number is aligned, so it is read as a whole.
        unsafe { (&raw const (*area.slot(number)).head.transaction).read_volatile() }
    };
    // To ask whether a transaction is in progress may raise an error, so it is asked before the lock is taken.
    let free: Vec<(usize, u32)> = (area.backends()..area.slots())
        .map(|number| (number, of(number)))
        .filter(|(_, other)| *other == 0 || !pg::is_in_progress(*other))
        .collect();
    let _alone = area.lines.lock();
    // Another transaction may have taken one of them meanwhile.
    let Some((number, _)) = free.into_iter().find(|(number, seen)| of(*number) == *seen) else { return };
    // SAFETY: the lock of the lines is held, so no other backend fills the slot. Both slots have the same size.
    unsafe {
        change(area.slot(number), |head, at| {
            *head = Head { transaction, ..(*slot).head };
            at.copy_from_nonoverlapping(slot.add(1).cast(), head.used as usize);
        });
    }
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// The process; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The role that was current when it was begun.
    pub role: pg_sys::Oid,
    /// When it was begun.
    pub since: i64,
    /// Its names and more; `None` for the requests of a transaction that there was no room for.
    pub named: Option<Named>,
    /// How many requests it stands for.
    pub requests: i64,
}

/// The part of a request in flight for which a slot needs room.
#[derive(Clone, Debug)]
pub struct Named {
    /// The half of the digest that is locked for it which names the lock.
    pub lock: u64,
    /// The owner of its session.
    pub owner: pg_sys::Oid,
    /// The role that its session is lent to.
    pub usable_by: Option<pg_sys::Oid>,
    /// The name of its session.
    pub session: String,
    /// Its stream; empty in a standing session.
    pub stream: String,
    /// Its key or number.
    pub request: String,
    /// How far it is.
    pub state: State,
}

/// All requests in flight in this database.
pub fn read() -> Vec<InFlight> {
    let Some(area) = area() else { return Vec::new() };
    let database = pg::current_database().to_u32();
    let mut all = Vec::new();
    for number in 0..area.slots() {
        let Some((head, names)) = copy(area, number).filter(|(head, _)| head.database == database) else { continue };
        let pid = (number < area.backends()).then_some(head.pid);
        if pid.is_none() && !pg::is_in_progress(head.transaction) {
            continue;
        }
        all.extend(entries(&names).map(|(entry, [session, stream, request])| InFlight {
            pid,
            role: entry.role.into(),
            since: entry.since,
            requests: 1,
            named: Some(Named {
                lock: entry.lock,
                owner: entry.owner.into(),
                usable_by: (entry.usable_by != 0).then(|| entry.usable_by.into()),
                session,
                stream,
                request,
                state: *State::ALL.get(entry.state as usize).unwrap_or(&State::Begun),
            }),
        }));
        if head.unnamed > 0 {
            let (role, since, requests) = (head.role.into(), head.since, i64::from(head.unnamed));
            all.push(InFlight { pid, role, since, named: None, requests });
        }
    }
    all
}

/// A copy of a slot that is not empty, and of the names in it.
fn copy(area: &Area, number: usize) -> Option<(Head, Vec<u8>)> {
    /// A slot changes for moments only. After so many tries its backend was probably interrupted in such a moment, and
    /// the reader waits before each further try.
    const AT_ONCE: usize = 100;
    const TRIES: usize = AT_ONCE + 1000;
    const PAUSE: Duration = Duration::from_millis(1);
    let slot = area.slot(number);
    for attempt in 0..TRIES {
        // SAFETY: the slot is in shared memory. Whoever changes it does so between two changes of the count, so a copy
        // that was made between the same even count is whole. The length is checked before it is relied on.
        unsafe {
            let before = (*slot).changes.load(Relaxed);
            fence(SeqCst);
            let head = (&raw const (*slot).head).read_volatile();
            if head.pid == 0 && before.is_multiple_of(2) {
                return None;
            }
            let length = (head.used as usize).min(area.name_bytes());
            let mut names = vec![0; length];
            names.as_mut_ptr().copy_from_nonoverlapping(slot.add(1).cast(), length);
            fence(SeqCst);
            if before.is_multiple_of(2) && (*slot).changes.load(Relaxed) == before {
                return Some((head, names));
            }
        }
        if attempt < AT_ONCE { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
    }
    None
}

/// The entries of a copied slot.
fn entries(names: &[u8]) -> impl Iterator<Item = (Entry, [String; 3])> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(size_of::<Entry>())?;
        // SAFETY: the bytes are those of an entry, which any bytes are valid for. They need not be aligned here.
        let entry = unsafe { head.as_ptr().cast::<Entry>().read_unaligned() };
        let mut tail = tail;
        let mut texts = [const { String::new() }; 3];
        for (text, length) in texts.iter_mut().zip(entry.lengths) {
            let (name, after) = tail.split_at_checked(length.into())?;
            *text = String::from_utf8_lossy(name).into_owned();
            tail = after;
        }
        let taken = (rest.len() - tail.len()).next_multiple_of(align_of::<Entry>());
        rest = rest.get(taken..).unwrap_or_default();
        Some((entry, texts))
    })
}
