//! The pace of the ring: how long a segment is kept before it is looked through, and whether what still
//! lives in it then is moved out or waited for. The pace follows most of what was recorded, whatever the
//! sessions were promised; nothing is lost by a pace that is wrong, since what lives is moved.

use super::limits::KEEP_SLACK_US;

/// The share of a segment's outcomes that may outlive it: one in so many.
pub const FEW: i64 = 8;

/// What a look at some pages of a segment tells, the numbers being those of the whole segment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// How many outcomes there are, about.
    pub rows: i64,
    /// How many of them live, about.
    pub living: i64,
    /// When no more than one in [`FEW`] will.
    pub few_live_at: i64,
    /// The ttl that no more than one in [`FEW`] exceed.
    pub ttl_us: i64,
}

impl Sample {
    /// How long a segment of such outcomes is kept once closed; `None` where there are none to tell by.
    pub fn keep_us(&self) -> Option<i64> {
        (self.rows > 0).then(|| self.ttl_us.max(0).saturating_add(KEEP_SLACK_US))
    }

    /// Whether what lives is few enough to be moved: so few that one transaction moves them, or one in
    /// [`FEW`] of all that would be kept for nothing meanwhile. That is the segment itself, of `pages` pages,
    /// and what others record in the current one (`waiting` pages) while its turn has to wait for this one.
    /// So what lives long keeps no more than [`FEW`] times its own space from being given back.
    pub fn is_few(&self, pages: u32, waiting: u32, at_once: usize) -> bool {
        let kept = i128::from(self.rows) * (i128::from(pages) + i128::from(waiting));
        let lives = i128::from(self.living) * i128::from(FEW) * i128::from(pages);
        self.living <= i64::try_from(at_once).unwrap_or(i64::MAX) || lives <= kept
    }
}

/// So old a segment is before it is first looked at.
const FIRST_LOOK_US: i64 = 60_000_000;

/// Whether it is time to look at a segment again that has been in its state since then: each time it is a
/// quarter older. So what the last look said is never much older than a fifth of the segment's age, and the
/// number of looks grows with the logarithm of it.
pub fn is_time_to_look(since: i64, looked_at: Option<i64>, now: i64) -> bool {
    let age = |at: i64| i128::from(at) - i128::from(since);
    let at_last = looked_at.map_or(0, age);
    age(now) >= i128::from(FIRST_LOOK_US) && age(now) * 4 >= at_last * 5
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    fn living(living: i64) -> Sample {
        Sample { rows: 8_000, living, few_live_at: 0, ttl_us: HOUR }
    }

    #[test]
    fn an_eighth_is_few_and_so_is_what_one_transaction_moves() {
        assert!(living(1_000).is_few(100, 0, 0));
        assert!(!living(1_001).is_few(100, 0, 0));
        assert!(living(1_001).is_few(100, 0, 1_001));
        assert!(living(8_000).is_few(100, 0, 8_000));
    }

    #[test]
    fn what_others_have_to_keep_meanwhile_counts() {
        // All of it lives; then others have recorded seven times as much.
        assert!(!living(8_000).is_few(100, 699, 0));
        assert!(living(8_000).is_few(100, 700, 0));
    }

    #[test]
    fn keep_is_that_of_most_and_a_little() {
        assert_eq!(living(0).keep_us(), Some(HOUR + KEEP_SLACK_US));
        assert_eq!(Sample::default().keep_us(), None);
        assert_eq!(Sample { ttl_us: i64::MAX, ..living(0) }.keep_us(), Some(i64::MAX));
    }

    #[test]
    fn looks_become_rare() {
        assert!(!is_time_to_look(0, None, FIRST_LOOK_US - 1));
        assert!(is_time_to_look(0, None, FIRST_LOOK_US));
        let (mut looked_at, mut looks) = (None, 0);
        // A visit each ten seconds of seven days.
        for now in (0..7 * 24 * HOUR).step_by(10_000_000) {
            if is_time_to_look(0, looked_at, now) {
                looked_at = Some(now);
                looks += 1;
            }
        }
        assert!((20..50).contains(&looks), "{looks}");
        // A clock that was set back.
        assert!(!is_time_to_look(100 * HOUR, None, HOUR));
        assert!(!is_time_to_look(0, Some(100 * HOUR), 2 * HOUR));
    }
}
