//! The open list: the requests that this transaction has begun, and the client sessions that it uses. Both are the
//! backend's own memory and empty between transactions.
//!
//! Each request remembers at which nesting level of subtransactions it was begun, satisfied (recorded or
//! checkpointed) or released. A rollback to a savepoint undoes just what happened inside: what was begun there
//! leaves the list, and what was satisfied or released there is open again.

use crate::domain::identity::{Digest, SessionId};
use crate::error::{Error, RequestName};
use crate::model::{ClientSession, Session, StandingSession};
use crate::pg;
use list::List;
use pgrx::pg_sys::panic::ErrorReportWithLevel;
use std::cell::RefCell;
use std::rc::Rc;
use used::UsedSessions;

pub mod answered;
mod entry;
mod index;
mod list;
mod used;

pub use entry::{Finish, Numbers, Open, RequestKey};
pub use used::UsedSession;

thread_local! {
    static OPEN: RefCell<List> = RefCell::default();
    static USED: RefCell<UsedSessions> = const { RefCell::new(UsedSessions::new()) };
}

/// The standing session as it was when this transaction began the request: what was begun under its
/// rules ends under them, also when it is changed or dropped meanwhile.
pub fn session_of(session: &str, request: &str) -> Option<Rc<StandingSession>> {
    OPEN.with_borrow(|list| list.standing(session, request))
}

/// Whether this transaction holds the claim to the request.
pub fn holds(key: RequestKey<'_>) -> bool {
    OPEN.with_borrow(|list| list.holds(key))
}

/// The request of this transaction that still is at work under the lock.
pub fn at_work_under(lock: &Digest) -> Option<RequestName> {
    OPEN.with_borrow(|list| list.under(lock))
}

/// The request of this transaction that still is at work under the lock, with a number up to this one.
pub fn begun_under(lock: &Digest, upto: i64) -> Option<RequestName> {
    OPEN.with_borrow(|list| list.begun_under(lock, upto))
}

/// Whether this transaction has open requests of the client session.
pub fn is_in_use(id: &SessionId) -> bool {
    OPEN.with_borrow(|list| list.uses(id))
}

/// Whether a request is open.
pub fn has_open() -> bool {
    // Asked from hooks, also where the list is in use or gone.
    OPEN.try_with(|list| list.try_borrow().is_ok_and(|list| list.has_open())) == Ok(true)
}

/// Notes that this transaction uses a client session.
pub fn use_session(session: &Rc<ClientSession>, last_seen: i64) {
    USED.with_borrow_mut(|used| used.add(session, last_seen));
}

/// Gives the client sessions that this transaction uses, once.
pub fn take_used_sessions() -> Vec<UsedSession> {
    USED.take().into_sessions()
}

/// Puts a request on the list; the caller has its lock. Tells whether no other request was open.
pub fn begin(session: Session, key: RequestKey<'_>, is: Open) -> bool {
    OPEN.with_borrow_mut(|list| {
        let is_first = !list.has_open();
        list.begin(session, key, is, pg::nesting_level());
        is_first
    })
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
pub fn no_room(name: RequestName, error: &ErrorReportWithLevel) -> Error {
    let (message, hint) = (error.message().into(), error.hint().unwrap_or_default().into());
    Error::NoLock { name: Box::new(name), message, hint, held: locks() }
}

/// The request, if this transaction holds the claim to it; `function` needs it.
pub fn find(key: RequestKey<'_>, function: &'static str) -> Result<Open, Error> {
    let found = OPEN.with_borrow(|list| list.find(key));
    found.map_err(|missing| Error::NotBegun { name: key.name(), missing, function })
}

/// Notes what became of the request that [`find`] found.
pub fn finish(key: RequestKey<'_>, finish: Finish) {
    OPEN.with_borrow_mut(|list| list.finish(key, finish, pg::nesting_level()));
}

/// The first request that a commit now would lose, and how many more there are.
pub fn unrecorded() -> Option<(RequestName, usize)> {
    OPEN.with_borrow(List::unrecorded)
}

/// Undoes what happened in the innermost subtransaction.
pub fn roll_back() {
    OPEN.with_borrow_mut(|list| list.roll_back(pg::nesting_level()));
}

/// What happened in the innermost subtransaction is from now on its parent's.
pub fn hand_up() {
    OPEN.with_borrow_mut(|list| list.hand_up(pg::nesting_level()));
}

/// At the end of the transaction.
pub fn clear() {
    OPEN.with_borrow_mut(List::clear);
    USED.with_borrow_mut(UsedSessions::clear);
    answered::clear();
}
