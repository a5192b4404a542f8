//! The row of a request in a journal.

use super::statement::{Act, place};
use super::table::{self, Journal, Tenant};
use crate::domain::class::Class;
use crate::domain::decision::Fingerprint;
use crate::domain::lease::Lease;
use crate::error::Error;
use crate::pg::{self, FoundRow, Jsonb, Sight, Writer};
use crate::store::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::store::lease::{NewLease, StoredLease};
use crate::store::outcome::Outcome;
use crate::store::rel;
use crate::store::written;
use pgrx::IntoDatum;
use pgrx::pg_sys;
use std::rc::Rc;

/// A request that is kept in a journal.
pub struct RowPlace<'a> {
    /// The journal.
    pub journal: &'a Rc<Journal>,
    /// The tenant.
    pub tenant: &'a Tenant,
    /// The session's name.
    pub session: &'a str,
    /// The request's key.
    pub key: &'a str,
    /// Whether the table's owner executes the statements, and not the caller.
    pub as_owner: bool,
}

/// What the row of a request says.
#[derive(Clone)]
pub struct Row {
    state: RequestState,
    fingerprint: Option<Fingerprint>,
    token: Option<i64>,
    expires_at: i64,
    writer: Writer,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
}

/// How far a request is.
#[derive(Clone)]
enum RequestState {
    /// It has an outcome, expired or not.
    Done { class: Class, response: Option<Jsonb>, recorded_at: i64 },
    /// It has a lease, a checkpoint or both; or neither, as long as whoever claimed it is at work.
    Unfinished { lease: Option<Leased>, checkpoint: Option<Reached> },
}

/// A lease, run out or not.
#[derive(Clone)]
struct Leased {
    attempt: i32,
    begun_at: i64,
    until: i64,
    holder: String,
    application: String,
}

/// A checkpoint.
#[derive(Clone)]
struct Reached {
    point: String,
    state: Option<Jsonb>,
    written_at: i64,
}

/// How a claim went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// The request had no row, and has one of this transaction now.
    New,
    /// It has a row that is committed, or this transaction's own.
    There,
}

type Value = Option<pg_sys::Datum>;

impl RowPlace<'_> {
    /// Inserts the row, unless it is there. It counts until `expires_at`. Waits for another transaction that is inserting
    /// it or deleting it.
    pub fn claim(&self, expires_at: i64) -> Claimed {
        match self.change(Act::Claim, &[moment(expires_at)]) {
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
            text(outcome.class.status()),
            outcome.response.map(Jsonb::datum),
            outcome.fingerprint.as_ref().map(pg::uuid),
            outcome.token.and_then(IntoDatum::into_datum),
            moment(outcome.recorded_at),
            text(&role()),
            moment(at_least),
            moment(at_most),
        ];
        self.note_write();
        let expires_at = |row: &FoundRow| row.int8(0);
        let (_, expires_at) = self.execute(Act::Record, &values, Sight::OfTransaction, expires_at);
        expires_at.flatten().ok_or_else(|| self.not_written())
    }

    /// Gives the row a lease. The row counts until `expires_at`.
    pub fn lease(&self, new: &NewLease<'_>, expires_at: i64) -> Result<(), Error> {
        let (lease, (role, application)) = (&new.lease, new.names());
        self.must_change(
            Act::Lease,
            &[
                new.fingerprint.as_ref().map(pg::uuid),
                lease.token.into_datum(),
                lease.attempt.into_datum(),
                moment(lease.begun_at),
                moment(lease.until),
                text(&role),
                text(&application),
                moment(expires_at),
            ],
        )
    }

    /// Gives the row a checkpoint. The row counts until `expires_at`.
    pub fn checkpoint(&self, checkpoint: &Checkpoint, expires_at: i64) -> Result<(), Error> {
        self.must_change(
            Act::Checkpoint,
            &[
                text(&checkpoint.point),
                checkpoint.state.map(Jsonb::datum),
                checkpoint.fingerprint.as_ref().map(pg::uuid),
                moment(checkpoint.written_at),
                moment(expires_at),
            ],
        )
    }

    /// Takes the lease away, if there is one; gives whether there was. A row that has no checkpoint either goes with it.
    pub fn end_lease(&self) -> Result<bool, Error> {
        let Some(RequestState::Unfinished { lease: Some(_), checkpoint }) = self.look()?.map(|row| row.state) else {
            return Ok(false);
        };
        let act = if checkpoint.is_some() { Act::EndLease } else { Act::Delete };
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
        let expires_at = row.int8(place::EXPIRES_AT).ok_or_else(|| broken("does not say when it expires"))?;
        let state = match row.text(place::STATUS) {
            None => RequestState::Unfinished {
                lease: row.int8(place::LEASED_UNTIL).map(|until| Leased {
                    attempt: row.int4(place::ATTEMPT).unwrap_or(1),
                    begun_at: row.int8(place::BEGUN_AT).unwrap_or(until),
                    until,
                    holder: row.text(place::HOLDER).unwrap_or_default(),
                    application: row.text(place::APPLICATION).unwrap_or_default(),
                }),
                checkpoint: row.text(place::POINT).map(|point| Reached {
                    point,
                    state: row.jsonb(place::STATE),
                    written_at: row.int8(place::WRITTEN_AT).unwrap_or(expires_at),
                }),
            },
            Some(status) => RequestState::Done {
                class: Class::of_status(&status).ok_or_else(|| broken("has a status that no outcome has"))?,
                response: row.jsonb(place::RESPONSE),
                recorded_at: row.int8(place::RECORDED_AT).unwrap_or(expires_at),
            },
        };
        let writer = if self.journal.is_local { row.writer(place::WRITER) } else { None }.unwrap_or(Writer::THIS);
        let (fingerprint, token) = (row.uuid(place::FINGERPRINT), row.int8(place::TOKEN));
        Ok(Row { state, fingerprint, token, expires_at, writer, visible: true })
    }

    fn must_change(&self, act: Act, values: &[Value]) -> Result<(), Error> {
        if self.change(act, values) == 0 { Err(self.not_written()) } else { Ok(()) }
    }

    fn change(&self, act: Act, values: &[Value]) -> u64 {
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

    fn execute<T>(&self, act: Act, values: &[Value], sight: Sight, read: impl Fn(&FoundRow) -> T) -> (u64, Option<T>) {
        let mut all = vec![Some(self.tenant.datum()), text(self.session), text(self.key)];
        all.extend_from_slice(values);
        let lock = move |table| rel::lock(table, act.lock());
        let execute = || {
            table::hold(self.journal, lock).unwrap_or_else(|error| error.raise());
            let planned = table::hold_planned(self.journal, lock);
            let statement = || act.on(self.journal).execute(&all, sight, read);
            let done = pg::without_users_code(&self.journal.name, planned, statement);
            table::check_same(self.journal).unwrap_or_else(|error| error.raise());
            done
        };
        match self.as_owner {
            true => pg::as_role(self.journal.owner, execute),
            false => execute(),
        }
    }

    /// The error for a row that was not written though it had to be.
    pub fn not_written(&self) -> Error {
        Error::NotWritten { relation: self.journal.name.clone() }
    }
}

impl Row {
    /// The outcome, expired or not.
    pub fn outcome(&self) -> Option<Outcome> {
        let RequestState::Done { class, response, recorded_at } = self.state else { return None };
        let (fingerprint, token, expires_at) = (self.fingerprint, self.token, Some(self.expires_at));
        Some(Outcome { class, response, fingerprint, token, recorded_at, expires_at, writer: self.writer })
    }

    fn leased(&self) -> Option<&Leased> {
        match &self.state {
            RequestState::Unfinished { lease, .. } => lease.as_ref(),
            RequestState::Done { .. } => None,
        }
    }

    /// The lease of the request `key`, run out or not.
    pub fn lease(&self, key: &str) -> Option<StoredLease> {
        let Leased { attempt, begun_at, until, .. } = *self.leased()?;
        let lease = Lease { token: self.token.unwrap_or(0), attempt, begun_at, until };
        Some(StoredLease::of_key(lease, key, self.fingerprint, self.visible))
    }

    /// Who holds the lease, by the name of the role.
    pub fn holder(&self) -> Option<(String, String, i64)> {
        self.leased().map(|lease| (lease.holder.clone(), lease.application.clone(), lease.until))
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> Option<StoredCheckpoint> {
        let RequestState::Unfinished { checkpoint: Some(reached), .. } = &self.state else { return None };
        let Reached { point, state, written_at } = reached.clone();
        let checkpoint = Checkpoint { point, state, fingerprint: self.fingerprint, written_at, last: None };
        Some(StoredCheckpoint::of(checkpoint, self.visible))
    }

    /// Whether there is a response or a state to take away.
    pub fn tells(&self) -> bool {
        match &self.state {
            RequestState::Done { response, .. } => response.is_some(),
            RequestState::Unfinished { checkpoint, .. } => checkpoint.as_ref().is_some_and(|at| at.state.is_some()),
        }
    }

    /// What differs between two versions of the row.
    fn version(&self) -> impl PartialEq + use<> {
        let told = match &self.state {
            RequestState::Done { class, recorded_at, .. } => (Some((*class, *recorded_at)), None, None),
            RequestState::Unfinished { lease, checkpoint } => {
                let lease = lease.as_ref().map(|lease| (lease.until, lease.attempt));
                (None, lease, checkpoint.as_ref().map(|reached| reached.written_at))
            }
        };
        (told, self.token, self.expires_at)
    }
}

fn role() -> String {
    pg::current_role_name()
}

fn text(text: &str) -> Value {
    Some(pg::text(text))
}

fn moment(us: i64) -> Value {
    Some(us.into())
}
