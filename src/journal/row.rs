//! The row of a request in a journal.

use super::statement::{Act, place};
use super::table::{self, Journal};
use crate::domain::class::Class;
use crate::domain::decision::Fingerprint;
use crate::domain::lease::Lease;
use crate::error::Error;
use crate::pg::{self, FoundRow, Sight, Timestamptz, Writer};
use crate::store::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::store::lease::{Holder, NewLease, StoredLease};
use crate::store::outcome::Outcome;
use crate::store::rel;
use crate::store::written;
use pgrx::datum::{Datum, DatumWithOid, Uuid};
use std::iter;
use std::rc::Rc;

/// A request that is kept in a journal.
pub struct RowPlace<'a> {
    /// The journal.
    pub journal: &'a Rc<Journal>,
    /// The tenant's one text.
    pub tenant: &'a str,
    /// The session's name.
    pub session: &'a str,
    /// The request's key.
    pub key: &'a str,
    /// Whether the table's owner executes the statements, and not the caller.
    pub as_owner: bool,
}

/// What the row of a request says. It has an outcome; or a lease, a checkpoint or both; or nothing, as long as whoever claimed
/// it is at work.
#[derive(Clone)]
pub struct Row {
    /// The outcome, expired or not.
    pub outcome: Option<Outcome>,
    lease: Option<Lease>,
    /// Who has the lease.
    pub holder: Option<Holder>,
    checkpoint: Option<Checkpoint>,
    fingerprint: Option<Fingerprint>,
    expires_at: i64,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
}

/// How a claim went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// The request had no row, and has one of this transaction now.
    New,
    /// It has a row that is committed, or this transaction's own.
    There,
}

impl RowPlace<'_> {
    /// Inserts the row, unless it is there. It counts until `expires_at`. Waits for another transaction that is inserting
    /// it or deleting it.
    pub fn claim(&self, expires_at: i64) -> Claimed {
        match self.change(Act::Claim, &[Timestamptz(expires_at).into()]) {
            0 => Claimed::There,
            _ => Claimed::New,
        }
    }

    /// Reads the row as it is now.
    pub fn look(&self) -> Result<Option<Row>, Error> {
        let row = self.read(Act::Look, Sight::Newest)?;
        if !pg::keeps_snapshot() {
            return Ok(row);
        }
        let Some(row) = row else { return Ok(None) };
        let seen = self.read(Act::Look, Sight::OfTransaction)?;
        let visible = seen.is_some_and(|seen| seen.version() == row.version());
        Ok(Some(Row { visible, ..row }))
    }

    /// Reads the row and locks it. Waits for another transaction that has it locked or is changing it.
    pub fn lock(&self) -> Result<Option<Row>, Error> {
        self.read(Act::Lock, Sight::OfTransaction)
    }

    /// As [`RowPlace::lock`], without a wait: gives whether the row could be locked.
    pub fn try_lock(&self) -> Result<bool, Error> {
        Ok(self.read(Act::TryLock, Sight::OfTransaction)?.is_some())
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
        let (_, expires_at) = self.execute(Act::Record, &values, Sight::OfTransaction, |row| row.get(0));
        expires_at.flatten().ok_or_else(|| self.not_written())
    }

    /// Gives the row a lease. The row counts until `expires_at`.
    pub fn lease(&self, new: &NewLease<'_>, expires_at: i64) -> Result<(), Error> {
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
    pub fn checkpoint(&self, checkpoint: &Checkpoint, expires_at: i64) -> Result<(), Error> {
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

    /// Takes the lease away, if there is one; gives whether there was. A row that has no checkpoint either goes with it.
    pub fn end_lease(&self) -> Result<bool, Error> {
        let Some(row) = self.look()?.filter(|row| row.lease.is_some()) else { return Ok(false) };
        let act = if row.checkpoint.is_some() { Act::EndLease } else { Act::Delete };
        self.must_change(act, &[]).map(|()| true)
    }

    /// Takes the response and the state away.
    pub fn redact(&self) -> Result<(), Error> {
        self.must_change(Act::Redact, &[])
    }

    /// Deletes the row.
    pub fn delete(&self) -> Result<(), Error> {
        self.must_change(Act::Delete, &[])
    }

    fn read(&self, act: Act, sight: Sight) -> Result<Option<Row>, Error> {
        self.execute(act, &[], sight, |row| self.row(row)).1.transpose()
    }

    fn row(&self, row: &FoundRow) -> Result<Row, Error> {
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
            };
            let (lease, holder, checkpoint, outcome) = (None, None, None, Some(outcome));
            return Ok(Row { outcome, lease, holder, checkpoint, fingerprint, expires_at, visible: true });
        }
        let until = row.get(place::LEASED_UNTIL);
        let lease = until.map(|until| Lease {
            token: token.unwrap_or(0),
            attempt: row.get(place::ATTEMPT).unwrap_or(1),
            begun_at: row.get(place::BEGUN_AT).unwrap_or(until),
            until,
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
        });
        Ok(Row { outcome: None, lease, holder, checkpoint, fingerprint, expires_at, visible: true })
    }

    fn must_change(&self, act: Act, values: &[DatumWithOid<'_>]) -> Result<(), Error> {
        if self.change(act, values) == 0 { Err(self.not_written()) } else { Ok(()) }
    }

    fn change(&self, act: Act, values: &[DatumWithOid<'_>]) -> u64 {
        self.note_write();
        self.execute(act, values, Sight::OfTransaction, |_| ()).0
    }

    /// What Citus keeps it commits together with the effects that it keeps too.
    fn note_write(&self) {
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

    fn execute<T>(
        &self,
        act: Act,
        values: &[DatumWithOid<'_>],
        sight: Sight,
        read: impl Fn(&FoundRow) -> T,
    ) -> (u64, Option<T>) {
        let tenant = (self.journal.tenant_type.value(), self.journal.tenant_datum(self.tenant));
        let names: [DatumWithOid<'_>; 2] = [self.session.into(), self.key.into()];
        let others = names.iter().chain(values).map(|value| (value.oid(), value.datum().map(Datum::sans_lifetime)));
        let (types, all): (Vec<_>, Vec<_>) = iter::once(tenant).chain(others).unzip();
        let statement = || self.journal.statement(act, &types).execute(&all, sight, read);
        let lock = move |table| rel::lock(table, act.lock());
        let execute = || table::execute(self.journal, lock, statement).unwrap_or_else(|error| error.raise());
        let done = if self.as_owner { pg::as_role(self.journal.owner, execute) } else { execute() };
        done.expect("a lock that is waited for is taken")
    }

    /// The error for a row that was not written though it had to be.
    pub fn not_written(&self) -> Error {
        Error::NotWritten { relation: self.journal.name.clone() }
    }
}

impl Row {
    /// The lease of the request `key`, run out or not.
    pub fn lease(&self, key: &str) -> Option<StoredLease> {
        Some(StoredLease::of_key(self.lease?, key, self.fingerprint, self.visible))
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> Option<StoredCheckpoint> {
        self.checkpoint.clone().map(|checkpoint| StoredCheckpoint::of(checkpoint, self.visible))
    }

    /// Whether there is a response or a state to take away.
    pub fn tells(&self) -> bool {
        let response = self.outcome.as_ref().and_then(|outcome| outcome.response);
        response.or(self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.state)).is_some()
    }

    /// What differs between two versions of the row.
    fn version(&self) -> impl PartialEq + use<> {
        let outcome = self.outcome.as_ref().map(|outcome| (outcome.class, outcome.token, outcome.recorded_at));
        (outcome, self.lease, self.checkpoint.as_ref().map(|checkpoint| checkpoint.written_at), self.expires_at)
    }
}
