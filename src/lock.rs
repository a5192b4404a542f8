//! Advisory locks of the transaction: what makes check-and-set atomic.
//!
//! Taken through the lock manager, not through `pg_advisory_xact_lock()`, with a class of our own in
//! the tag's fourth field (users' functions have 1 and 2). So they show in `pg_locks`, take part in
//! deadlock detection and stay with a prepared transaction.
//!
//! Order: whoever takes more than one takes session before secret before request before segment.
//!
//! They belong to the (sub)transaction, not to the running portal: a cursor that fails inside a
//! savepoint would else take the lock away while the request is still on the open list.

use crate::domain::identity::Digest;
use crate::pg;
use pgrx::pg_sys;

/// What a lock stands for; the number is `objsubid` in `pg_locks`.
#[derive(Clone, Copy)]
#[repr(u16)]
enum Class {
    /// The claim to a request.
    Request = 0x1DE1,
    /// The making, changing and dropping of a standing session.
    Session = 0x1DE2,
    /// The pointer and the keep of the ring of segments.
    Segment = 0x1DE3,
    /// The first use of the secret.
    Secret = 0x1DE4,
}

/// A lock's name.
#[derive(Clone, Copy)]
pub struct Tag(pg_sys::LOCKTAG);

impl Tag {
    /// The claim to a request.
    pub fn request(digest: &Digest) -> Tag {
        Tag::new(digest.lock_id(), Class::Request)
    }

    /// The making, changing and dropping of the standing session `name`.
    pub fn session(name: &str) -> Tag {
        let hash = blake3::hash(name.as_bytes());
        let mut half = [0; 8];
        half.copy_from_slice(&hash.as_bytes()[..8]);
        Tag::new(u64::from_be_bytes(half), Class::Session)
    }

    /// The state of the ring.
    pub fn segments() -> Tag {
        Tag::new(0, Class::Segment)
    }

    /// The first use of the secret.
    pub fn secret() -> Tag {
        Tag::new(0, Class::Secret)
    }

    fn new(id: u64, class: Class) -> Tag {
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
        self.acquire_as_transaction(true)
    }

    /// Takes the lock, waiting up to `wait_us` (`None`: for ever); whether it was got.
    pub fn acquire(&self, wait_us: Option<i64>) -> bool {
        match wait_us {
            Some(0) => self.try_acquire(),
            _ => pg::bounded(wait_us, || self.acquire_as_transaction(false)).unwrap_or(false),
        }
    }

    /// Gives back one acquisition, before the end of the transaction.
    pub fn release(&self) {
        as_transaction(|| {
            // SAFETY: the tag is valid, and the lock was taken with this owner.
            let held = unsafe { pg_sys::LockRelease(&self.0, MODE, false) };
            debug_assert!(held, "only what was acquired is released");
        });
    }

    /// Whether another transaction, a prepared one too, has the lock.
    pub fn is_held_by_another(&self) -> bool {
        let mut count = 0;
        // SAFETY: the tag is valid; the list it allocates is freed with the memory context.
        unsafe { pg_sys::GetLockConflicts(&self.0, MODE, &mut count) };
        count > 0
    }

    fn acquire_as_transaction(&self, dont_wait: bool) -> bool {
        as_transaction(|| {
            // SAFETY: the tag is valid.
            let result = unsafe { pg_sys::LockAcquire(&self.0, MODE, false, dont_wait) };
            result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
        })
    }
}

/// All of them are exclusive.
const MODE: i32 = pg_sys::ExclusiveLock as i32;

/// Runs `work` with locks going to the (sub)transaction instead of the running portal.
fn as_transaction<T>(work: impl FnOnce() -> T) -> T {
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
