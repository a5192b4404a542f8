//! Advisory locks of the transaction: what makes check-and-set atomic.
//!
//! Taken through the lock manager, not through `pg_advisory_xact_lock()`, with a class of our own in
//! the tag's fourth field (users' functions have 1 and 2). So they show in `pg_locks`, take part in
//! deadlock detection and stay with a prepared transaction.
//!
//! Order: whoever takes more than one takes session before secret before registration before client
//! before request before save before mark; the lanes of numbers that are given up in the order of their
//! slots. Whoever wants a client's lock alone, which
//! those who use the session share, queues for it in short turns, so that they are not held up for long.
//! The sweep takes its own first, and only tries for the others.
//!
//! They belong to the (sub)transaction, not to the running portal: a cursor that fails inside a
//! savepoint would else take the lock away while the request is still on the open list.

use crate::domain::identity::Digest;
use crate::pg;
use pgrx::pg_sys;

/// What a lock stands for; the number is `objsubid` in `pg_locks`.
#[derive(Clone, Copy)]
#[repr(u16)]
pub enum LockClass {
    /// The claim to a request.
    Request = 0x1DE1,
    /// The making, changing and dropping of a standing session.
    StandingSession = 0x1DE2,
    /// The first use of the secret.
    Secret = 0x1DE4,
    /// A client session: shared by the transactions that use it, held alone to end it or to hand it over.
    ClientSession = 0x1DE5,
    /// The saving of a client session, from unlogged to logged.
    Save = 0x1DE6,
    /// The writing of a client session's sign of life.
    SignOfLife = 0x1DE7,
    /// What a client says of a stream.
    Marks = 0x1DE8,
    /// The registering of a client, or under an id.
    Registration = 0x1DE9,
    /// The saving of a client's session, or of the session of a registration's id: shared by whoever saves, so
    /// that whoever registers finds out about a session whose saving was prepared before a crash.
    SaveOfRegistered = 0x1DEA,
    /// A step of the sweep.
    Sweep = 0x1DEB,
}

/// A lock's name.
#[derive(Clone, Copy)]
pub struct Tag(pg_sys::LOCKTAG);

impl Tag {
    /// The claim to a request.
    pub fn request(digest: &Digest) -> Tag {
        Tag::named(LockClass::Request, digest)
    }

    /// A lock of a class, by the digest of what it is for. `pg_locks` shows everybody half of the digest, so it
    /// has to be a keyed one.
    pub fn named(class: LockClass, digest: &Digest) -> Tag {
        Tag::new(class, digest.lock_id())
    }

    /// The first use of the secret.
    pub fn secret() -> Tag {
        Tag::new(LockClass::Secret, 0)
    }

    /// A step of the sweep: one at a time.
    pub fn sweep() -> Tag {
        Tag::new(LockClass::Sweep, 0)
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

    /// Takes the lock if nobody else has it.
    pub fn try_acquire(&self) -> bool {
        self.acquire_as_transaction(Mode::Alone, true)
    }

    /// Takes the lock, waiting up to `wait_us` (`None`: for ever); whether it was got.
    pub fn acquire(&self, wait_us: Option<i64>) -> bool {
        self.acquire_in(Mode::Alone, wait_us)
    }

    /// Gives back one acquisition, before the end of the transaction.
    pub fn release(&self) {
        self.release_in(Mode::Alone);
    }

    /// Takes the lock alone, up to `wait_us`; whether it was got. Queues for it for a short time only, again
    /// and again with pauses between: those who share it drain meanwhile, however busy they are, and
    /// newcomers are held up by no more than that.
    pub fn acquire_in_short_waits(&self, wait_us: Option<i64>) -> bool {
        self.try_acquire() || pg::retry(wait_us, |attempt_us| self.acquire(Some(attempt_us)))
    }

    /// Waits until no other transaction has the lock or shares it, up to `wait_us`; whether that came.
    pub fn wait_until_free(&self, wait_us: Option<i64>) -> bool {
        pg::retry(wait_us, |_| !self.is_held_by_another())
    }

    /// Shares the lock if nobody has it alone.
    pub fn try_share(&self) -> bool {
        self.acquire_as_transaction(Mode::Shared, true)
    }

    /// Shares the lock, waiting as [`Tag::acquire`] does.
    pub fn share(&self, wait_us: Option<i64>) -> bool {
        self.acquire_in(Mode::Shared, wait_us)
    }

    /// Gives back one sharing.
    pub fn release_share(&self) {
        self.release_in(Mode::Shared);
    }

    /// Whether this transaction shares the lock.
    pub fn is_shared_by_us(&self) -> bool {
        pg::lock_is_held(&self.0, Mode::Shared as i32)
    }

    /// Whether this transaction has the lock, shared or alone.
    pub fn is_held_by_us(&self) -> bool {
        self.is_shared_by_us() || pg::lock_is_held(&self.0, Mode::Alone as i32)
    }

    /// Whether another transaction, a prepared one too, has the lock or shares it.
    pub fn is_held_by_another(&self) -> bool {
        !self.in_the_way_of(Mode::Alone).is_empty()
    }

    /// How other transactions, prepared ones too, have the lock.
    pub fn held_by_others(&self) -> Held {
        loop {
            let before = self.in_the_way_of(Mode::Alone);
            if before.is_empty() {
                return Held::Free;
            }
            if !self.in_the_way_of(Mode::Shared).is_empty() {
                return Held::Alone;
            }
            // Who had it before and after that moment had it then too, and nobody had it alone.
            if self.in_the_way_of(Mode::Alone).iter().any(|holder| before.contains(holder)) {
                return Held::Shared;
            }
        }
    }

    /// Waits until no other transaction has the lock alone, up to `wait_us`; whether it is worth looking
    /// again. The lock is not shared meanwhile: that would look like use.
    pub fn wait_while_alone(&self, wait_us: Option<i64>) -> bool {
        if wait_us == Some(0) {
            return false;
        }
        if self.in_the_way_of(Mode::Shared).is_empty() {
            // It is queued for, in a short turn, or was just let go.
            pg::nap(1_000);
            return true;
        }
        pg::retry(wait_us, |attempt_us| {
            if let Some(holder) = self.in_the_way_of(Mode::Shared).first() {
                // It may let go before its end, by a rollback to a savepoint: hence the turns.
                pg::bounded(Some(attempt_us), || holder.wait());
            }
            self.in_the_way_of(Mode::Shared).is_empty()
        })
    }

    /// The other transactions that keep this one from having the lock so.
    fn in_the_way_of(&self, mode: Mode) -> Vec<pg::Holder> {
        pg::lock_holders(&self.0, mode as i32)
    }

    fn acquire_in(&self, mode: Mode, wait_us: Option<i64>) -> bool {
        match wait_us {
            Some(0) => self.acquire_as_transaction(mode, true),
            _ => pg::bounded(wait_us, || self.acquire_as_transaction(mode, false)).unwrap_or(false),
        }
    }

    fn acquire_as_transaction(&self, mode: Mode, dont_wait: bool) -> bool {
        as_transaction(|| {
            // SAFETY: the tag is valid.
            let result = unsafe { pg_sys::LockAcquire(&self.0, mode as i32, false, dont_wait) };
            result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
        })
    }

    fn release_in(&self, mode: Mode) {
        as_transaction(|| {
            // SAFETY: the tag is valid, and the lock was taken with this owner.
            let held = unsafe { pg_sys::LockRelease(&self.0, mode as i32, false) };
            debug_assert!(held, "only what was acquired is released");
        });
    }
}

/// How others have a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Not at all.
    Free,
    /// Shared by some.
    Shared,
    /// By one, which has it alone.
    Alone,
}

/// How a lock is had.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Mode {
    /// By any number of transactions, while none has it alone.
    Shared = pg_sys::ShareLock as i32,
    /// By one.
    Alone = pg_sys::ExclusiveLock as i32,
}

/// Runs `work` with locks going to the (sub)transaction instead of the running portal.
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
