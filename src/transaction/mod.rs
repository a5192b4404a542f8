//! What happens at the end of a transaction and of its subtransactions. A commit or a PREPARE TRANSACTION is refused if
//! a request is open that has neither checkpoint nor lease, if an import has not ended, or if the commit would not wait
//! for its synchronous standby. A commit also has other servers commit in two phases, and gives the signs of life of
//! client sessions. At the end the open list is cleared.

mod coordinator;
mod first;
pub mod importing;
pub mod told;

use crate::error::Error;
use crate::guc::{self, Unrecorded};
use crate::journal::table;
use crate::monitor::{Counter, counters, in_flight};
use crate::open;
use crate::pg;
use crate::sessions::liveness;
use crate::store::{blank, invalidation, segment, written};
use crate::wake;
use pgrx::{pg_guard, pg_sys};
use std::ffi::c_void;

pub use coordinator::name as coordinator;
pub use first::come_first;

/// Registers the callbacks, once in each backend.
pub fn init() {
    first::init(Some(transaction_event));
    pg::add_log_context(log_context);
    // SAFETY: the callback is a static function, and a library is loaded while no callbacks run.
    unsafe { pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut()) };
}

/// The line of CONTEXT for lines of the server's log that are written while a request is open, which names the request.
/// So what the log tells of the time before an outage can be held against what was recorded. Neither a payload nor a
/// response goes there.
fn log_context() -> Option<String> {
    match guc::log_context().then(open::last_open)?? {
        (name, 0) => Some(name.to_string()),
        (name, others) => Some(format!("{name}, and {others} more")),
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn transaction_event(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE => {
            let preparing = event == XACT_EVENT_PRE_PREPARE;
            first::set_ending(true);
            refuse_unrecorded(preparing);
            importing::refuse_unended();
            if preparing {
                // It gives no signs of life: their locks would stay with the prepared transaction and keep others from
                // giving signs.
                in_flight::keep_prepared();
            } else {
                // A sign of life alone is no reason to ask.
                coordinator::ask_for_two_phases();
                liveness::give_signs();
            }
            refuse_commit_without_standby();
            blank::before_commit();
        }
        XACT_EVENT_PARALLEL_PRE_COMMIT => {}
        _ => {
            first::set_ending(false);
            wake::end_transaction(event == XACT_EVENT_COMMIT);
            told::end_transaction(match event {
                XACT_EVENT_COMMIT => Some("The transaction has committed."),
                XACT_EVENT_PREPARE => Some("The transaction is prepared: COMMIT PREPARED makes it so."),
                _ => None,
            });
            pg::refill();
            if pg::arena_is_in_use() {
                // The caches outlive the transaction, so they must not stay in the arena.
                invalidation::forget();
                table::forget();
                pg::forget_commands();
            }
            segment::end_transaction(event == XACT_EVENT_COMMIT);
            pg::end_uses();
            open::clear();
            importing::end();
            written::clear();
        }
    }
}

fn refuse_unrecorded(preparing: bool) {
    let Some((name, sessions)) = open::unrecorded() else { return };
    let allowed = guc::unrecorded();
    if allowed != Unrecorded::Off {
        sessions.iter().for_each(|session| counters::count(session, Counter::Unrecorded));
    }
    let error = Error::Unrecorded { name, others: sessions.len() - 1, preparing };
    match allowed {
        Unrecorded::Error => error.raise(),
        Unrecorded::Warning => error.warn(),
        Unrecorded::Off => {}
    }
}

/// Refuses a commit that records something and would be acknowledged without the synchronous standby that the setting
/// names, unless the checkpointer reads the setting in time (see `pg/standbys.rs`). This comes as late as possible:
/// what is done before may take long.
fn refuse_commit_without_standby() {
    if written::so_far().here
        && pg::commit_would_not_wait()
        && !pg::wait_until_commits_wait(|| pg::Deadline::after(guc::wait_us()))
    {
        Error::CommitWouldNotWait.raise()
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
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            open::roll_back();
            importing::roll_back();
            told::roll_back();
            segment::end_transaction(false);
        }
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
            open::hand_up();
            importing::hand_up();
            told::hand_up();
        }
        _ => {}
    }
}
