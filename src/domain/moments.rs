//! When something happened: the last moments of it, in a ring.

/// The last `N` moments at which something happened, each with the number of what it happened to.
#[derive(Clone, Copy)]
pub struct Moments<const N: usize> {
    /// (0, 0) is a free place.
    noted: [(u32, i64); N],
    /// Where the next moment goes.
    next: usize,
}

impl<const N: usize> Moments<N> {
    /// Nothing has happened yet.
    pub const NONE: Moments<N> = Moments { noted: [(0, 0); N], next: 0 };

    /// Notes that it happened now. If the ring is full, the oldest moment is forgotten.
    pub fn note(&mut self, to: u32, now_us: i64) {
        // The remainder keeps a place in bounds that came from shared memory.
        self.noted[self.next % N] = (to, now_us);
        self.next = (self.next + 1) % N;
    }

    /// How often it happened to `to`, after `after_us` and up to `now_us`, as far as the ring goes back. What a clock
    /// that was ahead has noted does not count.
    pub fn count(&self, to: u32, after_us: i64, now_us: i64) -> usize {
        self.noted.iter().filter(|(noted, at)| *noted == to && *at > after_us && *at <= now_us && *at != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::Moments;

    #[test]
    fn what_happened_in_time_to_the_one_in_question_counts() {
        let mut moments = Moments::<4>::NONE;
        assert_eq!(moments.count(0, -10, 100), 0);
        for (to, at) in [(1, 10), (2, 20), (1, 30)] {
            moments.note(to, at);
        }
        assert_eq!(moments.count(1, 9, 100), 2);
        assert_eq!(moments.count(1, 10, 100), 1);
        assert_eq!(moments.count(2, 0, 100), 1);
        assert_eq!(moments.count(3, 0, 100), 0);
    }

    #[test]
    fn what_is_noted_for_the_future_does_not_count() {
        let mut moments = Moments::<4>::NONE;
        moments.note(1, 200);
        assert_eq!(moments.count(1, 0, 199), 0);
        assert_eq!(moments.count(1, 0, 200), 1);
    }

    #[test]
    fn the_oldest_give_way() {
        let mut moments = Moments::<4>::NONE;
        (1..=6).for_each(|at| moments.note(7, at));
        assert_eq!(moments.count(7, 0, 100), 4);
        assert_eq!(moments.count(7, 2, 100), 4);
        assert_eq!(moments.count(7, 3, 100), 3);
    }
}
