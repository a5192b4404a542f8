//! The quota of sessions of a role. A backend counts them rarely. After a count it may make its share of the sessions
//! that are left to the limit before it counts again.

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Client sessions at work.
    Client,
    /// Client sessions that ended without an outcome and have a row only for their end.
    Ended,
    /// Standing sessions, dropped ones included: their rows stay.
    Standing,
}

/// How many more sessions a backend may make before it counts again.
#[derive(Clone, Copy)]
pub struct Share {
    /// The limit when it was counted.
    limit: i64,
    /// The places left, including the place that the counting call itself took.
    left: i64,
    counted_at: i64,
}

/// How long a count is used. Other backends make and end sessions meanwhile.
const COUNT_HOLDS_US: i64 = 1_000_000;

impl Share {
    /// The share of a backend: what is left to the limit, divided by the number of backends that there can be.
    pub fn after_count(limit: i64, count: i64, backends: i64, now_us: i64) -> Share {
        Share { limit, left: (limit - count) / backends.max(1), counted_at: now_us }
    }

    /// Takes one place; `false` if the sessions must be counted again first.
    pub fn take(&mut self, limit: i64, now_us: i64) -> bool {
        let has_one = self.limit == limit && self.left > 1 && now_us - self.counted_at < COUNT_HOLDS_US;
        if has_one {
            self.left -= 1;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_ends_with_its_places_its_time_or_another_limit() {
        let share = Share::after_count(100, 60, 10, 5);
        let mut used = share;
        assert_eq!((0..10).filter(|_| used.take(100, 5)).count(), 3);
        assert!(!share.clone().take(101, 5));
        assert!(share.clone().take(100, 4 + COUNT_HOLDS_US));
        assert!(!share.clone().take(100, 5 + COUNT_HOLDS_US));
        assert!(!Share::after_count(100, 99, 10, 5).take(100, 5));
    }
}
