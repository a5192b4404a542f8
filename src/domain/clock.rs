//! Whether the wall clock was set: it is held against a clock that nobody sets.

/// A jump of the wall clock counts from here on, in microseconds.
const LEAST_US: i64 = 10_000_000;

/// How fast a clock may be corrected without a jump: less than a thousandth of the time that passes. What keeps clocks
/// right (NTP) slews them by half of that at most.
const SLEW: i64 = 1_000;

/// By how much the wall clock has jumped while `wall_us` passed by it and `steady_us` passed in truth. Positive: it was
/// set forward. `None`: it has not jumped.
pub fn jump_us(wall_us: i64, steady_us: i64) -> Option<i64> {
    let by_us = wall_us.saturating_sub(steady_us);
    (by_us.saturating_abs() > LEAST_US.max(steady_us / SLEW)).then_some(by_us)
}

#[cfg(test)]
mod tests {
    use super::jump_us;

    const S: i64 = 1_000_000;

    #[test]
    fn a_clock_that_was_set_has_jumped() {
        assert_eq!(jump_us(3610 * S, 10 * S), Some(3600 * S));
        assert_eq!(jump_us(-3590 * S, 10 * S), Some(-3600 * S));
        assert_eq!(jump_us(i64::MIN, i64::MAX), Some(i64::MIN));
    }

    #[test]
    fn a_clock_that_is_corrected_slowly_has_not() {
        assert_eq!(jump_us(10 * S, 10 * S), None);
        assert_eq!(jump_us(15 * S, 10 * S), None);
        assert_eq!(jump_us(5 * S, 10 * S), None);
        // a day between two looks, half a thousandth off
        assert_eq!(jump_us(86_443 * S, 86_400 * S), None);
        assert_eq!(jump_us(86_500 * S, 86_400 * S), Some(100 * S));
    }
}
