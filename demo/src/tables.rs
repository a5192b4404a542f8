//! The tables about sessions and orders that are shown at the end of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::evidence::Session;
use crate::found::{Found, Verdicts};
use crate::leased::LEASE;
use crate::stats::{Stats, Table, get};
use crate::told::ToldBook;

/// A table of the latest session of each client, and the number of sessions before them.
pub fn sessions(sessions: &[Session]) -> String {
    let mut lines =
        format!("sessions\n  {:<14} {:<36} {:<8} {:<6} last number\n", "client", "session", "state", "saved");
    let mut former = BTreeMap::new();
    for (at, session) in sessions.iter().enumerate() {
        let state = session.ended.as_deref().unwrap_or("at work");
        if sessions.get(at + 1).is_some_and(|next| next.client == session.client) {
            *former.entry(state).or_insert(0) += 1;
            continue;
        }
        let saved = if session.saved { "yes" } else { "no" };
        let Session { client, session, last_number, .. } = session;
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "  {client:<14} {session} {state:<8} {saved:<6} {last_number:>11}");
    }
    let former: Vec<_> = former.iter().map(|(state, count)| format!("{count} {state}")).collect();
    lines + &format!("  before them: {}\n", if former.is_empty() { "none".into() } else { former.join(", ") })
}

/// A table of what happened to the orders.
pub fn orders(told: &ToldBook, found: &Found, stats: &Stats) -> String {
    let Verdicts { never_begun, after_attempts, .. } = found.verdicts(told);
    let calls: u64 = found.ledger.calls.values().sum();
    let unfinished = u64::try_from(found.unfinished).unwrap_or(0);
    let mut table = Table::default();
    table.add("orders", count(told.orders.len()), "charged outside the database");
    table.add("workers killed", get(&stats.workers_killed), &format!("and {} settlers", get(&stats.settlers_killed)));
    table.add(
        "pauses",
        get(&stats.workers_paused),
        &format!("of workers, for longer than their leases of {} ms", LEASE.as_millis()),
    );
    table.add("started", told.claims(false), "");
    table.add("taken over", told.claims(true), "from workers whose leases ran out");
    table.add("superseded", told.refused_tokens(), "tokens refused with ID005");
    table.add(
        "settled",
        never_begun + after_attempts,
        &format!("as cancelled: {never_begun} never begun, {after_attempts} after attempts"),
    );
    table.add(
        "charges",
        count(found.ledger.charges.len()),
        &format!("in {calls} calls; {} keys are void", found.ledger.voided.len()),
    );
    table.add("orphans left", unfinished, "");
    format!("orders\n{}", table.text())
}

fn count(length: usize) -> u64 {
    u64::try_from(length).expect("64 bits at most")
}
