//! Shared memory, and PostgreSQL's lightweight locks, hash table and condition variables in it.
//!
//! The postmaster asks for the memory while it preloads the library, and makes it before it starts any other process.
//! After a crash of a process it makes all of it anew.

use super::own::Own;
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// What a part of the library wants of the shared memory.
#[derive(Clone)]
pub struct WantedMemory {
    /// The name of the memory and of its locks.
    pub name: &'static CStr,
    /// Its size in bytes, asked when the settings are read and the number of backends is known.
    pub bytes: fn() -> usize,
    /// The size of what `made` makes beside it.
    pub bytes_beside: fn() -> usize,
    /// The number of lightweight locks.
    pub locks: usize,
    /// Called once the memory, which is all zeros, and the locks are there.
    pub made: Rc<dyn Fn(*mut u8, Locks)>,
}

/// The lightweight locks that were wanted.
#[derive(Clone, Copy)]
pub struct Locks(*mut pg_sys::LWLockPadded);

/// All that is wanted.
static WANTED: Own<Vec<WantedMemory>> = Own::new();
static mut NEXT_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut NEXT_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Asks for shared memory, while the postmaster preloads the library.
pub fn want_shared(wanted: WantedMemory) {
    let is_first = WANTED.with(|all| {
        all.push(wanted);
        all.len() == 1
    });
    if is_first {
        // SAFETY: the postmaster has one thread.
        unsafe {
            NEXT_REQUEST = pg_sys::shmem_request_hook;
            pg_sys::shmem_request_hook = Some(request);
            NEXT_STARTUP = pg_sys::shmem_startup_hook;
            pg_sys::shmem_startup_hook = Some(startup);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: called by the postmaster, where the memory may be asked for. The hook before ours expects the same.
    unsafe {
        if let Some(next) = NEXT_REQUEST {
            next();
        }
        for wanted in wanted() {
            pg_sys::RequestAddinShmemSpace((wanted.bytes)() + (wanted.bytes_beside)());
            pg_sys::RequestNamedLWLockTranche(wanted.name.as_ptr(), wanted.locks as c_int);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: called by the postmaster, which made the memory that was asked for. The memory has the size that was asked
    // for, since the settings behind it need a restart to change.
    unsafe {
        if let Some(next) = NEXT_STARTUP {
            next();
        }
        for wanted in wanted() {
            let bytes = (wanted.bytes)();
            let mut found = false;
            let memory: *mut u8 = pg_sys::ShmemInitStruct(wanted.name.as_ptr(), bytes, &mut found).cast();
            if !found {
                memory.write_bytes(0, bytes);
            }
            (wanted.made)(memory, Locks(pg_sys::GetNamedLWLockTranche(wanted.name.as_ptr())));
        }
    }
}

/// A copy, since whoever uses it calls the server.
fn wanted() -> Vec<WantedMemory> {
    WANTED.with(|all| all.clone())
}

/// A value of a fixed size in shared memory, with a lock of its own. It is there where the library was preloaded: the
/// postmaster notes where, and every backend inherits that. Zeros are valid for it, and what it is at first.
pub struct Shared<T>(AtomicPtr<Guarded<T>>);

impl<T> Shared<T> {
    /// Not there yet.
    #[allow(clippy::new_without_default, reason = "a static takes no other constructor than this")]
    pub const fn new() -> Shared<T> {
        Shared(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Asks for its memory, while the postmaster preloads the library. `then` is called when the value is there. After a crash
    /// the postmaster makes it again, perhaps at another place.
    pub fn want(&'static self, name: &'static CStr, then: fn()) {
        let made = move |memory: *mut u8, locks| {
            // SAFETY: the memory has the value's size, stays as long as the process, and has one lock.
            let guarded = unsafe { Guarded::new(memory.cast(), locks, 0) };
            self.0.store(Box::into_raw(Box::new(guarded)), Relaxed);
            then();
        };
        let (bytes, bytes_beside) = (|| size_of::<T>(), || 0);
        want_shared(WantedMemory { name, bytes, bytes_beside, locks: 1, made: Rc::new(made) });
    }

    fn guarded(&self) -> Option<&Guarded<T>> {
        // SAFETY: null, or what made() has leaked.
        unsafe { self.0.load(Relaxed).as_ref() }
    }

    /// The value, which the caller has alone while the lock is held. `None`: the library was not preloaded.
    pub fn lock(&self) -> Option<Exclusive<'_, T>> {
        self.guarded().map(Guarded::lock)
    }
}

impl<T: Sync> Shared<T> {
    /// The value, where all that it has may be used by many at once. `None`: the library was not preloaded.
    pub fn get(&'static self) -> Option<&'static T> {
        // SAFETY: the value is in shared memory. It is only shared here, and nobody locks it to change it.
        self.guarded().map(|guarded| unsafe { &*guarded.value })
    }
}

// SAFETY: the value is reached under its lock, or may be used by many at once.
unsafe impl<T> Sync for Shared<T> {}

/// Something in shared memory that is reached only under a lightweight lock.
pub struct Guarded<T> {
    lock: *mut pg_sys::LWLock,
    value: *mut T,
}

impl<T> Guarded<T> {
    /// # Safety
    /// The value lives in shared memory as long as the process, no lock but this guards it, and the lock's number is
    /// below the number of the locks that were wanted.
    pub unsafe fn new(value: *mut T, locks: Locks, number: usize) -> Guarded<T> {
        // SAFETY: as the caller warrants.
        Guarded { lock: unsafe { &raw mut (*locks.0.add(number)).lock }, value }
    }

    /// Takes the lock alone. Nothing is done under it that could raise an error.
    pub fn lock(&self) -> Exclusive<'_, T> {
        // SAFETY: the lock is in shared memory.
        unsafe { pg_sys::LWLockAcquire(self.lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        Exclusive(self)
    }

    /// Uses the value where there is one process only: in the postmaster, before it starts others or after they have
    /// ended. The postmaster cannot take lightweight locks.
    ///
    /// # Safety
    /// No other process uses the value meanwhile.
    pub unsafe fn with_alone<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: as the caller warrants.
        work(unsafe { &mut *self.value })
    }
}

/// The value, while the lock is held.
pub struct Exclusive<'a, T>(&'a Guarded<T>);

impl<T> std::ops::Deref for Exclusive<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held alone.
        unsafe { &*self.0.value }
    }
}

impl<T> std::ops::DerefMut for Exclusive<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held alone.
        unsafe { &mut *self.0.value }
    }
}

impl<T> Drop for Exclusive<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the lock was taken by Guarded::lock(), and is held still, since the server raises no error under it.
        unsafe { pg_sys::LWLockRelease(self.0.lock) }
    }
}

/// A hash table in shared memory, of a fixed number of entries. An entry begins with its key, which is compared byte by
/// byte. Its user keeps others out.
pub struct SharedHash<E> {
    table: *mut pg_sys::HTAB,
    of: PhantomData<E>,
}

impl<E> SharedHash<E> {
    /// The memory that a table of so many entries takes.
    pub fn bytes(entries: usize) -> usize {
        // SAFETY: only calculates.
        unsafe { pg_sys::hash_estimate_size(entries as _, size_of::<E>()) }
    }

    /// Makes the table, while the postmaster makes the shared memory. `K` is the type of the key.
    pub fn make<K>(name: &'static CStr, entries: usize) -> SharedHash<E> {
        let mut info = pg_sys::HASHCTL { keysize: size_of::<K>(), entrysize: size_of::<E>(), ..Default::default() };
        let flags = pg_sys::HASH_ELEM | pg_sys::HASH_BLOBS | pg_sys::HASH_FIXED_SIZE;
        // SAFETY: the sizes are those of the entry and of the key that it begins with.
        let table = unsafe {
            #[cfg(before_pg19)]
            let table = pg_sys::ShmemInitHash(name.as_ptr(), entries as _, entries as _, &mut info, flags as c_int);
            #[cfg(not(before_pg19))]
            let table = pg_sys::ShmemInitHash(name.as_ptr(), entries as _, &mut info, flags as c_int);
            table
        };
        SharedHash { table, of: PhantomData }
    }

    /// The number of entries.
    pub fn entries(&self) -> usize {
        // SAFETY: reads the table.
        unsafe { pg_sys::hash_get_num_entries(self.table) as usize }
    }

    /// The entry of a key, and whether it was there before. `None`: the table is full. Only the key of a new entry is
    /// set.
    pub fn enter<K>(&mut self, key: &K) -> Option<(&mut E, bool)> {
        let mut found = false;
        let entry = self.search(key, pg_sys::HASHACTION::HASH_ENTER_NULL, &mut found);
        // SAFETY: an entry of the table, which the caller keeps others out of.
        unsafe { entry.as_mut() }.map(|entry| (entry, found))
    }

    /// The entry of a key.
    pub fn find<K>(&mut self, key: &K) -> Option<&mut E> {
        // SAFETY: as above.
        unsafe { self.search(key, pg_sys::HASHACTION::HASH_FIND, &mut false).as_mut() }
    }

    /// Removes the entry of a key.
    pub fn remove<K>(&mut self, key: &K) {
        self.search(key, pg_sys::HASHACTION::HASH_REMOVE, &mut false);
    }

    fn search<K>(&self, key: &K, action: pg_sys::HASHACTION::Type, found: &mut bool) -> *mut E {
        let key: *const c_void = (&raw const *key).cast();
        // SAFETY: the key has the size that the table was made with.
        unsafe { pg_sys::hash_search(self.table, key, action, found).cast() }
    }

    /// Calls `work` for each entry. `work` does not change the table.
    pub fn for_each(&mut self, mut work: impl FnMut(&mut E)) {
        // SAFETY: the scan is gone through to its end, which closes it.
        unsafe {
            let mut scan: pg_sys::HASH_SEQ_STATUS = std::mem::zeroed();
            pg_sys::hash_seq_init(&mut scan, self.table);
            while let Some(entry) = pg_sys::hash_seq_search(&mut scan).cast::<E>().as_mut() {
                work(entry);
            }
        }
    }
}

/// PostgreSQL's condition variables in shared memory: processes sleep on one until another process wakes them.
pub struct Conditions<const N: usize>(UnsafeCell<[pg_sys::ConditionVariable; N]>);

// SAFETY: each variable has a spinlock of its own, which PostgreSQL's functions take.
unsafe impl<const N: usize> Sync for Conditions<N> {}

impl<const N: usize> Conditions<N> {
    /// Makes the variables ready, while the postmaster makes the shared memory that they are in.
    pub fn make_ready(&self) {
        // SAFETY: nobody uses a variable yet.
        (0..N).for_each(|number| unsafe { pg_sys::ConditionVariableInit(self.variable(number)) });
    }

    fn variable(&self, number: usize) -> *mut pg_sys::ConditionVariable {
        debug_assert!(number < N);
        // SAFETY: the number is that of a variable, and the array stays where it is in shared memory.
        unsafe { self.0.get().cast::<pg_sys::ConditionVariable>().add(number % N) }
    }

    /// Wakes all processes that sleep on a variable.
    pub fn wake(&self, number: usize) {
        // SAFETY: the variable is in shared memory. The call takes a spinlock and raises no error.
        unsafe { pg_sys::ConditionVariableBroadcast(self.variable(number)) }
    }

    /// Notes that this process is about to sleep on a variable. From now on it misses no wake.
    pub fn prepare(&'static self, number: usize) -> Prepared {
        let variable = self.variable(number);
        // SAFETY: the variable is in shared memory.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(variable) };
        Prepared(variable)
    }
}

/// This process is about to sleep on a variable. Dropping it says that it is not any more.
pub struct Prepared(*mut pg_sys::ConditionVariable);

impl Prepared {
    /// Sleeps until it is woken, or until the time has passed. It may return earlier than either. A cancel or a
    /// termination ends the sleep with an error.
    pub fn sleep(&self, us: i64) {
        // SAFETY: the variable is in shared memory.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.0, us.div_euclid(1000).max(1), sleeps());
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: takes this process off the list that it is on. The end of a transaction that fails does the same.
        unsafe {
            pg_sys::ConditionVariableCancelSleep();
        }
    }
}

/// What `pg_stat_activity` shows of a sleep. Before PostgreSQL 17 an extension has no names of its own.
fn sleeps() -> u32 {
    #[cfg(not(before_pg17))]
    {
        static EVENT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        // SAFETY: the name is static. The server keeps it, and gives the same number for it again.
        *EVENT.get_or_init(|| unsafe { pg_sys::WaitEventExtensionNew(c"IdempotenceLease".as_ptr()) })
    }
    #[cfg(before_pg17)]
    pg_sys::PG_WAIT_EXTENSION
}

/// The place of this process among all backends, from 0 to below [`super::max_backends`]. `None`: it is no backend.
pub fn backend_place() -> Option<usize> {
    // SAFETY: variables of the process.
    #[cfg(not(before_pg17))]
    let place = unsafe { pg_sys::MyProcNumber };
    // SAFETY: as above.
    #[cfg(before_pg17)]
    let place = unsafe { pg_sys::MyBackendId } - 1;
    usize::try_from(place).ok().filter(|place| (*place as i64) < super::server::max_backends())
}

/// A text of limited length, in shared memory. Zeros are the empty text.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SharedText<const N: usize> {
    length: u16,
    bytes: [u8; N],
}

impl<const N: usize> SharedText<N> {
    /// The empty text.
    pub const EMPTY: SharedText<N> = SharedText { length: 0, bytes: [0; N] };

    /// The beginning of a text, as much of it as there is room for.
    pub fn of(text: &str) -> SharedText<N> {
        let length = text.floor_char_boundary(N);
        let mut shared = SharedText { length: length as u16, ..SharedText::EMPTY };
        shared.bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        shared
    }

    /// The text.
    pub fn get(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.length).min(N)]).into_owned()
    }
}

/// Whether this library is being preloaded by the postmaster.
pub fn is_preloading() -> bool {
    // SAFETY: variables that the postmaster has set.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade }
}
