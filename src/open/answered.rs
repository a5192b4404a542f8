//! What begin has answered in this transaction where the request was not the caller's to execute. Only a
//! message needs it: that of a step request follows all the same, in a program that did not look at the
//! status. So the newest few are enough.

use crate::domain::identity::Digest;
use crate::domain::outcome::Answered;
use std::cell::RefCell;

/// So many are remembered.
const REMEMBERED: usize = 8;

/// LockAndNumber request that was: what is locked for it, and its first number, request those of one slot or line
/// have besides.
pub type LockAndNumber = (Digest, i64);

thread_local! {
    static NEWEST: RefCell<Vec<(LockAndNumber, Answered)>> = const { RefCell::new(Vec::new()) };
}

/// Notes an answer.
pub fn note(request: LockAndNumber, answered: Answered) {
    NEWEST.with_borrow_mut(|newest| {
        if newest.len() == REMEMBERED {
            newest.remove(0);
        }
        newest.push((request, answered));
    });
}

/// A later begin was answered with `started`.
pub fn take_back(request: LockAndNumber) {
    NEWEST.with_borrow_mut(|newest| {
        if !newest.is_empty() {
            newest.retain(|(other, _)| *other != request);
        }
    });
}

/// The newest answer for a request.
pub fn to(request: LockAndNumber) -> Option<Answered> {
    NEWEST.with_borrow(|newest| newest.iter().rev().find(|(other, _)| *other == request).map(|(_, answered)| *answered))
}

/// At the end of the transaction.
pub fn clear() {
    NEWEST.with_borrow_mut(Vec::clear);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Class;

    const DONE: Answered = Answered::Done(Class::Succeeded);

    #[test]
    fn the_newest_answers_are_remembered_and_the_last_one_counts() {
        let request = |number| (Digest([7; 16]), number);
        for number in 1..=20 {
            note(request(number), DONE);
        }
        assert_eq!((to(request(12)), to(request(13))), (None, Some(DONE)));
        note(request(20), Answered::InProgress);
        assert_eq!(to(request(20)), Some(Answered::InProgress));
        take_back(request(20));
        assert_eq!(to(request(20)), None);
        clear();
        assert_eq!(to(request(19)), None);
    }
}
