//! The answers of begin in this transaction other than `started`. Only one error text needs them: a program that did
//! not look at the status calls record, checkpoint or release all the same, and is told what begin had answered. So the
//! newest few answers are enough.

use crate::domain::class::Class;
use crate::domain::identity::Digest;
use crate::pg::Own;

/// How many answers are remembered.
const REMEMBERED: usize = 8;

/// Tells which request was answered: the digest that is locked for it, and its first number, by which requests in one
/// lane differ. The number is 0 for a request with a key.
pub type LockAndNumber = (Digest, i64);

static NEWEST: Own<Vec<(LockAndNumber, Option<Class>)>> = Own::new();

/// Remembers an answer: that the request is done, or, `None`, in progress.
pub fn note(request: LockAndNumber, answered: Option<Class>) {
    NEWEST.with(|newest| {
        if newest.len() == REMEMBERED {
            newest.remove(0);
        }
        newest.push((request, answered));
    });
}

/// Forgets the answers for a request, because a later begin was answered with `started`.
pub fn take_back(request: LockAndNumber) {
    NEWEST.with(|newest| newest.retain(|(other, _)| *other != request));
}

/// The newest answer for a request.
pub fn to(request: LockAndNumber) -> Option<Option<Class>> {
    NEWEST.with(|newest| newest.iter().rev().find(|(other, _)| *other == request).map(|(_, answered)| *answered))
}

/// Forgets all answers, at the end of the transaction.
pub fn clear() {
    NEWEST.with(Vec::clear);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Option<Class> = Some(Class::Succeeded);

    #[test]
    fn the_newest_answers_are_remembered_and_the_last_one_counts() {
        let request = |number| (Digest([7; 16]), number);
        for number in 1..=20 {
            note(request(number), DONE);
        }
        assert_eq!((to(request(12)), to(request(13))), (None, Some(DONE)));
        note(request(20), None);
        assert_eq!(to(request(20)), Some(None));
        take_back(request(20));
        assert_eq!(to(request(20)), None);
        clear();
        assert_eq!(to(request(19)), None);
    }
}
