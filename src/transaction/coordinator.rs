//! Commit coordinators: modules that commit parts of a transaction on other servers.
//!
//! A coordinator that commits there before the commit here leaves a gap. After a crash in it the effect is there and its
//! outcome is not, so a retry executes the request again. Citus does so where it sees writes on one other server only,
//! since it does not see ours. It can be asked to prepare the parts, and to commit them after the commit here. It then
//! finishes after a crash what was committed here.
//!
//! So a transaction that has written into our tables asks for that just before its commit. So does one that has written into
//! a journal of Citus and, in the same transaction, into any table of this server: Citus does not see that write either. And
//! one whose lease or verdict must outlast a crash: a server always flushes what it prepares. Our callback runs before that
//! of the coordinator, see `first.rs`. Citus ignores the request in a transaction that has written nowhere else, and in
//! all others prepares only the parts that have written.

use crate::guc::{self, Coordinate};
use crate::pg;
use crate::store::written;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// What Citus exports to be asked by.
const ASK: &CStr = c"Use2PCForCoordinatedTransaction";

thread_local! {
    /// The number of libraries that were loaded when the function was looked for, and the function, if one exports it.
    static LOOKED: Cell<(Option<u64>, Option<NonNull<c_void>>)> = const { Cell::new((None, None)) };
}

/// The function to ask by. It is looked for again when a library was loaded since.
fn find() -> Option<NonNull<c_void>> {
    let (libraries, (known, ask)) = (pg::libraries_loaded(), LOOKED.get());
    if libraries.is_some() && libraries == known {
        return ask;
    }
    let ask = pg::exported(ASK);
    LOOKED.set((libraries, ask));
    ask
}

/// The library that can be asked for a two-phase commit.
pub fn name() -> Option<String> {
    pg::library_of(find()?)
}

/// The function to ask by, if the transaction that is about to end has a reason to ask.
pub fn to_be_asked() -> Option<NonNull<c_void>> {
    let written = written::so_far();
    let has_reason = written.here || written.lasting || written.elsewhere && pg::has_written();
    (has_reason && guc::coordinate() == Coordinate::Auto).then(find).flatten()
}

/// Asks the coordinator for a two-phase commit if this transaction has a reason to. Called just before the commit, and before
/// the coordinator's own callback.
pub fn ask_for_two_phases() {
    if let Some(ask) = to_be_asked() {
        // What was prepared elsewhere is committed there right after the commit here. A commit that a crash could lose
        // would leave the effect without its outcome.
        pg::force_sync_commit();
        // SAFETY: Citus declares the function so: no arguments and no result. The library that has it stays loaded.
        unsafe {
            let ask = std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn()>(ask.as_ptr());
            pg::raw::guarded(|| ask());
        }
    }
}
