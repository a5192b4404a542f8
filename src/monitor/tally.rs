//! A tally of counters, and whom it counts for.

use crate::domain::identity::SessionId;
use crate::error::OWN_SQLSTATES;
use crate::model::Session;
use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// A begin or a claim gave the caller the request to execute, from the beginning or from a checkpoint.
    Started,
    /// A begin gave the caller a request that a former holder's lease ran out of.
    TakenOver,
    /// The answer was an outcome that was recorded before.
    Replayed,
    /// An outcome was recorded as succeeded.
    Recorded,
    /// An outcome was recorded as failed.
    Failed,
    /// A request was settled by this call: it is never executed.
    Cancelled,
    /// A request was given up by its holder.
    Released,
    /// The answer was that another holder has the request.
    InProgress,
    /// ID001
    Mismatched,
    /// ID003
    Discarded,
    /// ID005
    Fenced,
    /// ID006
    OutOfSequence,
    /// ID008, or the warning in its place.
    Unrecorded,
    /// A call waited for another holder.
    Waits,
    /// How long such calls waited, in milliseconds.
    WaitMs,
    /// The first of those that count errors: ID001. The others follow it. They count for the whole database, in its tally
    /// for others, since many an error tells of no session that is known here.
    Errors,
}

impl Counter {
    /// How many counters there are.
    pub const COUNT: usize = Counter::Errors as usize + OWN_SQLSTATES;
}

/// Whom a tally counts for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct Key {
    /// The database; 0 in a cell that counts for nobody.
    pub database: u32,
    /// The role whose client sessions it counts for; 0 for a standing session.
    pub role: u32,
    /// The id of a standing session; else zeros.
    pub session: SessionId,
}

impl Key {
    /// The tally of a session in this database.
    pub fn of(session: &Session, database: u32) -> Key {
        let others = Key::of_others(database);
        match session {
            Session::Standing(session) => Key { session: session.id, ..others },
            Session::Client(session) => Key { role: session.owner.to_u32(), ..others },
        }
    }

    /// The tally of a database for what tallies that gave way had counted.
    pub fn of_others(database: u32) -> Key {
        Key { database, ..Key::default() }
    }

    /// Whether it is the tally for what tallies that gave way had counted.
    pub fn is_others(&self) -> bool {
        self.role == 0 && self.session == SessionId::default()
    }
}

/// A tally.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[repr(C)]
pub struct Tally {
    /// Whom it counts for.
    pub key: Key,
    /// Since when it counts, in PostgreSQL's microseconds.
    pub since: i64,
    /// When it was last known to be counting.
    pub used: i64,
    /// The counters, by number.
    pub counts: [u64; Counter::COUNT],
}

impl Tally {
    /// Makes a tally begin at `now_us`. Its key is set.
    pub fn begin(&mut self, now_us: i64) {
        self.since = now_us;
        self.used = now_us;
        self.counts = [0; Counter::COUNT];
    }

    /// What it has counted apart from errors, in the order of [`Counter`], which is that of the columns of `stats`.
    pub fn counts(&self) -> &[u64] {
        &self.counts[..Counter::Errors as usize]
    }

    /// What it has counted of the errors ID001, ID002 and so on.
    pub fn errors(&self) -> &[u64] {
        &self.counts[Counter::Errors as usize..]
    }

    /// Adds what another tally has counted.
    pub fn add(&mut self, other: &Tally) {
        self.since = self.since.min(other.since);
        self.used = self.used.max(other.used);
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            // What was saved in a file may be anything.
            *count = count.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StandingSession;
    use std::rc::Rc;

    #[test]
    fn keys_of_sessions_roles_and_others_differ() {
        let session = StandingSession { id: [1; 16], ..StandingSession::default() };
        let standing = Key::of(&Session::Standing(Rc::new(session)), 5);
        let others = Key::of_others(5);
        let clients = Key { role: 10, ..others };
        assert!(standing != clients && clients != others && standing != others);
        assert!(others.is_others() && !standing.is_others() && !clients.is_others());
    }

    #[test]
    fn a_line_takes_over_what_another_has_counted() {
        let mut tally = Tally { key: Key::default(), since: 20, used: 20, counts: [1; Counter::COUNT] };
        tally.add(&Tally { key: Key::default(), since: 10, used: 30, counts: [2; Counter::COUNT] });
        assert_eq!((tally.since, tally.used, tally.counts), (10, 30, [3; Counter::COUNT]));
    }
}
