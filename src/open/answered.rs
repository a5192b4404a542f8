//! What begin has answered in this transaction where the request was not the caller's to execute. Only a
//! message needs it: that of a step which follows all the same, in a program that did not look at the
//! status. So the newest few are enough.

use crate::domain::identity::Digest;
use std::cell::RefCell;

/// So many are remembered.
const REMEMBERED: usize = 8;

/// What begin answered other than `started`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// It was done.
    Succeeded,
    /// It had failed for good.
    Failed,
    /// Another transaction holds its claim.
    InProgress,
}

/// Which request that was: what is locked for it, and its first number, which those of one slot or line
/// have besides.
pub type Which = (Digest, i64);

thread_local! {
    static NEWEST: RefCell<Vec<(Which, Answered)>> = const { RefCell::new(Vec::new()) };
}

/// Notes an answer.
pub fn note(which: Which, answered: Answered) {
    NEWEST.with_borrow_mut(|newest| {
        if newest.len() == REMEMBERED {
            newest.remove(0);
        }
        newest.push((which, answered));
    });
}

/// A later begin was answered with `started`.
pub fn take_back(which: Which) {
    NEWEST.with_borrow_mut(|newest| {
        if !newest.is_empty() {
            newest.retain(|(other, _)| *other != which);
        }
    });
}

/// The newest answer for a request.
pub fn to(which: Which) -> Option<Answered> {
    NEWEST.with_borrow(|newest| newest.iter().rev().find(|(other, _)| *other == which).map(|(_, answered)| *answered))
}

/// At the end of the transaction.
pub fn clear() {
    NEWEST.with_borrow_mut(Vec::clear);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answers_are_remembered_and_the_last_one_counts() {
        let which = |number| (Digest([7; 16]), number);
        for number in 1..=20 {
            note(which(number), Answered::Succeeded);
        }
        assert_eq!((to(which(12)), to(which(13))), (None, Some(Answered::Succeeded)));
        note(which(20), Answered::InProgress);
        assert_eq!(to(which(20)), Some(Answered::InProgress));
        take_back(which(20));
        assert_eq!(to(which(20)), None);
        clear();
        assert_eq!(to(which(19)), None);
    }
}
