//! When memory runs out, a call ends with an error, and the server goes on.
//!
//! Where PostgreSQL's own code finds no memory, it raises an error (53200). pgrx copies the error, carries it through
//! Rust and raises it again. A copy that finds no memory raises another error, which is copied in turn, until
//! PostgreSQL gives up (PANIC). So calls of the two functions that allocate there, `CopyErrorData` and `errstart`, go
//! to functions of ours first (`wrapped.rs`; the linker sees to that, see `build.rs`). Ours use memory that is kept for
//! them. They free a reserve first if there is no other memory.
//!
//! Where Rust finds no memory, it aborts the process. So our allocator then takes memory from an arena and notes that
//! it did, and the call ends with an error soon after. Code whose memory grows with a caller's input asks first whether
//! there is room ([`make_sure_of`], and `try_reserve`).

use crate::error::Error;
use pgrx::pg_sys;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The size of the reserve, which is freed when there is no memory to handle an error in. It is twice what two blocks
/// of a memory context that has grown take. Nothing is ever written to the reserve.
const RESERVE_BYTES: usize = 4 << 20;

/// The memory that has to be free before an error is handled. malloc() itself may ask the system for this much.
#[cfg(not(test))]
pub(super) const ROOM_BYTES: usize = 1 << 20;

thread_local! {
    /// The reserve; null while it is used up.
    static RESERVE: Cell<*mut c_void> = const { Cell::new(std::ptr::null_mut()) };
    /// The memory context that errors are copied to.
    pub(super) static COPIES: Cell<pg_sys::MemoryContext> = const { Cell::new(std::ptr::null_mut()) };
    /// An error made beforehand, given in place of a copy that there is no memory for; null while it is used up.
    pub(super) static SPARE: Cell<*mut pg_sys::ErrorData> = const { Cell::new(std::ptr::null_mut()) };
}

unsafe extern "C" {
    fn malloc(bytes: usize) -> *mut c_void;
    #[cfg(not(test))]
    fn free(memory: *mut c_void);
}

/// Prepares for errors, when the library is loaded.
pub fn init() {
    // SAFETY: a child of TopMemoryContext lives as long as the process.
    COPIES.set(unsafe {
        pg_sys::AllocSetContextCreateInternal(pg_sys::TopMemoryContext, c"idempotence errors".as_ptr(), 0, 8192, 8192)
    });
    refill();
}

/// Replaces what an error has used up. It raises no error: where there is no memory, a later call tries again.
pub fn refill() {
    // SAFETY: the results of both allocations are checked. The context exists since init().
    unsafe {
        if RESERVE.get().is_null() {
            RESERVE.set(malloc(RESERVE_BYTES));
        }
        if SPARE.get().is_null() {
            SPARE.set(spare());
        }
    }
}

/// Runs `work` in a memory context of its own, which is deleted after it. So what a call allocates for each of many rows
/// does not pile up.
pub fn in_own_memory<T>(work: impl FnOnce() -> T) -> T {
    let (small, large) = (pg_sys::ALLOCSET_SMALL_INITSIZE as usize, pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize);
    // SAFETY: the context is a child of the caller's. If `work` raises an error, it is deleted with the caller's.
    unsafe {
        let callers = pg_sys::CurrentMemoryContext;
        let own = pg_sys::AllocSetContextCreateInternal(callers, c"idempotence one of many".as_ptr(), 0, small, large);
        pg_sys::MemoryContextSwitchTo(own);
        let done = work();
        pg_sys::MemoryContextSwitchTo(callers);
        pg_sys::MemoryContextDelete(own);
        done
    }
}

/// # Safety
/// init() was called.
unsafe fn spare() -> *mut pg_sys::ErrorData {
    const MESSAGE: &[u8] = b"out of memory\0";
    let flags = (pg_sys::MCXT_ALLOC_NO_OOM | pg_sys::MCXT_ALLOC_ZERO) as i32;
    // SAFETY: both allocations are checked before they are written to. An ErrorData of zeros is one without texts.
    unsafe {
        let allocate = |bytes| pg_sys::MemoryContextAllocExtended(COPIES.get(), bytes, flags);
        let error: *mut pg_sys::ErrorData = allocate(size_of::<pg_sys::ErrorData>()).cast();
        if error.is_null() {
            return error;
        }
        let message: *mut std::ffi::c_char = allocate(MESSAGE.len()).cast();
        if message.is_null() {
            pg_sys::pfree(error.cast());
            return std::ptr::null_mut();
        }
        message.copy_from_nonoverlapping(MESSAGE.as_ptr().cast(), MESSAGE.len());
        (*error).elevel = pgrx::PgLogLevel::ERROR as i32;
        (*error).sqlerrcode = pgrx::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as i32;
        (*error).message = message;
        error
    }
}

/// Whether this many bytes could be allocated now. If not, frees the reserve and looks again.
#[cfg(not(test))]
pub(super) fn has_room(bytes: usize) -> bool {
    // SAFETY: the allocation is not written to, only freed.
    let can_have = || unsafe {
        let probe = malloc(bytes);
        free(probe);
        !probe.is_null()
    };
    if can_have() {
        return true;
    }
    // SAFETY: the reserve was allocated by malloc(), or is null.
    unsafe { free(RESERVE.replace(std::ptr::null_mut())) };
    can_have()
}

/// Rust's allocator: malloc(), or the arena where malloc() fails.
struct Careful;

#[cfg_attr(not(test), global_allocator)]
#[cfg_attr(test, allow(dead_code))]
static ALLOCATOR: Careful = Careful;

const ARENA_BYTES: usize = 1 << 20;

/// Memory of the process. It costs nothing until it is written to.
#[repr(align(16))]
struct Arena(UnsafeCell<[u8; ARENA_BYTES]>);

// SAFETY: NEXT hands each byte out to one owner at a time.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; ARENA_BYTES]));
/// The offset from which the arena is free.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The number of allocations in the arena. When it is 0, all of the arena is free again.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Whether the arena was needed since [`begin_call`].
static NEEDED: AtomicBool = AtomicBool::new(false);

impl Arena {
    #[cold]
    fn allocate(&self, layout: Layout) -> *mut u8 {
        NEEDED.store(true, Relaxed);
        LIVE.fetch_add(1, Relaxed);
        let base = self.0.get() as usize;
        let place = |next: usize| (base + next).next_multiple_of(layout.align()) - base;
        let taken = NEXT.try_update(Relaxed, Relaxed, |next| {
            place(next).checked_add(layout.size()).filter(|end| *end <= ARENA_BYTES)
        });
        match taken {
            // SAFETY: the place is within the arena, as was just checked.
            Ok(next) => unsafe { self.0.get().cast::<u8>().add(place(next)) },
            Err(_) => {
                self.free();
                std::ptr::null_mut()
            }
        }
    }

    #[cold]
    fn free(&self) {
        debug_assert!(LIVE.load(Relaxed) > 0, "only what the arena gave comes back to it");
        if LIVE.fetch_sub(1, Relaxed) == 1 {
            NEXT.store(0, Relaxed);
        }
    }

    fn has(&self, memory: *mut u8) -> bool {
        (memory as usize).wrapping_sub(self.0.get() as usize) < ARENA_BYTES
    }
}

// SAFETY: memory comes from System or from the arena, and its address tells which of them it goes back to.
unsafe impl GlobalAlloc for Careful {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller warrants.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() { ARENA.allocate(layout) } else { memory }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if ARENA.has(memory) {
            ARENA.free();
        } else {
            // SAFETY: the memory is not from the arena, so it is from System.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller warrants. The copy is no longer than either of the two.
        unsafe {
            if !ARENA.has(memory) {
                let larger = System.realloc(memory, layout, bytes);
                if !larger.is_null() {
                    return larger;
                }
            }
            let other = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
            if !other.is_null() {
                other.copy_from_nonoverlapping(memory, bytes.min(layout.size()));
                self.dealloc(memory, layout);
            }
            other
        }
    }
}

/// Begins a call that ends with [`check_memory`].
pub fn begin_call() {
    NEEDED.store(false, Relaxed);
    refill();
}

/// An error if Rust has found no memory since [`begin_call`]. The arena only has to last until the call ends.
pub fn check_memory() -> Result<(), Error> {
    if NEEDED.load(Relaxed) { Err(Error::OutOfMemory) } else { Ok(()) }
}

/// Whether anything is still in the arena.
pub fn arena_is_in_use() -> bool {
    LIVE.load(Relaxed) > 0
}

/// An error if this many bytes could not be allocated. Called before an input is read whose size the caller chooses.
pub fn make_sure_of(bytes: usize) -> Result<(), Error> {
    // Smaller requests fit into the arena.
    if bytes > ARENA_BYTES / 4 {
        Vec::<u8>::new().try_reserve_exact(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_gives_what_it_has_and_is_free_again_when_all_is_given_back() {
        let layout = |bytes, align| Layout::from_size_align(bytes, align).expect("a layout");
        let first = ARENA.allocate(layout(10, 1));
        let second = ARENA.allocate(layout(ARENA_BYTES / 2, 64));
        assert!(ARENA.has(first) && ARENA.has(second));
        assert!(second as usize >= first as usize + 10 && (second as usize).is_multiple_of(64));
        assert!(ARENA.allocate(layout(ARENA_BYTES / 2, 1)).is_null());
        ARENA.free();
        ARENA.free();
        assert_eq!(ARENA.allocate(layout(ARENA_BYTES - 64, 1)), first);
        ARENA.free();
        let elsewhere = Box::new(0u8);
        assert!(!ARENA.has(&raw const *elsewhere as *mut u8));
    }
}
