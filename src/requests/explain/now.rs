//! Who is at work on the request that is explained. Transactions are told as `store/witness.rs` finds them.

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
