//! Numbered requests: whether a number is to be executed, replayed or refused.
//!
//! A stream keeps as many replies as the window of its session is wide, each in a slot. Two things decide about a
//! number: the replies in the slots, and the mark, up to which all numbers are acknowledged (answered or given up).

/// The order in which a session's numbers may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Order {
    /// In any order within the window. A request is one number, and its slot is the number modulo the window. So
    /// numbers that share a slot are a window apart, and each of them needs the one a window before it to be done or
    /// acknowledged.
    Any = b'a',
    /// One after the other, from 1. A request may be a range of numbers. Its reply goes to a free slot, or to the slot
    /// of the oldest reply.
    Strict = b's',
}

impl Order {
    /// The letter in the column `ordering`.
    pub fn letter(self) -> u8 {
        self as u8
    }

    /// What a letter in the column `ordering` stands for.
    pub fn of_letter(letter: u8) -> Option<Order> {
        [Order::Any, Order::Strict].into_iter().find(|order| order.letter() == letter)
    }
}

/// The numbers of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first.
    pub first: i64,
    /// The last, which mostly is the first itself.
    pub last: i64,
}

impl Range {
    /// Whether they have a number in common.
    pub fn meets(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A request whose reply is kept in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its numbers.
    pub range: Range,
    /// The slot of its reply.
    pub slot: i32,
    /// Whether its answer is kept. If not, only the fact that it was done is kept.
    pub answers: bool,
    /// Whether the transaction's snapshot sees the reply.
    pub visible: bool,
}

/// The mark: all numbers up to it, itself included, are answered or given up. It is 0 where the client has said
/// nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Acked {
    /// The mark that is stored.
    pub stored: i64,
    /// Whether the transaction's snapshot sees the stored mark.
    pub visible: bool,
    /// The mark that came with the request itself.
    pub with_request: i64,
}

impl Acked {
    /// The mark that counts: the greater of the two.
    pub fn upto(&self) -> i64 {
        self.stored.max(self.with_request)
    }

    /// Whether a mark that the transaction may rely on covers `number`: the one that came with the request, or a stored
    /// one that the snapshot sees. `number` is not above [`Acked::upto`].
    fn surely(&self, number: i64) -> bool {
        number <= self.with_request || self.visible
    }
}

/// Where a request stands in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It was done, and its answer is kept. The number is the index of its reply in the list of kept requests.
    Kept(usize),
    /// It is discarded: it was done or skipped, and its answer is no longer kept.
    Discarded,
    /// It may be executed now; its reply goes to this slot.
    Next(i32),
    /// It comes too early. This number, which has to come before it, is missing.
    Ahead(i64),
    /// It shares numbers with this range, which was done, given up or begun before, without being the same range.
    Overlaps(Range),
}

impl Place {
    /// Whether a request here was done or skipped.
    pub fn is_over(self) -> bool {
        matches!(self, Place::Kept(_) | Place::Discarded)
    }
}

/// A place, and whether the transaction's snapshot sees all rows that the place rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Where the request stands.
    pub place: Place,
    /// Whether the snapshot sees all those rows.
    pub visible: bool,
}

/// The slot of a number, under [`Order::Any`].
pub fn slot(number: i64, window: i32) -> i32 {
    (number % i64::from(window)) as i32
}

/// For each slot that has a number above `above` and up to `upto`, the slot and its greatest such number. In the order
/// of the slots.
pub fn newest_of_slots(above: i64, upto: i64, window: i32) -> Vec<(i32, i64)> {
    let first = upto.saturating_sub(i64::from(window)).max(above) + 1;
    let mut newest: Vec<_> = (first..=upto).map(|number| (slot(number, window), number)).collect();
    newest.sort_unstable();
    newest
}

/// Places a request in its stream. `kept` is what its slot keeps under [`Order::Any`], and what its whole stream keeps
/// under [`Order::Strict`].
pub fn place(order: Order, window: i32, acked: Acked, kept: &[Kept], asked: Range) -> Placed {
    match order {
        Order::Any => place_in_slot(window, acked, kept.first(), asked.first),
        Order::Strict => place_in_line(window, acked, kept, asked),
    }
}

fn place_in_slot(window: i32, acked: Acked, kept: Option<&Kept>, number: i64) -> Placed {
    let placed = |place, visible| Placed { place, visible };
    // A number up to the mark was answered or given up, whatever its slot still keeps.
    if number <= acked.upto() {
        return placed(Place::Discarded, acked.surely(number));
    }
    match kept {
        Some(kept) if kept.range.first == number && kept.answers => return placed(Place::Kept(0), kept.visible),
        Some(kept) if kept.range.first >= number => return placed(Place::Discarded, kept.visible),
        _ => {}
    }
    let next = Place::Next(slot(number, window));
    let before = number - i64::from(window);
    match kept {
        _ if before < 1 || before <= acked.with_request => placed(next, true),
        Some(kept) if kept.range.first == before => placed(next, kept.visible),
        _ if before <= acked.stored => placed(next, acked.visible),
        _ => placed(Place::Ahead(before), true),
    }
}

fn place_in_line(window: i32, acked: Acked, kept: &[Kept], asked: Range) -> Placed {
    let placed = |place, visible| Placed { place, visible };
    if asked.last <= acked.upto() {
        return placed(Place::Discarded, acked.surely(asked.last));
    }
    if let Some(at) = kept.iter().position(|kept| kept.range == asked) {
        let place = if kept[at].answers { Place::Kept(at) } else { Place::Discarded };
        return placed(place, kept[at].visible);
    }
    let newest = kept.iter().max_by_key(|kept| kept.range.last);
    let (accepted, visible) = match newest {
        Some(newest) if newest.range.last >= acked.upto() => (newest.range.last, newest.visible),
        _ => (acked.upto(), acked.surely(acked.upto())),
    };
    let (next, visible) = (accepted + 1, visible || accepted == 0);
    if asked.first == next {
        let oldest = kept.iter().min_by_key(|kept| kept.range.last);
        let slot = match oldest {
            Some(oldest) if kept.len() >= window as usize => oldest.slot,
            // Slots are filled in turn from 0, so the number of kept replies is the first free slot.
            _ => kept.len() as i32,
        };
        return placed(Place::Next(slot), visible);
    }
    if asked.first > next {
        return placed(Place::Ahead(next), visible);
    }
    match kept.iter().filter(|kept| kept.range.meets(&asked)).min_by_key(|kept| kept.range.first) {
        Some(kept) => placed(Place::Overlaps(kept.range), kept.visible),
        None if asked.last >= next => placed(Place::Overlaps(Range { first: 1, last: accepted }), visible),
        None => placed(Place::Discarded, visible),
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

    const NOTHING: Acked = Acked { stored: 0, visible: true, with_request: 0 };

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
        assert_eq!(any(Acked { with_request: 6, ..NOTHING }, None, 11), Place::Next(1));
    }

    #[test]
    fn any_recognises_what_was_done_or_is_discarded() {
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
        assert!(at(Acked { with_request: 1, ..NOTHING }, Some(unseen), 6));
        assert!(!at(Acked { stored: 1, visible: false, with_request: 0 }, None, 6));
        assert!(!at(Acked { stored: 1, visible: false, with_request: 0 }, None, 1));
        assert!(at(Acked { stored: 1, visible: false, with_request: 0 }, None, 2));
        let line = |acked, kept: &[Kept], number| place(Order::Strict, 5, acked, kept, one(number)).visible;
        assert!(line(Acked::default(), &[], 1));
        assert!(!line(NOTHING, &[unseen], 2));
        assert!(!line(Acked { stored: 3, visible: false, with_request: 0 }, &[], 4));
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

    /// An action of a client.
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
        /// Compares the slots with a model that remembers everything. No number is ever executed twice. A number counts
        /// as discarded only if it was done or acknowledged.
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
