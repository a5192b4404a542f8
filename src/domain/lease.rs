//! Leases: claims that outlast their transaction, for requests whose effect is outside the database.
//!
//! A lease is kept under the name that is locked for its request, and changes only under that lock. Its token tells it
//! from all other leases of the request. Whoever completes the request shows the token; a token that was superseded is
//! refused. A lease that ran out stays valid until somebody supersedes it.

/// The greatest token: the last number before 2^53, so that JavaScript keeps each exact. None is handed out beyond it, and
/// none taken from outside. The clock in microseconds comes to it in the year 2285.
pub const TOKEN_MAX: i64 = (1 << 53) - 1;

/// The lease of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    /// The token that its holder completes the request with.
    pub token: i64,
    /// 1 for the first holder of the request, and one more for each that took it over.
    pub attempt: i32,
    /// When this holder was given it.
    pub begun_at: i64,
    /// When it runs out.
    pub until: i64,
}

impl Lease {
    /// The lease of a request that nobody has a lease of.
    pub fn first(now_us: i64, lease_us: i64) -> Lease {
        Lease { token: now_us, attempt: 1, begun_at: now_us, until: now_us.saturating_add(lease_us) }
    }

    /// The lease that supersedes this one. Without a `lease_us` a transaction supersedes it that needs no lease. Then
    /// it has run out from the start, and nobody is told its token. `None`: there is no higher token, which is so only
    /// if somebody has written the greatest one.
    pub fn superseded(self, now_us: i64, lease_us: Option<i64>) -> Option<Lease> {
        Some(Lease {
            token: next_token(self.token, now_us)?,
            attempt: self.attempt.saturating_add(1),
            begun_at: now_us,
            until: lease_us.map_or(now_us, |lease_us| now_us.saturating_add(lease_us)),
        })
    }

    /// This lease, extended to run out `lease_us` from now, or when it would have run out if that is later.
    pub fn extended(self, now_us: i64, lease_us: i64) -> Lease {
        Lease { until: self.until.max(now_us.saturating_add(lease_us)), ..self }
    }

    /// Whether it has not run out at that moment.
    pub fn runs_at(&self, moment: i64) -> bool {
        self.until > moment
    }
}

/// A token that no former lease of the request had: higher than the former one, and the time in microseconds. The time
/// sees to it that a token does not come again where the former lease is lost, in a crash or a restore.
fn next_token(former: i64, now_us: i64) -> Option<i64> {
    former.checked_add(1).map(|next| now_us.max(next)).filter(|next| *next <= TOKEN_MAX)
}

/// What becomes of a call that completes a request with a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// It has the lease, and goes on.
    Proceed,
    /// It has recorded the outcome before, and gets the same answer.
    Repeat,
    /// It has no lease any more.
    Superseded,
}

/// Decides about a call with a token, under the request's lock. `recorded_with` is the token of the outcome, if there
/// is an outcome that a lease was recorded with.
pub fn complete(token: i64, lease: Option<&Lease>, recorded_with: Option<i64>) -> Completion {
    if lease.is_some_and(|lease| lease.token == token) {
        Completion::Proceed
    } else if recorded_with == Some(token) {
        Completion::Repeat
    } else {
        Completion::Superseded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_newest_token_completes() {
        let first = Lease::first(1_000, 500);
        let second = first.superseded(2_000, Some(500)).expect("there are higher tokens");
        assert_eq!((first.attempt, second.attempt, second.until), (1, 2, 2_500));
        assert_eq!(complete(second.token, Some(&second), None), Completion::Proceed);
        assert_eq!(complete(first.token, Some(&second), None), Completion::Superseded);
        assert_eq!(complete(first.token, None, Some(first.token)), Completion::Repeat);
        assert_eq!(complete(first.token, None, None), Completion::Superseded);
        assert_eq!(complete(first.token, None, Some(second.token)), Completion::Superseded);
    }

    #[test]
    fn no_token_is_beyond_the_greatest() {
        let after = |token| Lease { token, ..Lease::first(1_000, 500) }.superseded(2_000, None).map(|next| next.token);
        assert_eq!(after(TOKEN_MAX - 1), Some(TOKEN_MAX));
        assert_eq!(after(TOKEN_MAX), None);
        assert_eq!(after(i64::MAX), None);
        assert_eq!(TOKEN_MAX as f64 as i64 + 1, 1 << 53);
    }

    #[test]
    fn an_extension_never_shortens() {
        let lease = Lease::first(1_000, 500);
        assert_eq!(lease.extended(1_100, 100), lease);
        assert_eq!(lease.extended(1_400, 200).until, 1_600);
        assert!(lease.runs_at(1_499) && !lease.runs_at(1_500));
    }

    proptest! {
        #[test]
        fn tokens_rise_even_if_the_clock_does_not(moments in prop::collection::vec(0i64..50, 2..20)) {
            let mut lease = Lease::first(moments[0], 5);
            for now_us in &moments[1..] {
                let next = lease.superseded(*now_us, Some(5)).expect("there are higher tokens");
                prop_assert!(next.token > lease.token && next.token >= *now_us);
                lease = next;
            }
        }
    }
}
