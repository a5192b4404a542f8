//! Numbered requests: whether a number is to be executed, replayed or refused.
//!
//! A stream keeps as many replies as the window of its session is wide, each in a slot. Two things decide about
//! a number: what the slots hold, and up to which number the client has acknowledged its answers.

/// In which order a session's numbers may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// In any, within the window. A request is one number, its slot the number modulo the window: so
    /// two that share a slot are a window apart, and the later one waits for the earlier.
    Any,
    /// One after the other, from 1. A request may be a range of numbers; its slot is that of the oldest
    /// request kept.
    Strict,
}

impl Order {
    /// The letter in the column `ordering`.
    pub fn letter(self) -> u8 {
        match self {
            Order::Any => b'a',
            Order::Strict => b's',
        }
    }

    /// What a letter in the column `ordering` stands for.
    pub fn of_letter(letter: u8) -> Option<Order> {
        match letter {
            b'a' => Some(Order::Any),
            b's' => Some(Order::Strict),
            _ => None,
        }
    }
}

/// The numbers of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first.
    pub first: i64,
    /// The last; the first itself, mostly.
    pub last: i64,
}

impl Range {
    fn meets(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A request that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its numbers.
    pub range: Range,
    /// Where.
    pub slot: i32,
    /// Its response is there; else only the fact that it was done.
    pub answers: bool,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
}

/// The number up to which all numbers, itself included, are answered or given up; 0 where the client has said
/// nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Acked {
    /// As stored.
    pub stored: i64,
    /// Whether the transaction's snapshot sees that.
    pub visible: bool,
    /// As said with the request itself.
    pub said: i64,
}

impl Acked {
    /// The greater of the two, which counts.
    pub fn upto(&self) -> i64 {
        self.stored.max(self.said)
    }

    /// Whether it is known that `number` is acked without a row that the snapshot does not see.
    fn surely(&self, number: i64) -> bool {
        number <= self.said || self.visible
    }
}

/// Where a request stands in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It was done. The number is the index of its reply in what is kept.
    Kept(usize),
    /// It was done or skipped, and is no longer kept.
    Discarded,
    /// It may be executed now; its reply goes to this slot.
    Next(i32),
    /// It comes too early: this number, which it builds on, is missing.
    Ahead(i64),
    /// It overlaps a request that was done, or that was given up, without being the same.
    Overlaps(Range),
}

/// A place, and whether the transaction's snapshot sees all rows that the place rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Where the request stands.
    pub place: Place,
    /// See above.
    pub visible: bool,
}

/// The slot of a number where the order is [`Order::Any`].
pub fn slot(number: i64, window: i32) -> i32 {
    (number % i64::from(window)) as i32
}

/// The greatest number of each slot among those above `above` up to `upto`, in the order of the slots.
pub fn newest_of_slots(above: i64, upto: i64, window: i32) -> Vec<(i32, i64)> {
    let first = upto.saturating_sub(i64::from(window)).max(above) + 1;
    let mut newest: Vec<_> = (first..=upto).map(|number| (slot(number, window), number)).collect();
    newest.sort_unstable();
    newest
}

/// Places a request. `kept` is what is kept in its slot ([`Order::Any`]) or in its stream.
pub fn place(order: Order, window: i32, acked: Acked, kept: &[Kept], asked: Range) -> Placed {
    match order {
        Order::Any => place_in_slot(window, acked, kept.first(), asked.first),
        Order::Strict => place_in_line(window, acked, kept, asked),
    }
}

fn place_in_slot(window: i32, acked: Acked, kept: Option<&Kept>, number: i64) -> Placed {
    let found = |place, visible| Placed { place, visible };
    // An acked number has had its answer, or gave up on it, whatever is still there.
    if number <= acked.upto() {
        return found(Place::Discarded, acked.surely(number));
    }
    match kept {
        Some(kept) if kept.range.first == number && kept.answers => return found(Place::Kept(0), kept.visible),
        Some(kept) if kept.range.first >= number => return found(Place::Discarded, kept.visible),
        _ => {}
    }
    let next = Place::Next(slot(number, window));
    let before = number - i64::from(window);
    match kept {
        _ if before < 1 || before <= acked.said => found(next, true),
        Some(kept) if kept.range.first == before => found(next, kept.visible),
        _ if before <= acked.stored => found(next, acked.visible),
        _ => found(Place::Ahead(before), true),
    }
}

fn place_in_line(window: i32, acked: Acked, kept: &[Kept], asked: Range) -> Placed {
    let found = |place, visible| Placed { place, visible };
    if asked.last <= acked.upto() {
        return found(Place::Discarded, acked.surely(asked.last));
    }
    if let Some(at) = kept.iter().position(|kept| kept.range == asked) {
        let place = if kept[at].answers { Place::Kept(at) } else { Place::Discarded };
        return found(place, kept[at].visible);
    }
    let newest = kept.iter().max_by_key(|kept| kept.range.last);
    let (accepted, visible) = match newest {
        Some(newest) if newest.range.last >= acked.upto() => (newest.range.last, newest.visible),
        _ => (acked.upto(), acked.surely(acked.upto())),
    };
    let next = accepted + 1;
    if asked.first == next {
        let oldest = kept.iter().min_by_key(|kept| kept.range.last);
        let slot = match oldest {
            Some(oldest) if kept.len() >= window as usize => oldest.slot,
            // Slots are taken in turn, so as many as are kept are taken.
            _ => kept.len() as i32,
        };
        return found(Place::Next(slot), visible || accepted == 0);
    }
    let visible = visible || accepted == 0;
    if asked.first > next {
        return found(Place::Ahead(next), visible);
    }
    match kept.iter().filter(|kept| kept.range.meets(&asked)).min_by_key(|kept| kept.range.first) {
        Some(kept) => found(Place::Overlaps(kept.range), kept.visible),
        None if asked.last >= next => found(Place::Overlaps(Range { first: 1, last: accepted }), visible),
        None => found(Place::Discarded, visible),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn one(number: i64) -> Range {
        Range { first: number, last: number }
    }

    fn kept(first: i64, last: i64, slot: i32) -> Kept {
        Kept { range: Range { first, last }, slot, answers: true, visible: true }
    }

    const NOTHING: Acked = Acked { stored: 0, visible: true, said: 0 };

    fn any(acked: Acked, kept: Option<Kept>, number: i64) -> Place {
        place(Order::Any, 5, acked, kept.as_slice(), one(number)).place
    }

    #[test]
    fn any_within_the_first_window_is_free() {
        for number in 1..=5 {
            assert_eq!(any(NOTHING, None, number), Place::Next(slot(number, 5)));
        }
        assert_eq!(any(NOTHING, None, 6), Place::Ahead(1));
    }

    #[test]
    fn any_builds_on_the_number_a_window_before() {
        assert_eq!(any(NOTHING, Some(kept(1, 1, 1)), 6), Place::Next(1));
        assert_eq!(any(NOTHING, Some(kept(1, 1, 1)), 11), Place::Ahead(6));
        assert_eq!(any(Acked { stored: 6, ..NOTHING }, Some(kept(1, 1, 1)), 11), Place::Next(1));
        assert_eq!(any(Acked { said: 6, ..NOTHING }, None, 11), Place::Next(1));
    }

    #[test]
    fn any_recognises_what_is_past() {
        assert_eq!(any(NOTHING, Some(kept(6, 6, 1)), 6), Place::Kept(0));
        assert_eq!(any(NOTHING, Some(kept(6, 6, 1)), 1), Place::Discarded);
        assert_eq!(any(Acked { stored: 6, ..NOTHING }, Some(kept(6, 6, 1)), 6), Place::Discarded);
        assert_eq!(any(NOTHING, Some(Kept { answers: false, ..kept(6, 6, 1) }), 6), Place::Discarded);
    }

    #[test]
    fn what_rests_on_an_unseen_row_says_so() {
        let unseen = Kept { visible: false, ..kept(1, 1, 1) };
        let at = |acked, kept: Option<Kept>, number| place(Order::Any, 5, acked, kept.as_slice(), one(number)).visible;
        assert!(!at(NOTHING, Some(unseen), 1));
        assert!(!at(NOTHING, Some(unseen), 6));
        assert!(at(Acked { said: 1, ..NOTHING }, Some(unseen), 6));
        assert!(!at(Acked { stored: 1, visible: false, said: 0 }, None, 6));
        assert!(!at(Acked { stored: 1, visible: false, said: 0 }, None, 1));
        assert!(at(Acked { stored: 1, visible: false, said: 0 }, None, 2));
        let line = |acked, kept: &[Kept], number| place(Order::Strict, 5, acked, kept, one(number)).visible;
        assert!(line(Acked::default(), &[], 1));
        assert!(!line(NOTHING, &[unseen], 2));
        assert!(!line(Acked { stored: 3, visible: false, said: 0 }, &[], 4));
    }

    #[test]
    fn strict_takes_ranges_one_after_the_other() {
        let all = [kept(2, 2, 1), kept(3, 3, 2), kept(4, 4, 3), kept(5, 5, 4), kept(6, 8, 0)];
        let at = |first, last| place(Order::Strict, 5, NOTHING, &all, Range { first, last }).place;
        assert_eq!(at(6, 8), Place::Kept(4));
        assert_eq!(at(7, 8), Place::Overlaps(Range { first: 6, last: 8 }));
        assert_eq!(at(8, 9), Place::Overlaps(Range { first: 6, last: 8 }));
        assert_eq!(at(2, 2), Place::Kept(0));
        assert_eq!(at(1, 1), Place::Discarded);
        assert_eq!(at(9, 12), Place::Next(1));
        assert_eq!(at(10, 10), Place::Ahead(9));
        let none = |acked, first, last| place(Order::Strict, 5, acked, &[], Range { first, last }).place;
        assert_eq!(none(NOTHING, 1, 3), Place::Next(0));
        assert_eq!(none(NOTHING, 2, 2), Place::Ahead(1));
        assert_eq!(none(Acked { stored: 4, ..NOTHING }, 5, 5), Place::Next(0));
        assert_eq!(none(Acked { stored: 4, ..NOTHING }, 4, 5), Place::Overlaps(Range { first: 1, last: 4 }));
    }

    proptest! {
        #[test]
        fn each_slot_has_its_newest_number(window in 1i32..8, above in 0i64..30, more in 0i64..30) {
            let mut newest = std::collections::BTreeMap::new();
            for number in above + 1..=above + more {
                newest.insert(slot(number, window), number);
            }
            prop_assert_eq!(newest_of_slots(above, above + more, window), Vec::from_iter(newest));
        }
    }

    /// What a client can do.
    #[derive(Clone, Copy, Debug)]
    enum Action {
        Send(i64),
        Ack(i64),
        Drop(i64),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            6 => (1i64..40).prop_map(Action::Send),
            1 => (0i64..30).prop_map(Action::Ack),
            1 => (1i64..40).prop_map(Action::Drop),
        ]
    }

    proptest! {
        /// The slots hold against a model that remembers everything: no number is ever executed twice,
        /// and a number is refused as past only if it was done or acked, or skipped by its slot.
        #[test]
        fn no_number_is_executed_twice(window in 1i32..8, actions in prop::collection::vec(action(), 1..200)) {
            let mut slots: Vec<Option<Kept>> = vec![None; window as usize];
            let mut done = BTreeSet::new();
            let mut acked = Acked { visible: true, ..Acked::default() };
            for action in actions {
                match action {
                    Action::Ack(upto) => acked.stored = acked.stored.max(upto),
                    Action::Drop(number) => {
                        if let Some(kept) = &mut slots[slot(number, window) as usize] {
                            kept.answers &= kept.range.first != number;
                        }
                    }
                    Action::Send(number) => {
                        let kept = slots[slot(number, window) as usize];
                        let before = number - i64::from(window);
                        match place(Order::Any, window, acked, kept.as_slice(), one(number)).place {
                            Place::Next(to) => {
                                prop_assert!(done.insert(number), "{number} twice");
                                prop_assert!(number > acked.stored);
                                prop_assert!(before < 1 || before <= acked.stored || done.contains(&before));
                                slots[to as usize] = Some(self::kept(number, number, to));
                            }
                            Place::Kept(_) => prop_assert!(done.contains(&number)),
                            Place::Discarded => prop_assert!(done.contains(&number) || number <= acked.stored),
                            Place::Ahead(missing) => {
                                prop_assert_eq!(missing, before);
                                prop_assert!(missing > acked.stored && !done.contains(&missing));
                            }
                            Place::Overlaps(_) => prop_assert!(false, "single numbers do not overlap"),
                        }
                    }
                }
            }
        }

        /// A stream in strict order accepts each number once, in order, whatever ranges are tried.
        #[test]
        fn a_line_has_no_gap_and_no_repeat(window in 1i32..6, tries in prop::collection::vec((1i64..30, 0i64..4), 1..120)) {
            let mut slots: Vec<Kept> = Vec::new();
            let mut accepted: Vec<Range> = Vec::new();
            for (first, more) in tries {
                let asked = Range { first, last: first + more };
                let next = accepted.last().map_or(1, |range| range.last + 1);
                match place(Order::Strict, window, NOTHING, &slots, asked).place {
                    Place::Next(to) => {
                        prop_assert_eq!(first, next);
                        slots.retain(|kept| kept.slot != to);
                        slots.push(kept(asked.first, asked.last, to));
                        accepted.push(asked);
                    }
                    Place::Kept(at) => {
                        prop_assert_eq!(slots[at].range, asked);
                        let newest = &accepted[accepted.len().saturating_sub(window as usize)..];
                        prop_assert!(newest.contains(&asked));
                    }
                    Place::Discarded => prop_assert!(asked.last < next),
                    Place::Ahead(expected) => prop_assert!(expected == next && first > next),
                    Place::Overlaps(_) => prop_assert!(first < next && !slots.iter().any(|kept| kept.range == asked)),
                }
                prop_assert!(slots.len() <= window as usize);
            }
        }
    }
}
