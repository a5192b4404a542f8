//! A request of a session with a journal: where it is kept, and what its row says.

use crate::error::{Error, RequestName, WAIT_BY_SETTING};
use crate::journal::row::{Claimed, Row, RowPlace};
use crate::journal::table::{self, Journal};
use crate::model::StandingSession;
use crate::pg::{self, Deadline};
use crate::sessions::resolve;
use std::cell::Cell;
use std::rc::Rc;

/// Where a request is kept that has a journal.
pub struct Journaled {
    journal: Rc<Journal>,
    tenant: String,
    /// Whether the table's owner executes the statements, and not the caller, who has a level but no right to the session.
    as_owner: bool,
    /// The row as it was read last, if it was.
    row: Cell<Option<Option<Row>>>,
}

impl Journaled {
    /// The place of the requests of a tenant. `None`: the session has no journal.
    /// Refuses a table that has changed hands, or has taken the place of another one: it would know of no request.
    pub fn of(session: &StandingSession, stream: Option<&str>) -> Result<Option<Box<Journaled>>, Error> {
        let Some(name) = &session.journal else { return Ok(None) };
        let as_owner = !pg::is_superuser() && !resolve::may_use(session.owner, session.usable_by);
        let journal = match as_owner {
            // Whoever is on call need not have the right to the table's schema.
            true => pg::as_role(session.owner, || table::find(name))?,
            false => table::find(name)?,
        };
        journal.check_owner(session)?;
        let tenant = journal.tenant_text(&session.name, stream.unwrap_or_default())?;
        Ok(Some(Box::new(Journaled { journal, tenant, as_owner, row: Cell::default() })))
    }

    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The row of a request.
    pub fn at<'a>(&'a self, session: &'a StandingSession, key: &'a str) -> InJournal<'a> {
        let (journal, tenant, as_owner) = (&self.journal, &self.tenant, self.as_owner);
        let place = RowPlace { journal, tenant, session: &session.name, key, as_owner };
        InJournal { place, row: &self.row }
    }
}

/// A request and its row.
pub struct InJournal<'a> {
    place: RowPlace<'a>,
    row: &'a Cell<Option<Option<Row>>>,
}

impl InJournal<'_> {
    /// The row as it was read last in this call; if it was not, it is read.
    pub fn row(&self) -> Result<Option<Row>, Error> {
        let known = self.row.take();
        self.row.set(known.clone());
        known.map_or_else(|| self.row_anew(), Ok)
    }

    /// The row as it is now.
    pub fn row_anew(&self) -> Result<Option<Row>, Error> {
        let row = self.place.look()?;
        self.row.replace(Some(row.clone()));
        Ok(row)
    }

    /// No crash may undo what this transaction writes into the row.
    pub fn keep_through_crash(&self) {
        self.place.keep_through_crash();
    }

    /// The error for a row that was not written though it had to be.
    pub fn not_written(&self) -> Error {
        self.place.not_written()
    }

    /// Writes the row.
    pub fn write<T>(&self, work: impl FnOnce(&RowPlace<'_>) -> Result<T, Error>) -> Result<T, Error> {
        self.row.replace(None);
        work(&self.place)
    }

    /// Claims the request by inserting its row, which counts until `expires_at`.
    pub fn claim(&self, expires_at: i64) -> Claimed {
        let claimed = self.place.claim(expires_at);
        // A row of this transaction's own that says nothing is as good as none.
        self.row.replace(if claimed == Claimed::New { Some(None) } else { None });
        claimed
    }

    /// Locks the row and reads it; gives whether there is one.
    pub fn lock(&self) -> Result<bool, Error> {
        let row = self.place.lock()?;
        let locked = row.is_some();
        self.row.replace(Some(row));
        Ok(locked)
    }

    /// As [`InJournal::lock`]. If the wait runs out, that is an error.
    pub fn lock_within(&self, deadline: Deadline) -> Result<bool, Error> {
        pg::in_time_or_error(deadline.left_us(), || self.lock(), || self.ran_out())
    }

    fn ran_out(&self) -> Error {
        let name = RequestName::in_stream(self.place.session, self.place.tenant, self.place.key);
        Error::WaitRanOut { what: name.to_string(), hint: WAIT_BY_SETTING }
    }

    /// As [`InJournal::lock_within`]. Also waits for whoever has begun the request for the first time: that row is not there
    /// yet for anybody else, but keeps others from inserting theirs.
    pub fn lock_after_others(&self, expires_at: i64, deadline: Deadline) -> Result<bool, Error> {
        if self.lock_within(deadline)? {
            return Ok(true);
        }
        let claimed = pg::tentatively(deadline.left_us(), || self.place.claim(expires_at), |_| false);
        self.row.replace(None);
        match claimed {
            None => Err(self.ran_out()),
            Some(Claimed::New) => Ok(false),
            Some(Claimed::There) => self.lock_within(deadline),
        }
    }

    /// Whether another transaction is at work on the request: it has inserted the row, or locked it, and has not ended. To
    /// find out, this tries the same and takes it back.
    pub fn is_held_by_another(&self, expires_at: i64) -> Result<bool, Error> {
        /// Nobody is waited for.
        const AT_ONCE: Option<i64> = Some(0);
        Ok(!self.try_claim(AT_ONCE, expires_at, |place| place.try_lock())?.unwrap_or(false))
    }

    /// Waits until no other transaction is at work on the request; `false`: the wait ran out. As in
    /// [`InJournal::is_held_by_another`], what this does to wait is taken back.
    pub fn wait_for_others(&self, expires_at: i64, deadline: Deadline) -> Result<bool, Error> {
        let lock = |place: &RowPlace<'_>| place.lock().map(|row| row.is_some());
        self.try_claim(deadline.left_us(), expires_at, lock).map(|waited| waited.is_some())
    }

    /// Inserts the row, or has `lock` lock the one that is there, and takes that back. `None`: the wait ran out.
    fn try_claim(
        &self,
        wait_us: Option<i64>,
        expires_at: i64,
        lock: impl FnOnce(&RowPlace<'_>) -> Result<bool, Error>,
    ) -> Result<Option<bool>, Error> {
        self.row.replace(None);
        let claim = || if self.place.claim(expires_at) == Claimed::New { Ok(true) } else { lock(&self.place) };
        pg::tentatively(wait_us, claim, |_| false).transpose()
    }
}

/// How much longer a row of a session with this ttl may count than it has to. Then a record need not change the moment, nor
/// the index on it.
pub fn slack_us(ttl_us: i64) -> i64 {
    const MOST_US: i64 = 60_000_000;
    (ttl_us / 10).min(MOST_US)
}
