//! The open list: the requests that this transaction has begun. Beside it stand the client sessions that the
//! transaction uses, and the newest answers of begin. All are the backend's own memory and empty between transactions.
//!
//! The list notes in order what happened to its requests (begun, saved by a checkpoint or a lease, recorded, released), and at which
//! nesting level of subtransactions. A rollback to a savepoint undoes exactly what happened after the savepoint:
//! requests begun there leave the list, and requests recorded or released there are open again.

use crate::domain::class::Class;
use crate::domain::identity::{Digest, SessionId};
use crate::error::{Error, Missing, RequestName};
use crate::model::{ClientSession, Session, StandingSession};
use crate::monitor::in_flight;
use crate::pg::{self, Own};
use list::List;
use pgrx::PgSqlErrorCode;
use std::collections::HashMap;
use std::rc::Rc;

mod entry;
mod index;
mod list;

pub use crate::monitor::in_flight::State;
pub use entry::{Leftovers, Numbers, OpenRequest, RequestKey};

static OPEN: Own<List> = Own::new();
/// The client sessions, each with its last sign of life before the transaction began to use it.
static USED: Own<HashMap<SessionId, (Rc<ClientSession>, i64)>> = Own::new();

/// The standing session as it was when this transaction began the request. A request ends under the rules that it was
/// begun under, even if the session has been changed or dropped meanwhile.
pub fn session_of(session: &str, stream: &str, request: &str) -> Option<Rc<StandingSession>> {
    OPEN.with(|list| list.standing(session, stream, request))
}

/// Whether the request is open in this transaction.
pub fn holds(key: RequestKey<'_>) -> bool {
    find(key).is_ok()
}

/// The open request of this transaction under the lock, if its number is `upto` or less.
pub fn at_work_under(lock: &Digest, upto: i64) -> Option<RequestName> {
    OPEN.with(|list| list.under(lock, upto))
}

/// Whether this transaction has open requests of the client session.
pub fn is_in_use(id: &SessionId) -> bool {
    OPEN.with(|list| list.uses(id))
}

/// Whether any request is open.
pub fn has_open() -> bool {
    OPEN.with(|list| list.has_open())
}

/// Notes that this transaction uses a client session, whose last sign of life was at `last_seen`. The commit gives another.
pub fn use_session(session: &Rc<ClientSession>, last_seen: i64) {
    USED.with(|used| {
        used.entry(session.id).or_insert_with(|| (Rc::clone(session), last_seen));
    });
}

/// Takes the client sessions that this transaction uses, each with its last sign of life before that, and forgets them.
pub fn take_used_sessions() -> impl Iterator<Item = (Rc<ClientSession>, i64)> {
    USED.take().into_values()
}

/// Puts a request on the list that was begun at `since`. The caller has the request's lock. Tells whether it is the only
/// open request.
pub fn begin(session: Session, key: RequestKey<'_>, open: OpenRequest, since: i64) -> bool {
    let place = in_flight::add(&session, key.stream, key.request, &open.lock, since);
    OPEN.with(|list| {
        let is_first = !list.has_open();
        list.begin(session, key, open, place, pg::nesting_level());
        is_first
    })
}

/// Makes room for one more request, before its lock is taken.
pub fn reserve() -> Result<(), Error> {
    OPEN.with(List::reserve).map_err(Into::into)
}

/// How many locks the requests on the list have, at most.
pub fn locks() -> usize {
    OPEN.with(|list| list.locks())
}

/// Runs `take`, which takes the lock of a request. If the lock table has no room left, the error names the request.
pub fn with_room<T>(name: impl FnOnce() -> RequestName, take: impl FnOnce() -> T) -> Result<T, Error> {
    pg::replaced(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, take, |error| {
        let (message, hint) = (error.message().into(), error.hint().unwrap_or_default().into());
        Some(Error::NoLock { name: Box::new(name()), message, hint, held: locks() })
    })
}

/// The request, if it is open; otherwise why it cannot be recorded, checkpointed or released.
pub fn find(key: RequestKey<'_>) -> Result<OpenRequest, Missing> {
    OPEN.with(|list| list.find(key))
}

/// Notes what becomes of the request that [`find`] found: that it is saved by a checkpoint or a lease, recorded or released.
pub fn finish(key: RequestKey<'_>, state: State) {
    if let Some(place) = OPEN.with(|list| list.finish(key, state, pg::nesting_level())) {
        in_flight::note(place, Some(state));
    }
}

/// The first request that is neither recorded, saved nor released, and the sessions of all of them, one for each. A commit
/// would lose them.
pub fn unrecorded() -> Option<(RequestName, Vec<Session>)> {
    OPEN.with(|list| list.unrecorded())
}

/// The open request that was begun last, and how many other ones are open.
pub fn last_open() -> Option<(RequestName, usize)> {
    OPEN.with(|list| list.last_open())
}

/// Undoes what happened in the innermost subtransaction.
pub fn roll_back() {
    OPEN.with(|list| list.roll_back(pg::nesting_level(), in_flight::note));
}

/// Makes what happened in the innermost subtransaction part of its parent.
pub fn hand_up() {
    OPEN.with(|list| list.hand_up(pg::nesting_level()));
}

/// Forgets everything, at the end of the transaction.
pub fn clear() {
    in_flight::clear();
    OPEN.with(List::clear);
    USED.with(HashMap::clear);
    NEWEST.with(Vec::clear);
}

// The newest answers of begin other than `started`. Only one error text needs them: a program that did not look at the status
// calls record, checkpoint or release all the same, and is told what begin had answered. So a few are enough.

/// How many answers are remembered.
const REMEMBERED: usize = 8;

/// Tells which request was answered: the digest that is locked for it, and its first number, by which requests in one
/// lane differ. The number is 0 for a request with a key.
pub type LockAndNumber = (Digest, i64);

static NEWEST: Own<Vec<(LockAndNumber, Option<Class>)>> = Own::new();

/// Remembers an answer: that the request is done, or, `None`, in progress.
pub fn note_answer(request: LockAndNumber, answered: Option<Class>) {
    NEWEST.with(|newest| {
        if newest.len() == REMEMBERED {
            newest.remove(0);
        }
        newest.push((request, answered));
    });
}

/// Forgets the answers for a request, because a later begin was answered with `started`.
pub fn forget_answers(request: LockAndNumber) {
    NEWEST.with(|newest| newest.retain(|(other, _)| *other != request));
}

/// The newest answer for a request.
pub fn answer_to(request: LockAndNumber) -> Option<Option<Class>> {
    NEWEST.with(|newest| newest.iter().rev().find(|(other, _)| *other == request).map(|(_, answered)| *answered))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Option<Class> = Some(Class::Succeeded);

    #[test]
    fn the_newest_answers_are_remembered_and_the_last_one_counts() {
        let request = |number| (Digest([7; 16]), number);
        for number in 1..=20 {
            note_answer(request(number), DONE);
        }
        assert_eq!((answer_to(request(12)), answer_to(request(13))), (None, Some(DONE)));
        note_answer(request(20), None);
        assert_eq!(answer_to(request(20)), Some(None));
        forget_answers(request(20));
        assert_eq!(answer_to(request(20)), None);
        NEWEST.with(Vec::clear);
        assert_eq!(answer_to(request(19)), None);
    }
}
