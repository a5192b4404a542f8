//! The shape of an explanation's sections. Transactions and repairs are told as `store/witness.rs` finds them.

use crate::error::Error;
use crate::store::witness::{self, Transaction};
use serde::Serialize;

/// Who has the request's lock, and who waits for it.
#[derive(Serialize)]
pub struct Now {
    /// Who has the lock.
    pub holder: Option<Transaction>,
    /// Who holds up the holder: the root of what it waits for.
    pub blocker: Option<Transaction>,
    /// How many wait.
    pub waiters: i64,
    /// Who waits for it, the longest first; ten at most.
    pub waiting: Vec<Transaction>,
    /// request, slot or stream. In a slot or stream another number may be at work. Of an inbox it is transaction, and who
    /// waits is not told.
    pub lock_is_of: &'static str,
}

/// What was recorded.
#[derive(Serialize)]
pub struct Outcome {
    /// succeeded, failed or cancelled.
    pub status: &'static str,
    /// Whether it has expired, and so counts as absent.
    pub expired: bool,
    /// Whether it was given up: all attempts that its session allows were begun, and none was completed.
    pub given_up: bool,
    /// Whether its response was taken away.
    pub redacted: bool,
    /// When it expires.
    pub expires_at: Option<String>,
    /// When it was recorded.
    pub recorded_at: String,
    /// Who recorded it.
    pub recorded_by: Option<String>,
    /// The size of the response as it is stored.
    pub response_bytes: Option<i32>,
}

/// What was begun, committed, and is not done.
#[derive(Serialize)]
pub struct Unfinished {
    /// The last number of a numbered request.
    pub last: Option<i64>,
    /// The point of its checkpoint.
    pub point: Option<String>,
    /// When the holder was given the lease, or the checkpoint was written.
    pub since: String,
    /// leased, run out or suspended, as in the view `unfinished`.
    pub state: &'static str,
    /// The role that has the lease, or had it last.
    pub holder: Option<String>,
    /// 1, and one more for each that took over.
    pub attempt: Option<i32>,
    /// The `application_name`.
    pub application: Option<String>,
    /// When the lease runs out or ran out.
    pub leased_until: Option<String>,
}

impl Now {
    /// Sorts the transactions into the one that has the lock and those that wait for it.
    pub fn of(transactions: Vec<Transaction>, waiters: i64, lock_is_of: &'static str) -> Result<Now, Error> {
        let (holders, waiting): (Vec<_>, Vec<_>) = transactions.into_iter().partition(|transaction| transaction.holds);
        let holder = holders.into_iter().next();
        let held_up = holder.as_ref().filter(|holder| holder.waits_for("Lock/")).and_then(|holder| holder.pid);
        let blocker = held_up.map(witness::blocker).transpose()?.flatten();
        Ok(Now { holder, blocker, waiters, waiting, lock_is_of })
    }
}
