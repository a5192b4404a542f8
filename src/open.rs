//! The open list: requests begun in this transaction, and the check before its end.
//!
//! Each entry remembers at which nesting level of subtransactions it was begun, satisfied (recorded
//! or checkpointed) or released. A rollback to a savepoint undoes just what happened inside: what was
//! begun there leaves the list, what was satisfied or released there is open again. Beside it stand the
//! client sessions that this transaction uses, which give a sign of life with its commit. Both are the
//! backend's own memory and empty between transactions.

use crate::domain::decision::Fingerprint;
use crate::domain::identity::{Digest, SessionId};
use crate::domain::sequence::Range;
use crate::error::{Error, Missing, Name};
use crate::guc::{self, Unrecorded};
use crate::protocol::liveness;
use crate::store::client::Client;
use crate::store::session::{Session, Standing};
use pgrx::{pg_guard, pg_sys};
use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

/// A request of this transaction.
struct Entry {
    session: Session,
    stream: String,
    request: String,
    is: Open,
    begun: Level,
    recorded: Option<Level>,
    checkpointed: Option<Level>,
    released: Option<Level>,
}

/// A nesting level of subtransactions; the transaction itself is 1.
type Level = i32;

/// A client session that this transaction uses.
pub struct Attended {
    /// Itself.
    pub client: Rc<Client>,
    /// Its last sign of life, as it stood when the transaction came to use it.
    pub last_seen: i64,
}

thread_local! {
    static OPEN: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    static ATTENDED: RefCell<Vec<Attended>> = const { RefCell::new(Vec::new()) };
}

/// Which request is meant.
#[derive(Clone, Copy)]
pub struct Which<'a> {
    /// Its session's name.
    pub session: &'a str,
    /// Its stream; empty in a standing session.
    pub stream: &'a str,
    /// Its key, or its number, in canonical form.
    pub request: &'a str,
}

impl Which<'_> {
    fn name(&self) -> Name {
        Name::in_stream(self.session, self.stream, self.request)
    }
}

impl Entry {
    fn is(&self, which: Which<'_>) -> bool {
        self.request == which.request && self.stream == which.stream && self.session.name() == which.session
    }

    /// The standing session of a request whose key is not yet in canonical form.
    fn standing(&self, session: &str, request: &str) -> Option<&Rc<Standing>> {
        match &self.session {
            Session::Standing(standing) if standing.name == session => (self.request == request
                || standing.time_keys && self.request.eq_ignore_ascii_case(request))
            .then_some(standing),
            _ => None,
        }
    }

    fn name(&self) -> Name {
        Name::in_stream(self.session.name(), &self.stream, &self.request)
    }

    /// What keeps it from being recorded, checkpointed or released.
    fn missing(&self) -> Option<Missing> {
        match (self.recorded, self.released) {
            (Some(_), _) => Some(Missing::Recorded),
            (None, Some(_)) => Some(Missing::Released),
            (None, None) => None,
        }
    }

    /// Whether a commit now would lose it.
    fn unrecorded(&self) -> bool {
        self.missing().is_none() && self.checkpointed.is_none()
    }
}

/// What a step is about to become of an open request.
#[derive(Clone, Copy)]
pub enum Step {
    /// It has its outcome.
    Record,
    /// It got so far.
    Checkpoint,
    /// It was given up.
    Release,
}

/// What the steps after begin need to know of an open request.
#[derive(Clone, Copy)]
pub struct Open {
    /// What is locked for it.
    pub lock: Digest,
    /// Where a keyed one's outcome and anyone's checkpoint is kept.
    pub digest: Digest,
    /// What a numbered one is recorded with.
    pub numbers: Option<Numbers>,
    /// Of the payload it was begun with, or of an earlier attempt's.
    pub fingerprint: Option<Fingerprint>,
    /// An expired outcome or a checkpoint is there, which the record clears away.
    pub leftovers: bool,
}

/// See [`Open`].
#[derive(Clone, Copy)]
pub struct Numbers {
    /// All of them.
    pub range: Range,
    /// Where its reply goes.
    pub slot: i32,
    /// Up to where its client said with it that it has all answers.
    pub acked: i64,
}

/// The standing session as it was when this transaction began the request: what was begun under its
/// rules ends under them, also when it is changed or dropped meanwhile.
pub fn session_of(session: &str, request: &str) -> Option<Rc<Standing>> {
    OPEN.with_borrow(|open| open.iter().rev().find_map(|entry| entry.standing(session, request)).map(Rc::clone))
}

/// Whether this transaction holds the claim to the request.
pub fn holds(which: Which<'_>) -> bool {
    OPEN.with_borrow(|open| open.iter().any(|entry| entry.is(which) && entry.missing().is_none()))
}

/// The request of this transaction that still is at work under the lock.
pub fn at_work_under(lock: &Digest) -> Option<Name> {
    OPEN.with_borrow(|open| {
        let entry = open.iter().find(|entry| entry.is.lock == *lock && entry.missing().is_none())?;
        Some(entry.name())
    })
}

/// Whether this transaction has open requests of the client session.
pub fn is_in_use(id: &SessionId) -> bool {
    let of = |entry: &Entry| matches!(&entry.session, Session::Client(client) if client.id == *id);
    OPEN.with_borrow(|open| open.iter().any(|entry| of(entry) && entry.unrecorded()))
}

/// Notes that this transaction uses a client session.
pub fn attend(client: &Rc<Client>, last_seen: i64) {
    ATTENDED.with_borrow_mut(|attended| {
        if !attended.iter().any(|session| session.client.id == client.id) {
            attended.push(Attended { client: Rc::clone(client), last_seen });
        }
    });
}

/// Puts a request on the list; the caller has its lock. One that was released before is open again.
pub fn begin(session: Session, which: Which<'_>, is: Open) {
    OPEN.with_borrow_mut(|open| {
        open.push(Entry {
            session,
            stream: which.stream.into(),
            request: which.request.into(),
            is,
            begun: level(),
            recorded: None,
            checkpointed: None,
            released: None,
        });
    });
}

/// The request, if this transaction holds the claim to it; `function` needs it.
pub fn find(which: Which<'_>, function: &'static str) -> Result<Open, Error> {
    OPEN.with_borrow(|open| {
        // The newest entry counts: a released or recorded request may have been begun again.
        let entry = open.iter().rev().find(|entry| entry.is(which));
        let missing = entry.map_or(Some(Missing::Begin), Entry::missing);
        match (entry, missing) {
            (Some(entry), None) => Ok(entry.is),
            (_, missing) => {
                Err(Error::NotBegun { name: which.name(), missing: missing.unwrap_or(Missing::Begin), function })
            }
        }
    })
}

/// Notes what became of the request that [`find`] found.
pub fn step(which: Which<'_>, step: Step) {
    OPEN.with_borrow_mut(|open| {
        if let Some(entry) = open.iter_mut().rev().find(|entry| entry.is(which)) {
            entry.is.leftovers |= matches!(step, Step::Checkpoint);
            let noted = match step {
                Step::Record => &mut entry.recorded,
                Step::Checkpoint => &mut entry.checkpointed,
                Step::Release => &mut entry.released,
            };
            // The outermost level decides: a second checkpoint, rolled back, leaves the first standing.
            *noted = Some(noted.map_or(level(), |before| before.min(level())));
        }
    });
}

/// Registers the callbacks, once a backend.
pub fn init() {
    // SAFETY: the callbacks are static functions, and registering happens at load, in no transaction's way.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_event), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut());
    }
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
            refuse_unrecorded(false);
            liveness::give_signs(ATTENDED.take());
        }
        XACT_EVENT_PARALLEL_PRE_COMMIT => {}
        // Not with PREPARE: that could keep others from giving theirs for as long as it stays prepared.
        XACT_EVENT_PRE_PREPARE => refuse_unrecorded(true),
        _ => {
            OPEN.with_borrow_mut(Vec::clear);
            ATTENDED.with_borrow_mut(Vec::clear);
        }
    }
}

fn refuse_unrecorded(preparing: bool) {
    let unrecorded = OPEN.with_borrow(|open| {
        let mut unrecorded = open.iter().filter(|entry| entry.unrecorded());
        let first = unrecorded.next()?;
        Some(Error::Unrecorded { name: first.name(), others: unrecorded.count(), preparing })
    });
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
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => OPEN.with_borrow_mut(|open| roll_back(open, level())),
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => OPEN.with_borrow_mut(|open| hand_up(open, level())),
        _ => {}
    }
}

/// Undoes what happened at `level`, the innermost.
fn roll_back(open: &mut Vec<Entry>, level: Level) {
    open.retain_mut(|entry| {
        for noted in [&mut entry.recorded, &mut entry.checkpointed, &mut entry.released] {
            if noted.is_some_and(|at| at >= level) {
                *noted = None;
            }
        }
        entry.begun < level
    });
}

/// What happened at `level` is from now on its parent's.
fn hand_up(open: &mut [Entry], level: Level) {
    for entry in open {
        entry.begun = entry.begun.min(level - 1);
        for noted in [&mut entry.recorded, &mut entry.checkpointed, &mut entry.released].into_iter().flatten() {
            *noted = (*noted).min(level - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun_at(level: Level) -> Entry {
        Entry {
            session: Session::Standing(Rc::default()),
            stream: String::new(),
            request: "r".into(),
            is: Open {
                lock: Digest([0; 16]),
                digest: Digest([0; 16]),
                numbers: None,
                fingerprint: None,
                leftovers: false,
            },
            begun: level,
            recorded: None,
            checkpointed: None,
            released: None,
        }
    }

    #[test]
    fn what_was_begun_inside_leaves_the_list() {
        let mut open = vec![begun_at(1), begun_at(2), begun_at(3)];
        roll_back(&mut open, 2);
        assert_eq!(open.iter().map(|entry| entry.begun).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_was_recorded_inside_is_open_again() {
        let mut open = vec![Entry { recorded: Some(2), ..begun_at(1) }];
        roll_back(&mut open, 2);
        assert!(open[0].unrecorded());
    }

    #[test]
    fn what_was_recorded_outside_stays_recorded() {
        let mut open = vec![Entry { recorded: Some(1), ..begun_at(1) }];
        roll_back(&mut open, 2);
        assert!(!open[0].unrecorded());
    }

    #[test]
    fn a_released_savepoint_hands_its_steps_up() {
        let mut open = vec![Entry { recorded: Some(3), ..begun_at(3) }];
        hand_up(&mut open, 3);
        roll_back(&mut open, 3);
        assert_eq!((open[0].begun, open[0].recorded), (2, Some(2)));
        roll_back(&mut open, 2);
        assert!(open.is_empty());
    }
}
