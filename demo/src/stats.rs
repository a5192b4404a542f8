//! The counters of a run, and the table that shows them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::failure::Failure;
use crate::proxy;

#[derive(Debug, Default)]
pub struct Stats {
    pub requests: AtomicU64,
    pub answered: AtomicU64,
    /// Additional copies of requests, sent at the same time.
    pub copies: AtomicU64,
    /// Requests sent again long after they were answered.
    pub revisits: AtomicU64,
    /// Registrations of numbered clients.
    pub registered: AtomicU64,
    /// Registrations that resumed the former session.
    pub resumed: AtomicU64,
    /// Sessions that numbered clients closed.
    pub closed: AtomicU64,
    /// Crashes of numbered clients.
    pub crashed: AtomicU64,
    /// Workers with leases that were killed.
    pub workers_killed: AtomicU64,
    /// Pauses of workers that were longer than their leases.
    pub workers_paused: AtomicU64,
    pub settlers_killed: AtomicU64,
    attempts: AtomicU64,
    retries: AtomicU64,
    in_progress: AtomicU64,
    timeouts: AtomicU64,
    rollbacks: AtomicU64,
    pub cancels: AtomicU64,
    pub terminations: AtomicU64,
    pub kills: AtomicU64,
    /// The total time for which the server was down after kills.
    pub outage_ms: AtomicU64,
    /// The number of times that somebody looked for attempts that wait for another attempt.
    pub looks: AtomicU64,
    /// The number of waiting attempts found.
    pub seen_waiting: AtomicU64,
    /// Errors by SQLSTATE. The empty SQLSTATE counts connections that broke.
    errors: Mutex<BTreeMap<String, u64>>,
    latencies_us: Mutex<Vec<u64>>,
}

impl Stats {
    pub fn attempted(&self, retry: bool) {
        increment(&self.attempts);
        if retry {
            increment(&self.retries);
        }
    }

    pub fn failed(&self, failure: &Failure) {
        match failure {
            Failure::InProgress => increment(&self.in_progress),
            Failure::TimedOut => increment(&self.timeouts),
            Failure::RolledBack => increment(&self.rollbacks),
            Failure::Database(_) | Failure::Unexpected(_) => {
                let sqlstate = failure.sqlstate().unwrap_or_default().to_owned();
                let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
                *errors.entry(sqlstate).or_default() += 1;
            }
        }
    }

    /// Counts the first answer to a request, which came this long after the first attempt.
    pub fn answered_after(&self, latency: Duration) {
        increment(&self.answered);
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let mut latencies = self.latencies_us.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.push(micros);
    }

    /// The table that is shown at the end of a run.
    pub fn table(&self, network: &proxy::Counts, replays: u64, restarts: usize, duration: Duration) -> String {
        let mut table = Table::default();
        let (requests, answered) = (get(&self.requests), get(&self.answered));
        let unanswered = requests - answered;
        table.add("requests", requests, &format!("{unanswered} never answered"));
        table.add("attempts", get(&self.attempts), "");
        table.add("retries", get(&self.retries), "");
        table.add(
            "duplicate sends",
            get(&self.copies),
            &format!("at once; {} more long after the answer", get(&self.revisits)),
        );
        table.add("replays", replays, "answers from memory");
        table.add(
            "registrations",
            get(&self.registered),
            &format!(
                "of numbered clients, {} resumed; they crashed {} times and closed {} sessions",
                get(&self.resumed),
                get(&self.crashed),
                get(&self.closed)
            ),
        );
        table.add(
            "waits",
            get(&self.seen_waiting),
            &format!(
                "for another attempt's outcome, seen in {} looks; {} ran out (in_progress)",
                get(&self.looks),
                get(&self.in_progress)
            ),
        );
        table.add(
            "replies lost",
            get(&network.commit_replies_lost),
            &format!("of COMMITs that succeeded; {} of other statements", get(&network.other_replies_lost)),
        );
        table.add("connections cut", get(&network.lost), "before the statement arrived");
        table.add("COMMITs held up", get(&network.late), "and delivered late");
        table.add("client timeouts", get(&self.timeouts), "");
        table.add("rollbacks", get(&self.rollbacks), "by the application, after its work");
        table.add("cancels", get(&self.cancels), &format!("and {} backends terminated", get(&self.terminations)));
        table.add(
            "kill -9",
            get(&self.kills),
            &format!(
                "{restarts} server restarts, away for {:.1} s in all",
                Duration::from_millis(get(&self.outage_ms)).as_secs_f64()
            ),
        );
        let mut latencies = self.latencies_us.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.sort_unstable();
        let percentile = |p| Duration::from_micros(percentile(&latencies, p)).as_secs_f64() * 1e3;
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        table.add(
            "answers/s",
            answered * 1000 / millis.max(1),
            &format!("over {:.0} s, all interruptions included", duration.as_secs_f64()),
        );
        table.add_text(
            "latency p50",
            &format!("{:.1}", percentile(50)),
            &format!("ms, retries included; p99 {:.1} ms", percentile(99)),
        );
        self.add_errors(&mut table);
        table.text()
    }

    fn add_errors(&self, table: &mut Table) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        for (sqlstate, &count) in &*errors {
            if sqlstate.is_empty() {
                table.add("connection lost", count, "without a word from the server");
            } else {
                table.add(&format!("error {sqlstate}"), count, error_name(sqlstate));
            }
        }
    }
}

/// The lines of a table: a name, a value and a note each.
#[derive(Default)]
pub(crate) struct Table(String);

impl Table {
    pub fn text(self) -> String {
        self.0
    }

    pub fn add(&mut self, name: &str, count: u64, note: &str) {
        self.add_text(name, &count.to_string(), note);
    }

    fn add_text(&mut self, name: &str, value: &str, note: &str) {
        let line = format!("  {name:<16} {value:>9}  {note}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{}", line.trim_end());
    }
}

/// A percentile of sorted values; 0 if there are none.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// The name of an error: there are names for the errors to expect in a run, and for all errors of the
/// extension.
fn error_name(sqlstate: &str) -> &'static str {
    match sqlstate {
        "08006" => "connection_failure",
        "40001" => "serialization_failure",
        "40P01" => "deadlock_detected",
        "53300" => "too_many_connections",
        "55P03" => "lock_not_available (in progress, says idem_run)",
        "57014" => "query_canceled",
        "57P01" => "admin_shutdown",
        "57P02" => "crash_shutdown",
        "57P03" => "cannot_connect_now",
        "ID001" => "payload_mismatch (asked for)",
        "ID002" => "already_begun",
        "ID003" => "outcome_discarded (asked for)",
        "ID004" => "session_ended",
        "ID005" => "fenced, or the token superseded (asked for)",
        "ID006" => "out_of_sequence",
        "ID007" => "not_begun",
        "ID008" => "unrecorded",
        "ID009" => "limit_exceeded",
        "ID010" => "key_too_old",
        "ID011" => "already_done",
        "ID012" => "elsewhere",
        _ => "",
    }
}

pub fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_of_the_values_seen() {
        assert_eq!(percentile(&[], 50), 0);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[7], 99), 7);
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), 50);
        assert_eq!(percentile(&hundred, 99), 99);
    }
}
