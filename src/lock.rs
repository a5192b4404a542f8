//! Our advisory locks, which make check-and-set atomic. This header has all rules about them.
//!
//! **What they are.** They are locks of PostgreSQL's lock manager. So they show in `pg_locks`, take part in deadlock
//! detection and stay with a prepared transaction. They are taken directly, not by `pg_advisory_xact_lock()`: the
//! tag's fourth field has a class of ours ([`LockClass`]), where the functions for users put 1 or 2.
//!
//! **How long they are held.** To the end of the transaction, or until a rollback to a savepoint that was set before
//! they were taken. They belong to the (sub)transaction, not to the running portal. A portal's lock would be lost
//! when a cursor fails inside a savepoint, while the request is still on the open list. Three are given back
//! earlier: a request's lock by a begin that ends without the claim, the share of a client session by a call that
//! then finds the session ended, the lock of restores by the making of a standing session, and the sweep's by an export.
//!
//! **The order in which one call waits for them.** A call that takes several locks waits for them in this order:
//!
//! 1. `StandingSession`;
//! 2. `Restore`, which the making of a standing session gives back at once;
//! 3. `Sweep`;
//! 4. `Secret`;
//! 5. `Registration`: first by the registration's id, then by the client's name;
//! 6. `ClientSession`;
//! 7. `Request`: several of them are the lanes of numbers that are given up, in the order of their slots;
//! 8. `Save`;
//! 9. `Marks`.
//!
//! **A lock that is only tried for may be taken out of order,** since a failed try waits for nobody:
//!
//! * `idem_begin` takes the request's lock first and then tries to share the client session's. If another transaction
//!   holds that exclusively, begin gives the request's lock back before it waits.
//! * `idem_ack` drops the responses in the lanes that it can lock after the marks.
//! * `idem_export` tries to share the sweep's lock after it has taken those of requests.
//! * `SignOfLife` is always tried for.
//! * `SaveOfRegistered` is only ever shared, so to share it waits for nobody. A registration that holds its own locks
//!   may wait until nobody shares it, without taking it.
//! * The sweep takes its own lock first, and tries for all others.
//!
//! **Several calls in one transaction** take their locks in the order of the calls, and so may deadlock with another
//! transaction. So may two records that give numbers up, since each already holds the lane of its own number.
//! PostgreSQL finds such a deadlock.
//!
//! **Sharing.** The transactions that use a client session share its lock. Whoever ends the session or hands it over
//! takes the lock exclusively, and queues for it in short turns only ([`Tag::acquire_in_short_waits`]). New users of
//! the session would wait behind a longer turn. A transaction that restores or imports rows shares the
//! sweep's lock, and so does the call of an export while it reads. Whoever makes
//! a standing session asks for the lock of restores only, and so waits for no step of the sweep.

use crate::board;
use crate::domain::identity::Digest;
use crate::error::Error;
use crate::pg;
use pgrx::{PgSqlErrorCode, pg_sys};

/// What a lock stands for; the number is `objsubid` in `pg_locks`. The first ones, up to [`LockClass::SaveOfRegistered`], are
/// of requests and sessions; the view `health` tells of who waits for one of those.
#[derive(Clone, Copy)]
#[repr(u16)]
pub enum LockClass {
    /// The claim to a request: its key, or the lane of its number.
    Request = 0x1DE1,
    /// Making, changing and dropping a standing session, importing into it and exporting it.
    StandingSession = 0x1DE2,
    /// Marking the secret as in use.
    Secret = 0x1DE4,
    /// A client session. Transactions that use it share the lock. Whoever ends it or hands it over holds the lock
    /// exclusively.
    ClientSession = 0x1DE5,
    /// Saving a client session: inserting its row in `session`.
    Save = 0x1DE6,
    /// Writing a client session's sign of life.
    SignOfLife = 0x1DE7,
    /// The marks of a stream: up to which number the client has acknowledged and was given numbers.
    Marks = 0x1DE8,
    /// A registration, by the client's name or by the registration's id.
    Registration = 0x1DE9,
    /// The saving of a session that a registration could find by a client's name or by the registration's id.
    /// Transactions that save share the lock. So a registration notices a session whose saving was prepared before
    /// a crash, and waits for that transaction.
    SaveOfRegistered = 0x1DEA,
    /// A step of the sweep. A transaction that restores or imports rows shares the lock, and so does an export while it
    /// reads. That keeps the sweep away.
    Sweep = 0x1DEB,
    /// The step of the sweep on journals.
    Journals = 0x1DEC,
    /// Restoring rows. Transactions that do so share the lock.
    Restore = 0x1DED,
}

/// The name of a lock.
#[derive(Clone, Copy)]
pub struct Tag(pg_sys::LOCKTAG);

impl Tag {
    /// The claim to a request.
    pub fn request(digest: &Digest) -> Tag {
        Tag::named(LockClass::Request, digest)
    }

    /// A lock of a class on what the digest stands for. `pg_locks` shows half of the digest to everybody, so the
    /// digest has to be a keyed one.
    pub fn named(class: LockClass, digest: &Digest) -> Tag {
        Tag::new(class, digest.lock_id())
    }

    /// The sweep, which takes one step at a time.
    pub fn sweep() -> Tag {
        Tag::of_all(LockClass::Sweep)
    }

    /// Restoring rows. Transactions that do so share the lock.
    pub fn restore() -> Tag {
        Tag::of_all(LockClass::Restore)
    }

    /// A lock of a class that has only one in each database.
    pub fn of_all(class: LockClass) -> Tag {
        Tag::new(class, 0)
    }

    fn new(class: LockClass, id: u64) -> Tag {
        Tag(pg_sys::LOCKTAG {
            // SAFETY: a variable of the backend, set when it connected.
            locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
            locktag_field2: (id >> 32) as u32,
            locktag_field3: id as u32,
            locktag_field4: class as u16,
            locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
            locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
        })
    }

    /// Takes the lock if no other transaction holds or shares it; gives whether it did.
    pub fn try_acquire(&self) -> bool {
        self.acquire(Some(0))
    }

    /// Takes the lock, waiting for it up to `wait_us` (`None`: for ever); gives whether it did.
    pub fn acquire(&self, wait_us: Option<i64>) -> bool {
        self.acquire_in(ALONE, wait_us)
    }

    /// As [`Tag::acquire`]. If the wait runs out, that is an error, which says what was waited for.
    pub fn acquire_or_fail(
        &self,
        wait_us: Option<i64>,
        hint: &'static str,
        what: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        if self.acquire(wait_us) { Ok(()) } else { Err(Error::WaitRanOut { what: what(), hint }) }
    }

    /// Gives back one acquisition before the end of the transaction.
    pub fn release(&self) {
        self.release_in(ALONE);
    }

    /// As [`Tag::acquire`], but it queues for the lock in short turns with pauses between them. While it queues,
    /// newcomers that want to share the lock wait, so those who share it become fewer. A newcomer waits no longer
    /// than one turn.
    pub fn acquire_in_short_waits(&self, wait_us: Option<i64>) -> bool {
        self.try_acquire() || pg::retry(wait_us, |attempt_us| self.acquire(Some(attempt_us)))
    }

    /// Shares the lock if no other transaction holds it exclusively; gives whether it did.
    pub fn try_share(&self) -> bool {
        self.share(Some(0))
    }

    /// Shares the lock, waiting as [`Tag::acquire`] does.
    pub fn share(&self, wait_us: Option<i64>) -> bool {
        self.acquire_in(SHARED, wait_us)
    }

    /// Gives back one share before the end of the transaction.
    pub fn release_share(&self) {
        self.release_in(SHARED);
    }

    /// The id of the lock, see [`Digest::lock_id`].
    pub fn lock_id(&self) -> u64 {
        u64::from(self.0.locktag_field2) << 32 | u64::from(self.0.locktag_field3)
    }

    /// The process of another transaction that holds or shares the lock; `None` if no process does: a prepared transaction
    /// has none.
    pub fn holder_pid(&self) -> Option<i32> {
        self.in_the_way_of(ALONE).iter().find_map(pg::Holder::pid)
    }

    /// Whether this transaction shares the lock.
    pub fn is_shared_by_us(&self) -> bool {
        pg::lock_is_held(&self.0, SHARED)
    }

    /// Whether this transaction holds or shares the lock.
    pub fn is_held_by_us(&self) -> bool {
        self.is_shared_by_us() || pg::lock_is_held(&self.0, ALONE)
    }

    /// Whether another transaction, perhaps a prepared one, holds or shares the lock.
    pub fn is_held_by_another(&self) -> bool {
        !self.in_the_way_of(ALONE).is_empty()
    }

    /// How other transactions, prepared ones included, hold the lock at one moment during the call.
    pub fn held_by_others(&self) -> Held {
        loop {
            let before = self.in_the_way_of(ALONE);
            if before.is_empty() {
                return Held::Free;
            }
            if !self.in_the_way_of(SHARED).is_empty() {
                return Held::Alone;
            }
            // Nobody held it exclusively just now. A transaction that held it before and after that look held it
            // then, so it shared it.
            if self.in_the_way_of(ALONE).iter().any(|holder| before.contains(holder)) {
                return Held::Shared;
            }
        }
    }

    /// Waits up to `wait_us` until no other transaction holds the lock exclusively; gives whether the caller should
    /// look again. The wait does not share the lock, since a share would look like use of the session.
    pub fn wait_while_alone(&self, wait_us: Option<i64>) -> bool {
        if wait_us == Some(0) {
            return false;
        }
        if self.in_the_way_of(SHARED).is_empty() {
            // Another transaction is queueing for the lock in a short turn, or has just let it go.
            pg::nap(1_000);
            return true;
        }
        self.wait_for_holders(SHARED, wait_us)
    }

    /// Waits up to `wait_us` until no other transaction holds or shares the lock; gives whether that came true. It waits
    /// for the end of the holder, so that a deadlock is found. The lock is not taken.
    pub fn wait_for_end_of_holder(&self, wait_us: Option<i64>) -> bool {
        wait_us != Some(0) && self.wait_for_holders(ALONE, wait_us)
    }

    fn wait_for_holders(&self, mode: pg_sys::LOCKMODE, wait_us: Option<i64>) -> bool {
        pg::retry(wait_us, |attempt_us| {
            if let Some(holder) = self.in_the_way_of(mode).first() {
                // Turns, since the holder may let go before its end, by a rollback to a savepoint.
                pg::bounded(Some(attempt_us), || noting_deadlocks(|| holder.wait()));
            }
            self.in_the_way_of(mode).is_empty()
        })
    }

    /// The other transactions that keep this one from taking the lock in this mode.
    fn in_the_way_of(&self, mode: pg_sys::LOCKMODE) -> Vec<pg::Holder> {
        pg::lock_holders(&self.0, mode)
    }

    fn acquire_in(&self, mode: pg_sys::LOCKMODE, wait_us: Option<i64>) -> bool {
        let acquire = |dont_wait| {
            // SAFETY: the tag is valid.
            let result = as_transaction(|| unsafe { pg_sys::LockAcquire(&self.0, mode, false, dont_wait) });
            result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
        };
        if wait_us == Some(0) {
            return acquire(true);
        }
        pg::bounded(wait_us, || noting_deadlocks(|| acquire(false))).unwrap_or(false)
    }

    fn release_in(&self, mode: pg_sys::LOCKMODE) {
        as_transaction(|| {
            // SAFETY: the tag is valid, and the lock was taken with this owner.
            let held = unsafe { pg_sys::LockRelease(&self.0, mode, false) };
            debug_assert!(held, "only what was acquired is released");
        });
    }
}

/// How other transactions hold a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Not at all.
    Free,
    /// Some transactions share it.
    Shared,
    /// One transaction holds it exclusively.
    Alone,
}

/// The mode in which any number of transactions hold a lock, while none holds it exclusively.
const SHARED: pg_sys::LOCKMODE = pg_sys::ShareLock as pg_sys::LOCKMODE;
/// The mode in which one transaction holds a lock exclusively.
const ALONE: pg_sys::LOCKMODE = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;

/// Runs `work`, which waits for one of our locks. If PostgreSQL ends the wait because of a deadlock, that is noted.
fn noting_deadlocks<T>(work: impl FnOnce() -> T) -> T {
    pg::replacing_error(PgSqlErrorCode::ERRCODE_T_R_DEADLOCK_DETECTED, work, |_| {
        board::note_deadlock();
        None
    })
}

/// Runs `work`, whose locks then belong to the (sub)transaction instead of the running portal.
pub fn as_transaction<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both owners live as long as the (sub)transaction. If `work` raises an error, the handler
    // that ends the (sub)transaction sets the current owner itself.
    unsafe {
        let portal = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        let result = work();
        pg_sys::CurrentResourceOwner = portal;
        result
    }
}
