//! The quota of sessions and of leases of a role. A backend counts them rarely. After a count it may make its allowance of
//! those that are left to the limit before it counts again.

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Client sessions at work.
    Client,
    /// Client sessions that ended without an outcome and have a row only for their end.
    Ended,
    /// Standing sessions, dropped ones included: their rows stay.
    Standing,
    /// Leases, those that ran out included: their rows stay until somebody needs them no more.
    Lease,
}

/// How many more a backend may make before it counts again.
#[derive(Clone, Copy)]
pub struct Allowance {
    /// The limit when it was counted.
    limit: i64,
    /// The places left, including the place that the counting call itself took.
    left: i64,
    /// How long the count is used.
    until: i64,
}

/// How long a count is used at least. Other backends make and end sessions meanwhile.
const COUNT_HOLDS_US: i64 = 1_000_000;

/// A count that takes long is used longer: so many times as long as it took. So counting takes little of a backend's time
/// also where a role may have sessions by the million.
const COUNT_HOLDS_TIMES: i64 = 20;

impl Allowance {
    /// The allowance of a backend: what is left to the limit, divided by the number of backends that there can be. The count
    /// was begun at `begun_us`, and has ended now.
    pub fn after_count(limit: i64, count: i64, backends: i64, begun_us: i64, now_us: i64) -> Allowance {
        let took_us = now_us.saturating_sub(begun_us).max(0);
        let until = now_us.saturating_add(COUNT_HOLDS_US.max(took_us.saturating_mul(COUNT_HOLDS_TIMES)));
        Allowance { limit, left: (limit - count) / backends.max(1), until }
    }

    /// Takes one place; `false` if the sessions must be counted again first.
    pub fn take(&mut self, limit: i64, now_us: i64) -> bool {
        let has_one = self.limit == limit && self.left > 1 && now_us < self.until;
        self.left -= i64::from(has_one);
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_ends_with_its_places_its_time_or_another_limit() {
        let allowance = Allowance::after_count(100, 60, 10, 5, 5);
        let mut used = allowance;
        assert_eq!((0..10).filter(|_| used.take(100, 5)).count(), 3);
        assert!(!allowance.clone().take(101, 5));
        assert!(allowance.clone().take(100, 4 + COUNT_HOLDS_US));
        assert!(!allowance.clone().take(100, 5 + COUNT_HOLDS_US));
        assert!(!Allowance::after_count(100, 99, 10, 5, 5).take(100, 5));
    }

    #[test]
    fn a_count_that_takes_long_is_used_longer() {
        let allowance = |took_us: i64| Allowance::after_count(100, 60, 10, 7, 7 + took_us);
        assert!(!allowance(10_000).take(100, 1_010_007));
        assert!(allowance(100_000).take(100, 2_100_006));
        assert!(!allowance(100_000).take(100, 2_100_007));
    }
}
