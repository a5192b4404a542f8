//! The open list: requests begun in this transaction, and the check before its end.
//!
//! Each request remembers at which nesting level of subtransactions it was begun, satisfied (recorded
//! or checkpointed) or released. A rollback to a savepoint undoes just what happened inside: what was
//! begun there leaves the list, what was satisfied or released there is open again. Beside it stand the
//! client sessions that this transaction uses, which give a sign of life with its commit. Both are the
//! backend's own memory and empty between transactions.

use crate::domain::identity::{Digest, SessionId};
use crate::error::{Error, Name};
use crate::guc::{self, Unrecorded};
use crate::pg;
use crate::protocol::liveness;
use crate::store::client::Client;
use crate::store::message;
use crate::store::session::{Session, Standing};
use attended::Attendance;
use list::{Level, List};
use pgrx::pg_sys::panic::ErrorReportWithLevel;
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

pub mod answered;
mod attended;
mod first;
mod index;
mod list;

pub use attended::Attended;
pub use list::{Numbers, Open, Step, Which};

thread_local! {
    static OPEN: RefCell<List> = RefCell::default();
    static ATTENDED: RefCell<Attendance> = const { RefCell::new(Attendance::new()) };
}

/// The standing session as it was when this transaction began the request: what was begun under its
/// rules ends under them, also when it is changed or dropped meanwhile.
pub fn session_of(session: &str, request: &str) -> Option<Rc<Standing>> {
    OPEN.with_borrow(|list| list.standing(session, request))
}

/// Whether this transaction holds the claim to the request.
pub fn holds(which: Which<'_>) -> bool {
    OPEN.with_borrow(|list| list.holds(which))
}

/// The request of this transaction that still is at work under the lock.
pub fn at_work_under(lock: &Digest) -> Option<Name> {
    OPEN.with_borrow(|list| list.under(lock))
}

/// The request of this transaction that still is at work under the lock, with a number up to this one.
pub fn begun_under(lock: &Digest, upto: i64) -> Option<Name> {
    OPEN.with_borrow(|list| list.begun_under(lock, upto))
}

/// Whether this transaction has open requests of the client session.
pub fn is_in_use(id: &SessionId) -> bool {
    OPEN.with_borrow(|list| list.uses(id))
}

/// Notes that this transaction uses a client session.
pub fn attend(client: &Rc<Client>, last_seen: i64) {
    ATTENDED.with_borrow_mut(|attended| attended.add(client, last_seen));
}

/// Puts a request on the list; the caller has its lock.
pub fn begin(session: Session, which: Which<'_>, is: Open) {
    let is_first = OPEN.with_borrow_mut(|list| {
        let is_first = !list.has_open();
        list.begin(session, which, is, level());
        is_first
    });
    if is_first {
        first::come_first();
    }
}

/// Makes room for one more request, before its lock is taken.
pub fn reserve() -> Result<(), Error> {
    OPEN.with_borrow_mut(List::reserve).map_err(Into::into)
}

/// How many requests of this transaction keep a lock, at most.
pub fn locks() -> usize {
    OPEN.with_borrow(List::locks)
}

/// What is told where the lock table has no room for the lock of a request.
pub fn no_room(name: Name, error: &ErrorReportWithLevel) -> Error {
    let (message, hint) = (error.message().into(), error.hint().unwrap_or_default().into());
    Error::NoLock { name: Box::new(name), message, hint, held: locks() }
}

/// The request, if this transaction holds the claim to it; `function` needs it.
pub fn find(which: Which<'_>, function: &'static str) -> Result<Open, Error> {
    let found = OPEN.with_borrow(|list| list.find(which));
    found.map_err(|missing| Error::NotBegun { name: which.name(), missing, function })
}

/// Notes what became of the request that [`find`] found.
pub fn step(which: Which<'_>, step: Step) {
    OPEN.with_borrow_mut(|list| list.step(which, step, level()));
}

/// Registers the callbacks, once a backend.
pub fn init() {
    first::init();
    // SAFETY: the callback is a static function, and registering happens at load, in no transaction's way.
    unsafe { pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut()) };
}

fn level() -> Level {
    // SAFETY: reads the transaction state.
    unsafe { pg_sys::GetCurrentTransactionNestLevel() }
}

#[pg_guard]
unsafe extern "C-unwind" fn transaction_event(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_PRE_COMMIT => {
            first::set_ending(true);
            refuse_unrecorded(false);
            liveness::give_signs(ATTENDED.take().into_sessions());
        }
        XACT_EVENT_PARALLEL_PRE_COMMIT => {}
        // Not with PREPARE: that could keep others from giving theirs for as long as it stays prepared.
        XACT_EVENT_PRE_PREPARE => {
            first::set_ending(true);
            refuse_unrecorded(true);
        }
        _ => {
            first::set_ending(false);
            pg::refill();
            if pg::arena_is_in_use() {
                // What is remembered for long must not be there.
                message::forget();
            }
            OPEN.with_borrow_mut(List::clear);
            ATTENDED.with_borrow_mut(Attendance::clear);
            answered::clear();
        }
    }
}

fn refuse_unrecorded(preparing: bool) {
    let unrecorded = OPEN.with_borrow(List::unrecorded);
    let unrecorded = unrecorded.map(|(name, others)| Error::Unrecorded { name, others, preparing });
    match (unrecorded, guc::unrecorded()) {
        (Some(error), Unrecorded::Error) => error.raise(),
        (Some(error), Unrecorded::Warning) => error.warn(),
        (Some(_), Unrecorded::Off) | (None, _) => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn subtransaction_event(
    event: pg_sys::SubXactEvent::Type,
    _subtransaction: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => OPEN.with_borrow_mut(|list| list.roll_back(level())),
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => OPEN.with_borrow_mut(|list| list.hand_up(level())),
        _ => {}
    }
}
