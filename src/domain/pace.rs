//! The pace of the ring. It says how long a segment is kept before it is looked through. It also says whether the
//! outcomes that are still alive then are moved out, or whether the segment waits until they expire. The pace follows
//! the ttl of most outcomes that were recorded, not the ttl of any session. A wrong pace loses nothing, since outcomes
//! that are still alive are moved before the segment is emptied.

use super::limits::KEEP_SLACK_US;

/// One in this many outcomes of a segment may outlive the segment.
pub const LIVING_ONE_IN: i64 = 8;

/// What a look at some pages of a segment tells. The numbers are estimates for the whole segment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// About how many outcomes there are.
    pub rows: i64,
    /// About how many of them are still alive.
    pub living: i64,
    /// From when on no more than one in [`LIVING_ONE_IN`] of them is alive.
    pub few_live_at: i64,
    /// The ttl that no more than one in [`LIVING_ONE_IN`] of them exceeds.
    pub ttl_us: i64,
}

impl Sample {
    /// How long a segment of such outcomes is kept once it is closed; `None` if there are no outcomes to tell by.
    pub fn keep_us(&self) -> Option<i64> {
        (self.rows > 0).then(|| self.ttl_us.max(0).saturating_add(KEEP_SLACK_US))
    }

    /// Whether the living outcomes are few enough to be moved. They are if one transaction can move them, which is
    /// `at_once` at most. They are also few if they fill at most one part in [`LIVING_ONE_IN`] of the
    /// space that stays occupied until they expire. That space is this segment, of `pages` pages. If the ring waits
    /// until it can turn to this segment, it is the current segment too, of `waiting` pages (else 0). So outcomes that
    /// live long hold up no more than [`LIVING_ONE_IN`] times their own space.
    pub fn is_few(&self, pages: u32, waiting: u32, at_once: usize) -> bool {
        // (living / rows) * pages * LIVING_ONE_IN <= pages + waiting, without the division.
        let occupied = i128::from(self.rows) * (i128::from(pages) + i128::from(waiting));
        let living = i128::from(self.living) * i128::from(LIVING_ONE_IN) * i128::from(pages);
        self.living <= i64::try_from(at_once).unwrap_or(i64::MAX) || living <= occupied
    }
}

/// How old a segment is, at least, when it is first looked at.
const FIRST_LOOK_US: i64 = 60_000_000;

/// Whether it is time to look again at a segment that has been in its state since `since`. It is
/// whenever the segment's age has grown by a quarter since the last look. So the last look is never much longer ago than a fifth of the segment's age, and
/// the number of looks grows with the logarithm of that age.
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
        // All outcomes are alive, and others have recorded seven times as much meanwhile.
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
