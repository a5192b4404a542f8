//! Counts what the sweep has removed, for the sessions that it belonged to.

use crate::domain::identity::SessionId;
use crate::guc;
use crate::monitor::counters;
use crate::monitor::{Counter, Key};
use crate::pg;
use pgrx::pg_sys;

/// Of the lines of counters, the sweep uses one in so many at most. Otherwise a segment with outcomes of very many sessions
/// would have all other lines give way.
const ONE_IN: usize = 2;

/// Counts outcomes of standing sessions: the ids of the sessions, and how many outcomes of each.
pub fn of_standing(mut swept: Vec<(SessionId, u64)>) {
    swept.sort_unstable_by_key(|(_, outcomes)| std::cmp::Reverse(*outcomes));
    let database = pg::current_database();
    let (named, others) = swept.split_at(swept.len().min(guc::max_stats() / ONE_IN));
    for (id, outcomes) in named {
        counters::add_to(Key::of_standing(id, database), Counter::Swept, *outcomes);
    }
    let others: u64 = others.iter().map(|(_, outcomes)| outcomes).sum();
    if others > 0 {
        counters::add_to(Key::of_others(database.to_u32()), Counter::Swept, others);
    }
}

/// Counts outcomes of the client sessions of a role.
pub fn of_clients(owner: pg_sys::Oid, outcomes: u64) {
    if outcomes > 0 {
        counters::add_to(Key::of_clients(owner, pg::current_database()), Counter::Swept, outcomes);
    }
}
