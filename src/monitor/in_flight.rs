//! The requests in flight, by name.
//!
//! A roll has the names of the requests that its transaction has begun, in the order of the open list, which adds them,
//! takes them away and notes their states. If a name finds no room, the roll only counts it.
//! `roll.rs` says how a roll is read while its backend changes it.

use crate::domain::identity::Digest;
use crate::model::Session;
use crate::monitor::area::{Area, area};
use crate::monitor::roll::{self, Entry, Head, Roll, change, copy};
use crate::pg;
use pgrx::pg_sys;

pub use crate::monitor::roll::{Names, Place, State};

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
        owner,
        usable_by,
        role: pg::current_role(),
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
            if to > area.plan.names {
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

/// Notes the state of a request; `None` takes it away, which was added last.
pub fn note(place: Place, state: Option<State>) {
    let Some((_, roll)) = mine().filter(|_| place != Place::UNWATCHED) else { return };
    // SAFETY: the roll is this backend's own. The place is that of an entry, or one of no entry.
    unsafe {
        change(roll, |head, at| match (place, state) {
            (Place::COUNTED, Some(_)) => {}
            (Place::COUNTED, None) => head.unnamed -= 1,
            (Place(from), Some(state)) => (*at.add(from as usize).cast::<Entry>()).state = state as u32,
            (Place(from), None) => head.used = from,
        });
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
    let free: Vec<(usize, u64)> = (area.plan.backends..area.plan.rolls)
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
    /// What is known of it beside its names. Without names that is only who has begun it, and when.
    pub entry: Entry,
    /// Its names; `None` for the requests of a transaction that there was no room for.
    pub names: Option<Names>,
    /// How many requests it stands for.
    pub requests: i64,
}

/// All requests in flight in this database.
pub fn read() -> Vec<InFlight> {
    let Some(area) = area() else { return Vec::new() };
    let database = pg::current_database().to_u32();
    let mut all = Vec::new();
    for number in 0..area.plan.rolls {
        let Some((head, names)) = copy(area.roll(number), area.plan.names) else { continue };
        let pid = (number < area.plan.backends).then_some(head.pid);
        if head.database != database || pid.is_none() && !pg::is_in_progress(head.transaction) {
            continue;
        }
        let named = roll::named(&names);
        all.extend(named.map(|(entry, names)| InFlight { pid, entry, names: Some(names), requests: 1 }));
        if head.unnamed > 0 {
            let entry = Entry { role: head.role, since: head.since, ..Entry::default() };
            all.push(InFlight { pid, entry, names: None, requests: head.unnamed.into() });
        }
    }
    all
}
