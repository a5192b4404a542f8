//! The timeout of a client session: when a sign of life is due, and when the session has been silent for too long.
//! What follows from that, and when a session is at work all the same, stands in `sessions/liveness.rs`.

use super::limits::SIGNS_A_TIMEOUT;

/// Whether a new sign of life is to be written: the last one written is at least an eighth of the timeout old.
pub fn sign_is_due(last_seen: i64, timeout_us: i64, now_us: i64) -> bool {
    now_us.saturating_sub(last_seen) >= timeout_us / SIGNS_A_TIMEOUT
}

/// When a session's clock runs out. A client gives a sign of life with each transaction, but not every sign is written:
/// the last sign given may be later than `last_seen`, the last sign written, by up to an eighth of the timeout. So an
/// eighth is added. The clock runs out between one timeout and nine eighths of it after the last sign given.
pub fn runs_out_at(last_seen: i64, timeout_us: i64) -> i64 {
    last_seen.saturating_add(timeout_us).saturating_add(timeout_us / SIGNS_A_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whenever signs are given, the clock runs out between one timeout and 9/8 of it after the last of them.
        #[test]
        fn not_before_the_timeout_an_eighth_late_at_most(
            timeout_us in 8i64..10_000, pauses in prop::collection::vec(0i64..2_000, 0..50),
        ) {
            let (mut now, mut written) = (0, 0);
            for pause in pauses {
                now += pause;
                if runs_out_at(written, timeout_us) <= now {
                    return Ok(());
                }
                if sign_is_due(written, timeout_us, now) {
                    written = now;
                }
                let ends = runs_out_at(written, timeout_us);
                prop_assert!(now + timeout_us <= ends && ends <= now + timeout_us + timeout_us / 8);
            }
        }
    }
}
