//! The shared memory of the monitor: how large it is, and what lies where in it.

use crate::error::Error;
use crate::guc;
use crate::monitor::file;
use crate::monitor::ring::{self, ErrorRing};
use crate::monitor::roll::{self, Roll};
use crate::monitor::tallies::{Cells, Key, Tallies, Tally};
use crate::pg::{self, Guarded, Locks, SharedHash, WantedMemory};
use pgrx::{pg_guard, pg_sys};
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Where everything is. The postmaster notes it, and every backend inherits it.
pub struct Area {
    rolls: *mut u8,
    /// How many of each part there are.
    pub plan: Plan,
    /// The cells of all backends.
    pub cells: &'static [Cells],
    /// The tallies of counters.
    pub tallies: Guarded<Tallies>,
    /// The ring of errors.
    pub errors: Guarded<ErrorRing>,
}

// SAFETY: the pointers are into shared memory, which stays where it is. Who writes what under which lock is said in
// `monitor/mod.rs`.
unsafe impl Sync for Area {}
// SAFETY: as above.
unsafe impl Send for Area {}

static AREA: AtomicPtr<Area> = AtomicPtr::new(std::ptr::null_mut());

/// The parts of the memory: how many of each there are, and where they begin.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The number of backends.
    pub backends: usize,
    /// The number of rolls: those of backends, and after them those of prepared transactions.
    pub rolls: usize,
    /// The room for names in a roll, in bytes.
    pub names: usize,
    cells_at: usize,
    tallies_at: usize,
    ring_at: usize,
    bytes: usize,
}

const CACHE_LINE: usize = 64;

impl Plan {
    fn of_settings() -> Plan {
        let backends = usize::try_from(pg::max_backends()).unwrap_or(0);
        let (rolls, names) = (backends + pg::max_prepared(), guc::track_in_flight_bytes());
        let end = |at: usize, bytes: usize| (at + bytes).next_multiple_of(CACHE_LINE);
        let cells_at = end(0, rolls * roll::roll_bytes(names));
        let tallies_at = end(cells_at, backends * size_of::<Cells>());
        let ring_at = end(tallies_at, size_of::<Tallies>());
        let bytes = end(ring_at, ring::ring_bytes(guc::max_errors())) + CACHE_LINE;
        Plan { backends, rolls, names, cells_at, tallies_at, ring_at, bytes }
    }
}

/// Reserves the memory, where the postmaster preloads the library.
pub fn init() {
    if !pg::is_preloading() {
        return;
    }
    pg::want_shared(WantedMemory {
        name: c"idempotence monitor",
        bytes: || Plan::of_settings().bytes,
        bytes_beside: || SharedHash::<Tally>::bytes(guc::max_stats()),
        locks: 2,
        made: Rc::new(made),
    });
}

fn made(memory: *mut u8, locks: Locks) {
    let plan = Plan::of_settings();
    // PostgreSQL aligns the memory to a cache line, and nothing is said that it always will.
    // SAFETY: there is a cache line more than the parts take.
    let memory = unsafe { memory.add(memory.align_offset(CACHE_LINE)) };
    // SAFETY: the memory is as large as planned and all zeros, which are valid for all parts. A cell has atomics, and a key
    // whose rules stand with it. Each of the two locks guards one value.
    let area = unsafe {
        let cells = std::slice::from_raw_parts(memory.add(plan.cells_at).cast(), plan.backends);
        let tallies: *mut Tallies = memory.add(plan.tallies_at).cast();
        let most = guc::max_stats();
        tallies.write(Tallies::new(SharedHash::make::<Key>(c"idempotence stats", most), most, cells));
        let ring: *mut ErrorRing = memory.add(plan.ring_at).cast();
        ring.write(ErrorRing::new(guc::max_errors()));
        let (tallies, errors) = (Guarded::new(tallies, locks, 0), Guarded::new(ring, locks, 1));
        Area { rolls: memory, plan, cells, tallies, errors }
    };
    // SAFETY: the postmaster has started no other process yet.
    unsafe { area.tallies.with_alone(|tallies| tallies.take_back(file::read())) };
    // After a crash the postmaster makes the memory again, perhaps at another place.
    AREA.store(Box::into_raw(Box::new(area)), Relaxed);
    // SAFETY: called in the postmaster, or in a server without one. A process of the postmaster forgets the callback.
    unsafe { pg_sys::on_shmem_exit(Some(ending), pg_sys::Datum::null()) };
}

/// Saves the counters when the postmaster ends. No other process lives then. After an immediate stop, which is no error either,
/// processes may have ended while they changed what is to be saved.
#[pg_guard]
unsafe extern "C-unwind" fn ending(code: i32, _argument: pg_sys::Datum) {
    if let (true, Some(area)) = (code == 0 && pg::was_shut_down(), area()) {
        // SAFETY: as above.
        file::write(unsafe { area.tallies.with_alone(|tallies| tallies.all(|_| true)) });
    }
}

/// The memory, where the library is preloaded.
pub fn area() -> Option<&'static Area> {
    // SAFETY: null, or what made() has leaked.
    unsafe { AREA.load(Relaxed).as_ref() }
}

/// Refuses a call where the library is not preloaded, so that there is nothing to watch. `what` would be there.
pub fn check_there(what: &'static str) -> Result<(), Error> {
    area().map(|_| ()).ok_or(Error::NotPreloaded { what })
}

impl Area {
    /// A roll.
    pub fn roll(&self, number: usize) -> *mut Roll {
        debug_assert!(number < self.plan.rolls);
        // SAFETY: the number is that of a roll, as planned.
        unsafe { self.rolls.add(number * roll::roll_bytes(self.plan.names)).cast() }
    }
}
