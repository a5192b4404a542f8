//! The pace of the ring: for how long a segment takes outcomes, and which. Both follow the ttl of most outcomes that were
//! recorded, not the ttl of any session. A wrong pace loses nothing: an outcome that expires after the segment's end is
//! not recorded in it.

use super::limits::{EXPIRY_GRACE_US, KEEP_SLACK_US};

/// What an outcome costs that outlives the segments, against the space that it takes for as long as it lives: it is deleted
/// by itself.
const LONG_COSTS: f64 = 4.0;

/// For how long an outcome in a segment takes space, against the time that the segment is kept.
const KEPT_FOR: f64 = 1.5;

/// The ttl up to which outcomes are to go to segments, as a sample of outcomes tells; `None`: it has none. The sample has
/// pairs of a ttl and the number of outcomes that have it, in the order of the ttls.
///
/// It is the one that costs least: a longer one keeps all outcomes of a segment for longer, a shorter one lets more of them
/// outlive the segments. So a few that live long, or many that live very long, change nothing for the others. Where most
/// outlive what the DBA allows, it is what most live for.
pub fn ttl_us(sample: &[(i64, f64)], retention_us: i64) -> Option<i64> {
    let all: f64 = sample.iter().map(|(_, outcomes)| outcomes).sum();
    let mut above: f64 = sample.iter().map(|(ttl, outcomes)| *ttl as f64 * outcomes).sum();
    let (mut below, mut median, mut cheapest) = (0.0, None, (f64::INFINITY, None));
    for (ttl, outcomes) in sample {
        below += outcomes;
        above -= *ttl as f64 * outcomes;
        if below * 2.0 >= all {
            median = median.or(Some(*ttl));
        }
        let costs = KEPT_FOR * *ttl as f64 * below + LONG_COSTS * above;
        if *ttl <= retention_us && costs < cheapest.0 {
            cheapest = (costs, Some(*ttl));
        }
    }
    median.filter(|median| *median > retention_us).or(cheapest.1)
}

/// How long a segment would have to be kept for outcomes whose ttl is this at most.
pub fn wanted_us(ttl_us: i64) -> i64 {
    ttl_us.max(0).saturating_add(KEEP_SLACK_US)
}

/// How long it is kept: no longer than the DBA allows, since every outcome in it is kept for as long.
pub fn keep_us(wanted_us: i64, retention_us: i64) -> i64 {
    wanted_us.min(self::wanted_us(retention_us))
}

/// Whether it is time to turn away from the segment that was opened then. A segment takes outcomes for half the time that
/// it is kept. So there are three at once: one takes outcomes, and each of the others is kept.
pub fn is_to_be_turned(opened_at: i64, keep_us: i64, now: i64) -> bool {
    now >= opened_at.saturating_add(keep_us / 2)
}

/// The end of a segment that is opened now: what is recorded until the ring turns is to expire before it. `before_us` tells
/// how long the segment before this one took outcomes, since where the sweep comes rarely the ring turns late.
pub fn end(now: i64, before_us: i64, keep_us: i64) -> i64 {
    now.saturating_add(before_us.clamp(keep_us / 2, keep_us)).saturating_add(keep_us)
}

/// The end that a segment gets which takes outcomes for longer than was foreseen; `None`: its end is late enough.
pub fn later_end(ends_at: i64, keep_us: i64, now: i64) -> Option<i64> {
    let needed = now.saturating_add(keep_us);
    (needed > ends_at).then(|| needed.saturating_add(keep_us / 8))
}

/// Whether a segment that was closed then has an end so late that it is worth a look when the last outcome really expires.
pub fn is_far(ends_at: i64, closed_at: i64, keep_us: i64) -> bool {
    ends_at.saturating_sub(closed_at) > keep_us.saturating_add(keep_us / 4)
}

/// Whether all that is in a segment with this end has expired, long enough ago.
pub fn is_over(ends_at: i64, now: i64) -> bool {
    now >= ends_at.saturating_add(EXPIRY_GRACE_US)
}

/// How old a segment is, at least, when it is first looked at.
const FIRST_LOOK_US: i64 = 60_000_000;

/// Whether it is time to look again at a segment that was opened at `since`. It is whenever the segment's age has grown by
/// a quarter since the last look. So the last look is never much longer ago than a fifth of the segment's age, and
/// the number of looks grows with the logarithm of that age.
pub fn is_time_to_look(since: i64, looked_at: Option<i64>, now: i64) -> bool {
    let age = |at: i64| i128::from(at) - i128::from(since);
    let at_last = looked_at.map_or(0, age);
    age(now) >= i128::from(FIRST_LOOK_US) && age(now) * 4 >= at_last * 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000_000;
    const KEEP: i64 = HOUR + KEEP_SLACK_US;

    #[test]
    fn keep_is_that_of_most_and_a_little_and_never_more_than_the_dba_allows() {
        assert_eq!(keep_us(wanted_us(HOUR), 24 * HOUR), KEEP);
        assert_eq!(keep_us(wanted_us(24 * HOUR), HOUR), KEEP);
        assert_eq!(keep_us(i64::MAX, HOUR), KEEP);
        assert_eq!(wanted_us(i64::MAX), i64::MAX);
        assert_eq!(wanted_us(-1), KEEP_SLACK_US);
    }

    #[test]
    fn those_that_live_long_change_nothing_for_the_others() {
        let of = |sample: &[(i64, f64)]| ttl_us(sample, 1000 * HOUR);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(HOUR, 1.0)]), Some(HOUR));
        assert_eq!(of(&[(HOUR, 99.0), (50 * HOUR, 1.0)]), Some(HOUR));
        assert_eq!(of(&[(HOUR, 3.0), (50 * HOUR, 1.0)]), Some(HOUR));
        assert_eq!(of(&[(HOUR, 7.0), (2 * HOUR, 1.0)]), Some(HOUR));
        // Where many live a little longer, it is cheaper to keep all for so long.
        assert_eq!(of(&[(HOUR, 3.0), (2 * HOUR, 1.0)]), Some(2 * HOUR));
        assert_eq!(of(&[(HOUR, 1.0), (50 * HOUR, 1.0)]), Some(50 * HOUR));
    }

    #[test]
    fn nobody_lives_in_a_segment_for_longer_than_the_dba_allows() {
        let of = |sample: &[(i64, f64)]| ttl_us(sample, 10 * HOUR);
        assert_eq!(of(&[(HOUR, 1.0), (50 * HOUR, 0.9)]), Some(HOUR));
        assert_eq!(of(&[(HOUR, 5.0), (50 * HOUR, 2.0), (60 * HOUR, 4.0)]), Some(50 * HOUR));
        assert_eq!(of(&[(50 * HOUR, 1.0), (60 * HOUR, 3.0)]), Some(60 * HOUR));
    }

    #[test]
    fn a_sweep_that_comes_late_is_reckoned_with() {
        let last = |before| end(0, before, KEEP);
        assert_eq!(last(0), KEEP / 2 + KEEP);
        assert_eq!(last(KEEP * 2 / 3), KEEP * 2 / 3 + KEEP);
        assert_eq!(last(30 * 24 * HOUR), 2 * KEEP);
        assert_eq!(later_end(last(0), KEEP, KEEP / 2), None);
        assert!(later_end(last(0), KEEP, KEEP / 2 + 1).is_some_and(|later| later > last(0)));
        assert!(!is_far(last(0), KEEP / 2, KEEP));
        assert!(is_far(last(KEEP), KEEP / 2, KEEP));
    }

    proptest! {
        /// Whatever the ttls and however late the ring turns: what most record is taken until the ring is to turn; what is
        /// taken has expired when the segment is over; and the segment is over in time, by its end or by a look for it.
        #[test]
        fn a_segment_takes_what_most_record_and_is_kept_no_longer_than_that(
            opened in 0..1_000_000 * HOUR,
            ttl in 1_000_000..3650 * 24 * HOUR,
            retention in 1_000_000..3650 * 24 * HOUR,
            before in 0..3650 * 24 * HOUR,
            open_for in 0..3650 * 24 * HOUR,
        ) {
            let keep = keep_us(wanted_us(ttl), retention);
            let ends_at = end(opened, before, keep);
            let due = opened + keep / 2;
            prop_assert!(is_to_be_turned(opened, keep, due) && !is_to_be_turned(opened, keep, due - 1));
            prop_assert!(due + ttl.min(retention) <= ends_at);
            prop_assert!(!is_over(ends_at, ends_at));
            // Each sweep that finds it still open moves its end on, and never back.
            let closed_at = due + open_for;
            let ends_at = later_end(ends_at, keep, closed_at).inspect(|later| assert!(*later > ends_at)).unwrap_or(ends_at);
            prop_assert!(closed_at + ttl.min(retention) <= ends_at);
            prop_assert!(is_far(ends_at, closed_at, keep) || is_over(ends_at, closed_at + keep + keep / 4 + EXPIRY_GRACE_US));
        }
    }

    #[test]
    fn looks_become_rare() {
        assert!(!is_time_to_look(0, None, FIRST_LOOK_US - 1));
        assert!(is_time_to_look(0, None, FIRST_LOOK_US));
        let (mut looked_at, mut looks) = (None, 0);
        // A visit every ten seconds, for seven days.
        for now in (0..7 * 24 * HOUR).step_by(10_000_000) {
            if is_time_to_look(0, looked_at, now) {
                looked_at = Some(now);
                looks += 1;
            }
        }
        assert!((20..50).contains(&looks), "{looks}");
        // The clock was set back.
        assert!(!is_time_to_look(100 * HOUR, None, HOUR));
        assert!(!is_time_to_look(0, Some(100 * HOUR), 2 * HOUR));
    }
}
