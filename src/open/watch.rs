//! Who is told what happens to the list: shared memory, where others see it. Tests are told instead.

use super::entry::RequestKey;
use crate::domain::identity::Digest;
use crate::model::Session;
use crate::monitor::in_flight::{self, Place, State};

/// Is told of each request on the list, in the order in which the list changes.
pub trait Watch: Default {
    /// A request was added. Gives the place by which the watcher knows it.
    fn add(&mut self, session: &Session, key: RequestKey<'_>, lock: &Digest, since: i64) -> Place;
    /// Its state has changed.
    fn note(&mut self, place: Place, state: State);
    /// The request that was added last was taken away.
    fn take_away(&mut self, place: Place);
    /// The list is empty.
    fn clear(&mut self);
}

/// The slot of this backend in shared memory.
#[derive(Default)]
pub struct Shown;

impl Watch for Shown {
    fn add(&mut self, session: &Session, key: RequestKey<'_>, lock: &Digest, since: i64) -> Place {
        in_flight::add(session, key.stream, key.request, lock, since)
    }

    fn note(&mut self, place: Place, state: State) {
        in_flight::note(place, state);
    }

    fn take_away(&mut self, place: Place) {
        in_flight::take_away(place);
    }

    fn clear(&mut self) {
        in_flight::clear();
    }
}
