//! The requests in flight, by name.
//!
//! A roll has the names of the requests that its transaction has begun, in the order of the open list, which adds them,
//! takes them away and notes their states. If a name finds no room, the roll only counts it.
//! `roll.rs` says how a roll is read while its backend changes it.

use crate::domain::identity::Digest;
use crate::model::Session;
use crate::monitor::area::{Area, area};
use crate::monitor::roll::{Entry, Head, Roll, change, copy, entries};
use crate::pg;
use pgrx::pg_sys;

pub use crate::monitor::roll::{Place, State};

/// The roll of this backend, where somebody watches.
fn mine() -> Option<(&'static Area, *mut Roll)> {
    let area = area()?;
    Some((area, area.roll(pg::backend_place()?)))
}

/// Adds a request that this transaction has begun, by its stream and its key or number.
pub fn add(session: &Session, stream: &str, request: &str, lock: &Digest, since: i64) -> Place {
    let Some((area, roll)) = mine() else { return Place::UNWATCHED };
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
    // SAFETY: the roll is this backend's own. What is written is within the room for names, as was checked.
    unsafe {
        change(roll, |head, at| {
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
    with_roll(place, |head, _| match place {
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
    with_roll(place, |_, at| unsafe { (*at.add(place.0 as usize).cast::<Entry>()).state = state as u32 });
}

fn with_roll(place: Place, work: impl FnOnce(&mut Head, *mut u8)) {
    if place == Place::UNWATCHED {
        return;
    }
    if let Some((_, roll)) = mine() {
        // SAFETY: the roll is this backend's own.
        unsafe { change(roll, work) };
    }
}

/// Empties the roll of this backend, at the end of its transaction.
pub fn clear() {
    let Some((_, roll)) = mine() else { return };
    // SAFETY: the roll is this backend's own.
    unsafe {
        if (*roll).head.pid != 0 {
            change(roll, |head, _| *head = Head::default());
        }
    }
}

/// Copies the names to a roll of prepared transactions, when PREPARE TRANSACTION begins. If it fails after that, its
/// transaction ends, so that nobody sees the roll and another transaction takes it.
pub fn keep_prepared() {
    let Some((area, roll)) = mine() else { return };
    // SAFETY: the roll is this backend's own.
    if unsafe { (*roll).head.used } == 0 {
        return;
    }
    let transaction = pg::transaction_id();
    let of = |number: usize| {
        // SAFETY: the roll is in shared memory. The number is aligned, so it is read as a whole.
        unsafe { (&raw const (*area.roll(number)).head.transaction).read_volatile() }
    };
    // To ask whether a transaction is in progress may raise an error, so it is asked before the lock is taken.
    let free: Vec<(usize, u64)> = (area.backends()..area.rolls())
        .map(|number| (number, of(number)))
        .filter(|(_, other)| *other == 0 || !pg::is_in_progress(*other))
        .collect();
    let _alone = area.tallies.lock();
    // Another transaction may have taken one of them meanwhile.
    let Some((number, _)) = free.into_iter().find(|(number, seen)| of(*number) == *seen) else { return };
    // SAFETY: the lock of the tallies is held, so no other backend fills the roll. Both rolls have the same size.
    unsafe {
        change(area.roll(number), |head, at| {
            *head = Head { transaction, ..(*roll).head };
            at.copy_from_nonoverlapping(roll.add(1).cast(), head.used as usize);
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

/// The part of a request in flight for which a roll needs room.
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
    for number in 0..area.rolls() {
        let Some((head, names)) =
            copy(area.roll(number), area.name_bytes()).filter(|(head, _)| head.database == database)
        else {
            continue;
        };
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
