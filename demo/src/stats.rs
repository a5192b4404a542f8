//! What is counted while the load runs, and how it is shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::client::Failure;
use crate::proxy;

#[derive(Debug, Default)]
pub struct Stats {
    pub requests: AtomicU64,
    pub answered: AtomicU64,
    /// Extra copies of a request, sent at the same time.
    pub copies: AtomicU64,
    /// Requests sent again long after their answer.
    pub revisits: AtomicU64,
    /// Client sessions: registrations answered, of these the former session resumed; ends.
    pub registered: AtomicU64,
    pub resumed: AtomicU64,
    pub closed: AtomicU64,
    pub crashed: AtomicU64,
    attempts: AtomicU64,
    retries: AtomicU64,
    in_progress: AtomicU64,
    timeouts: AtomicU64,
    rollbacks: AtomicU64,
    pub cancels: AtomicU64,
    pub terminations: AtomicU64,
    pub kills: AtomicU64,
    /// How long the server was away after kills, in all.
    pub outage_ms: AtomicU64,
    /// Looks at who waits for another's request, and how many were seen waiting.
    pub looks: AtomicU64,
    pub seen_waiting: AtomicU64,
    /// Errors by SQLSTATE; the empty one counts connections that broke.
    errors: Mutex<BTreeMap<String, u64>>,
    latencies_us: Mutex<Vec<u64>>,
}

impl Stats {
    pub fn attempted(&self, retry: bool) {
        add(&self.attempts);
        if retry {
            add(&self.retries);
        }
    }

    pub fn failed(&self, failure: &Failure) {
        match failure {
            Failure::InProgress => add(&self.in_progress),
            Failure::TimedOut => add(&self.timeouts),
            Failure::RolledBack => add(&self.rollbacks),
            Failure::Database(_) | Failure::Unexpected(_) => {
                let sqlstate = failure.sqlstate().unwrap_or_default().to_owned();
                let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
                *errors.entry(sqlstate).or_default() += 1;
            }
        }
    }

    /// A request's first answer, this long after it was first sent.
    pub fn answered_after(&self, latency: Duration) {
        add(&self.answered);
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let mut latencies = self.latencies_us.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.push(micros);
    }

    /// The table at the end of a run of `duration`.
    pub fn table(&self, network: &proxy::Counts, replays: u64, restarts: usize, duration: Duration) -> String {
        let mut rows = Rows::default();
        let (requests, answered) = (get(&self.requests), get(&self.answered));
        let unanswered = requests - answered;
        rows.add("requests", requests, &format!("{unanswered} never answered"));
        rows.add("attempts", get(&self.attempts), "");
        rows.add("retries", get(&self.retries), "");
        rows.add(
            "duplicate sends",
            get(&self.copies),
            &format!("at once; {} more long after the answer", get(&self.revisits)),
        );
        rows.add("replays", replays, "answers from memory");
        rows.add(
            "registrations",
            get(&self.registered),
            &format!(
                "of numbered clients, {} resumed; they crashed {} times and closed {} sessions",
                get(&self.resumed),
                get(&self.crashed),
                get(&self.closed)
            ),
        );
        rows.add(
            "waits",
            get(&self.seen_waiting),
            &format!(
                "for another attempt's outcome, seen in {} looks; {} ran out (in_progress)",
                get(&self.looks),
                get(&self.in_progress)
            ),
        );
        rows.add(
            "replies lost",
            get(&network.commits_unheard),
            &format!("of COMMITs that succeeded; {} of other statements", get(&network.replies_lost)),
        );
        rows.add("connections cut", get(&network.lost), "before the statement arrived");
        rows.add("COMMITs held up", get(&network.late), "and delivered late");
        rows.add("client timeouts", get(&self.timeouts), "");
        rows.add("rollbacks", get(&self.rollbacks), "by the application, after its work");
        rows.add("cancels", get(&self.cancels), &format!("and {} backends terminated", get(&self.terminations)));
        rows.add(
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
        rows.add(
            "answers/s",
            answered * 1000 / millis.max(1),
            &format!("over {:.0} s, all interruptions included", duration.as_secs_f64()),
        );
        rows.text(
            "latency p50",
            &format!("{:.1}", percentile(50)),
            &format!("ms, retries included; p99 {:.1} ms", percentile(99)),
        );
        self.add_errors(&mut rows);
        rows.0
    }

    fn add_errors(&self, rows: &mut Rows) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        for (sqlstate, &count) in &*errors {
            if sqlstate.is_empty() {
                rows.add("connection lost", count, "without a word from the server");
            } else {
                rows.add(&format!("error {sqlstate}"), count, name_of(sqlstate));
            }
        }
    }
}

#[derive(Default)]
struct Rows(String);

impl Rows {
    fn add(&mut self, name: &str, count: u64, note: &str) {
        self.text(name, &count.to_string(), note);
    }

    fn text(&mut self, name: &str, value: &str, note: &str) {
        let line = format!("  {name:<16} {value:>9}  {note}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{}", line.trim_end());
    }
}

/// Of sorted values; 0 of none.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// The names of the errors that are to be expected here, and of all of the extension's.
fn name_of(sqlstate: &str) -> &'static str {
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
        "ID005" => "fenced (asked for)",
        "ID006" => "out_of_sequence",
        "ID007" => "not_begun",
        "ID008" => "unrecorded",
        "ID009" => "limit_exceeded",
        "ID010" => "key_too_old",
        _ => "",
    }
}

pub fn add(counter: &AtomicU64) {
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
