//! The row of a request in a journal.

use super::statement::{Act, place};
use super::table::{self, Journal};
use crate::domain::class::Class;
use crate::domain::lease::Lease;
use crate::error::{Error, RequestName, WAIT_BY_SETTING};
use crate::model::StandingSession;
use crate::pg::{self, Deadline, FoundRow, Sight, Timestamptz, Writer};
use crate::store::checkpoint::Checkpoint;
use crate::store::lease::{Holder, NewLease, StoredLease};
use crate::store::outcome::Outcome;
use crate::store::rel;
use crate::store::written;
use pgrx::datum::{Datum, DatumWithOid, Uuid};
use std::borrow::Cow;
use std::cell::Cell;
use std::iter;
use std::rc::Rc;

/// A request that is kept in a journal.
pub struct InJournal<'a> {
    journal: Rc<Journal>,
    tenant: String,
    session: Rc<StandingSession>,
    key: Cow<'a, str>,
    as_owner: bool,
    /// The row as it was read last in this call, if it was.
    known: Cell<Option<Option<Row>>>,
}

/// What the row of a request says. It has an outcome; or a lease, a checkpoint or both; or nothing, as long as whoever claimed
/// it is at work.
#[derive(Clone)]
pub struct Row {
    /// The outcome, expired or not.
    pub outcome: Option<Outcome>,
    /// The lease, run out or not.
    pub lease: Option<StoredLease>,
    /// Who has the lease.
    pub holder: Option<Holder>,
    /// The checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
}

impl<'a> InJournal<'a> {
    /// The request `key` of the tenant with this one text. With `as_owner` the table's owner executes the statements, and not
    /// the caller.
    pub fn new(
        journal: Rc<Journal>,
        tenant: String,
        session: Rc<StandingSession>,
        key: Cow<'a, str>,
        as_owner: bool,
    ) -> InJournal<'a> {
        InJournal { journal, tenant, session, key, as_owner, known: Cell::default() }
    }

    /// The tenant's one text.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The row as it was read last in this call; if it was not, it is read.
    pub fn row(&self) -> Result<Option<Row>, Error> {
        let known = self.known.take();
        self.known.set(known.clone());
        known.map_or_else(|| self.row_anew(), Ok)
    }

    /// The row as it is now.
    pub fn row_anew(&self) -> Result<Option<Row>, Error> {
        let seen = pg::keeps_snapshot().then(|| self.read(Act::Look, Sight::OfTransaction, version));
        let sees = |row: &FoundRow| seen.as_ref().is_none_or(|seen| *seen == Some(version(row)));
        let row = self.read(Act::Look, Sight::Newest, |row| self.read_row(row, sees(row))).transpose()?;
        self.known.set(Some(row.clone()));
        Ok(row)
    }

    /// Claims the request by inserting its row, unless it has one that is committed, or this transaction's own. The row counts
    /// until `expires_at`. Waits for another transaction that is inserting it or deleting it. Gives whether the row is new.
    pub fn claim(&self, expires_at: i64) -> bool {
        let is_new = self.insert(expires_at);
        // A row of this transaction's own that says nothing is as good as none.
        self.known.set(is_new.then_some(None));
        is_new
    }

    fn insert(&self, expires_at: i64) -> bool {
        self.change(Act::Claim, &[Timestamptz(expires_at).into()]) > 0
    }

    /// Reads the row and locks it; gives whether there is one. Waits for another transaction that has it locked or is
    /// changing it.
    pub fn lock(&self) -> Result<bool, Error> {
        let row = self.read(Act::Lock, Sight::OfTransaction, |row| self.read_row(row, true)).transpose()?;
        let locked = row.is_some();
        self.known.set(Some(row));
        Ok(locked)
    }

    /// As [`InJournal::lock`]. If the wait runs out, that is an error.
    pub fn lock_within(&self, deadline: Deadline) -> Result<bool, Error> {
        pg::in_time_or_error(deadline.left_us(), || self.lock(), || self.ran_out())
    }

    fn ran_out(&self) -> Error {
        let name = RequestName::in_stream(&self.session.name, &self.tenant, &self.key);
        Error::WaitRanOut { what: name.to_string(), hint: WAIT_BY_SETTING }
    }

    /// As [`InJournal::lock_within`]. Also waits for whoever has begun the request for the first time: that row is not there
    /// yet for anybody else, but keeps others from inserting theirs.
    pub fn lock_after_others(&self, expires_at: i64, deadline: Deadline) -> Result<(), Error> {
        if self.lock_within(deadline)? {
            return Ok(());
        }
        match self.wait_for_others(expires_at, deadline) {
            true => self.lock_within(deadline).map(drop),
            false => Err(self.ran_out()),
        }
    }

    /// Whether another transaction is at work on the request: it has inserted the row, or locked it, and has not ended. To
    /// find out, this tries the same, waits for nobody, and takes it back.
    pub fn is_held_by_another(&self, expires_at: i64) -> bool {
        !self.try_claim(Some(0), expires_at, Act::TryLock).unwrap_or(false)
    }

    /// Waits until no other transaction is at work on the request; `false`: the wait ran out. As in
    /// [`InJournal::is_held_by_another`], what this does to wait is taken back.
    pub fn wait_for_others(&self, expires_at: i64, deadline: Deadline) -> bool {
        self.try_claim(deadline.left_us(), expires_at, Act::Lock).is_some()
    }

    /// Inserts the row, or locks the one that is there by `lock`, and takes that back. Gives whether it did; `None`: the wait
    /// ran out.
    fn try_claim(&self, wait_us: Option<i64>, expires_at: i64, lock: Act) -> Option<bool> {
        let claim = || self.insert(expires_at) || self.read(lock, Sight::OfTransaction, |_| ()).is_some();
        let claimed = pg::tentatively(wait_us, claim, |_| false);
        self.known.set(None);
        claimed
    }

    /// Makes the row an outcome, which counts until `at_least`, or a little longer. Gives until when.
    pub fn record(&self, outcome: &Outcome, at_least: i64, at_most: i64) -> Result<i64, Error> {
        let values = [
            outcome.class.status().into(),
            outcome.response.into(),
            outcome.fingerprint.map(Uuid::from_bytes).into(),
            outcome.token.into(),
            Timestamptz(outcome.recorded_at).into(),
            pg::current_role_name().into(),
            Timestamptz(at_least).into(),
            Timestamptz(at_most).into(),
        ];
        self.note_write();
        let mut expires_at = None;
        self.execute(Act::Record, &values, Sight::OfTransaction, |row| expires_at = row.get(0));
        expires_at.ok_or_else(|| self.not_written())
    }

    /// Gives the row a lease. The row counts until `expires_at`.
    pub fn save_lease(&self, new: &NewLease<'_>, expires_at: i64) -> Result<(), Error> {
        let (lease, (role, application)) = (&new.lease, new.names());
        self.must_change(
            Act::Lease,
            &[
                new.fingerprint.map(Uuid::from_bytes).into(),
                lease.token.into(),
                lease.attempt.into(),
                Timestamptz(lease.begun_at).into(),
                Timestamptz(lease.until).into(),
                role.into(),
                application.into(),
                Timestamptz(expires_at).into(),
            ],
        )
    }

    /// Gives the row a checkpoint. The row counts until `expires_at`.
    pub fn save_checkpoint(&self, checkpoint: &Checkpoint, expires_at: i64) -> Result<(), Error> {
        self.must_change(
            Act::Checkpoint,
            &[
                checkpoint.point.as_str().into(),
                checkpoint.state.into(),
                checkpoint.fingerprint.map(Uuid::from_bytes).into(),
                Timestamptz(checkpoint.written_at).into(),
                Timestamptz(expires_at).into(),
            ],
        )
    }

    /// Takes the lease away, if there is one. A row that has no checkpoint either goes with it.
    pub fn end_lease(&self) -> Result<(), Error> {
        let Some(row) = self.row()?.filter(|row| row.lease.is_some()) else { return Ok(()) };
        self.must_change(if row.checkpoint.is_some() { Act::EndLease } else { Act::Delete }, &[])
    }

    /// Takes the response and the state away.
    pub fn redact(&self) -> Result<(), Error> {
        self.must_change(Act::Redact, &[])
    }

    /// Deletes the row.
    pub fn delete(&self) -> Result<(), Error> {
        self.must_change(Act::Delete, &[])
    }

    fn read<T>(&self, act: Act, sight: Sight, read: impl Fn(&FoundRow) -> T) -> Option<T> {
        let mut found = None;
        self.execute(act, &[], sight, |row| found = Some(read(row)));
        found
    }

    fn read_row(&self, row: &FoundRow, visible: bool) -> Result<Row, Error> {
        let broken = |what| Error::Corrupted { message: format!("a row of journal {} {what}", self.journal.name) };
        let expires_at = row.get(place::EXPIRES_AT).ok_or_else(|| broken("does not say when it expires"))?;
        let (fingerprint, token) = (row.uuid(place::FINGERPRINT), row.get(place::TOKEN));
        if let Some(status) = row.get::<String>(place::STATUS) {
            let outcome = Outcome {
                class: Class::of_status(&status).ok_or_else(|| broken("has a status that no outcome has"))?,
                response: row.jsonb(place::RESPONSE),
                fingerprint,
                token,
                recorded_at: row.get(place::RECORDED_AT).unwrap_or(expires_at),
                expires_at: Some(expires_at),
                writer: self.journal.is_local.then(|| row.writer(place::WRITER)).flatten().unwrap_or(Writer::THIS),
                visible,
            };
            return Ok(Row { outcome: Some(outcome), lease: None, holder: None, checkpoint: None, visible });
        }
        let until = row.get(place::LEASED_UNTIL);
        let lease = until.map(|until| {
            let attempt = row.get(place::ATTEMPT).unwrap_or(1);
            let begun_at = row.get(place::BEGUN_AT).unwrap_or(until);
            let lease = Lease { token: token.unwrap_or(0), attempt, begun_at, until };
            StoredLease { lease, request: self.key.to_string(), last: None, fingerprint, visible }
        });
        let holder = until.map(|until| Holder {
            role: row.get(place::HOLDER).unwrap_or_default(),
            application: row.get(place::APPLICATION).unwrap_or_default(),
            until,
        });
        let checkpoint = row.get(place::POINT).map(|point| Checkpoint {
            point,
            state: row.jsonb(place::STATE),
            fingerprint,
            written_at: row.get(place::WRITTEN_AT).unwrap_or(expires_at),
            last: None,
            visible,
        });
        Ok(Row { outcome: None, lease, holder, checkpoint, visible })
    }

    fn must_change(&self, act: Act, values: &[DatumWithOid<'_>]) -> Result<(), Error> {
        if self.change(act, values) == 0 { Err(self.not_written()) } else { Ok(()) }
    }

    fn change(&self, act: Act, values: &[DatumWithOid<'_>]) -> u64 {
        self.note_write();
        self.execute(act, values, Sight::OfTransaction, |_| {})
    }

    /// What Citus keeps it commits together with the effects that it keeps too.
    fn note_write(&self) {
        self.known.set(None);
        match self.journal.is_local {
            true => written::note(),
            false => written::note_elsewhere(),
        }
    }

    /// No crash may undo what this transaction writes.
    pub fn keep_through_crash(&self) {
        match self.journal.is_local {
            true => pg::force_sync_commit(),
            false => written::note_lasting(),
        }
    }

    fn execute(&self, act: Act, values: &[DatumWithOid<'_>], sight: Sight, each: impl FnMut(&FoundRow)) -> u64 {
        let tenant = (self.journal.tenant_type.value(), self.journal.tenant_datum(&self.tenant));
        let names: [DatumWithOid<'_>; 2] = [self.session.name.as_str().into(), (&*self.key).into()];
        let others = names.iter().chain(values).map(|value| (value.oid(), value.datum().map(Datum::sans_lifetime)));
        let (types, all): (Vec<_>, Vec<_>) = iter::once(tenant).chain(others).unzip();
        let statement = || self.journal.statement(act, &types).execute(&all, sight, each);
        let lock = move |table| rel::lock(table, act.lock());
        let execute = || table::execute(&self.journal, lock, statement).unwrap_or_else(|error| error.raise());
        let done = if self.as_owner { pg::as_role(self.journal.owner, execute) } else { execute() };
        done.expect("a lock that is waited for is taken")
    }

    /// The error for a row that was not written though it had to be.
    pub fn not_written(&self) -> Error {
        Error::NotWritten { relation: self.journal.name.clone() }
    }
}

impl Row {
    /// Whether there is a response or a state to take away.
    pub fn tells(&self) -> bool {
        let response = self.outcome.as_ref().and_then(|outcome| outcome.response);
        response.or(self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.state)).is_some()
    }
}

/// What differs between two versions of a row.
fn version(row: &FoundRow) -> impl PartialEq + use<> {
    use place::{ATTEMPT, BEGUN_AT, EXPIRES_AT, LEASED_UNTIL, RECORDED_AT, STATUS, TOKEN, WRITTEN_AT};
    let numbers =
        [TOKEN, RECORDED_AT, EXPIRES_AT, BEGUN_AT, LEASED_UNTIL, WRITTEN_AT].map(|place| row.get::<i64>(place));
    (numbers, row.get::<i32>(ATTEMPT), row.get::<String>(STATUS))
}

/// How much longer a row of a session with this ttl may count than it has to. Then a record need not change the moment, nor
/// the index on it.
pub fn slack_us(ttl_us: i64) -> i64 {
    const MOST_US: i64 = 60_000_000;
    (ttl_us / 10).min(MOST_US)
}
