//! When memory runs out, a call ends with an error (53200), and the server goes on.
//!
//! Rust aborts the process where its allocator returns nothing, and the postmaster then restarts all backends; so the
//! allocator here falls back to an arena of 1 MB, and the call ends with an error soon after. pgrx copies each error of
//! PostgreSQL that passes through Rust (`CopyErrorData`), and where the copy finds no memory, it raises another error,
//! which is copied in turn, until PostgreSQL's error stack is full and the server ends (PANIC). The same may happen
//! where pgrx finds no memory for the texts of an error that it raises, after `errstart`, and the C library ends the
//! process where it finds none to register the destructor of a thread-local variable (`__cxa_thread_atexit_impl`). So
//! the linker redirects these calls of this library to the functions here (`build.rs`), which first make sure of room
//! by freeing a reserve of 4 MB, and as a last resort return a static error in place of the copy (`error_copy.rs`). The
//! test `memory::an_allocation_that_fails_ends_the_call_wherever_it_is` (`tests/cluster`) lets each allocation of its
//! scripts fail in turn, and the server crashes in it without the arena, without the redirected copy, and without the
//! redirected registration. An arena has no room for what grows with a caller's input, so such code asks first
//! ([`make_sure_of`], `try_reserve`), which `memory::a_limit_of_memory_ends_the_call` shows.

#[cfg(not(test))]
use super::error_copy;
use crate::error::Error;
#[cfg(not(test))]
use pgrx::pg_sys;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
#[cfg(not(test))]
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The size of the reserve, which is freed when there is no memory to handle an error in. It is twice what two blocks
/// of a memory context that has grown take. Nothing is ever written to the reserve.
const RESERVE_BYTES: usize = 4 << 20;

/// The memory that has to be free before an error is handled. malloc() itself may ask the system for this much.
#[cfg(not(test))]
const ROOM_BYTES: usize = 1 << 20;

thread_local! {
    /// The reserve; null while it is used up.
    static RESERVE: Cell<*mut c_void> = const { Cell::new(std::ptr::null_mut()) };
}

unsafe extern "C" {
    fn malloc(bytes: usize) -> *mut c_void;
    #[cfg(not(test))]
    fn free(memory: *mut c_void);
}

/// Allocates the reserve if there is none: when the library is loaded, and after an error has used it up. It raises no error:
/// where there is no memory, a later call tries again.
pub fn refill() {
    if RESERVE.get().is_null() {
        // SAFETY: a result of null is what RESERVE has while there is no reserve.
        RESERVE.set(unsafe { malloc(RESERVE_BYTES) });
    }
}

/// Whether this many bytes could be allocated now. If not, frees the reserve and looks again.
#[cfg(not(test))]
fn has_room(bytes: usize) -> bool {
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

// What the linker puts in place of functions of PostgreSQL and of the C library where this library calls them. The unit
// tests are linked without.

#[cfg(not(test))]
unsafe extern "C-unwind" {
    fn __real_CopyErrorData() -> *mut pg_sys::ErrorData;
    fn __real_errstart(level: c_int, domain: *const c_char) -> bool;
}

/// Copies the error that was just caught. It raises no error, since pgrx could not handle one here.
#[cfg(not(test))]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_CopyErrorData() -> *mut pg_sys::ErrorData {
    // SAFETY: called as PostgreSQL's own function is. pgrx raises the error again or flushes it afterwards, and so
    // does `taken.rs`.
    unsafe {
        if has_room(error_copy::bytes_needed() + ROOM_BYTES) {
            error_copy::copied(|| __real_CopyErrorData())
        } else {
            error_copy::spare()
        }
    }
}

/// Frees a copy that the function above has made.
#[cfg(not(test))]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_FreeErrorData(error: *mut pg_sys::ErrorData) {
    // SAFETY: all copies of errors in this library are made by the function above.
    unsafe { error_copy::free(error) }
}

/// Is asked to register a destructor of a thread-local variable of Rust's, and does nothing. The C library would
/// end the process if it found no memory for that. The only thread here ends with the process, and what the
/// variables hold (plans, for example) must not be touched so late.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn __wrap___cxa_thread_atexit_impl(_: *mut c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    0
}

/// Begins to raise an error. pgrx then allocates the texts of the error in the current memory context, where there
/// may be no room. So an error switches to ErrorContext, where PostgreSQL keeps some room.
#[cfg(not(test))]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_errstart(level: c_int, domain: *const c_char) -> bool {
    // SAFETY: called as PostgreSQL's own function is. An error does not return to the code that relies on its own
    // memory context.
    unsafe {
        let wanted = __real_errstart(level, domain);
        if wanted && level >= pgrx::PgLogLevel::ERROR as c_int {
            has_room(ROOM_BYTES);
            pg_sys::MemoryContextSwitchTo(pg_sys::ErrorContext);
        }
        wanted
    }
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
