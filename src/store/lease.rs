//! `idempotence.lease`: the leases that are held or that ran out, a row for each request that was begun with a lease and
//! is not done. A row is written only under the request's lock, and is kept under the digest of that lock. So a slot,
//! and a stream in strict order, has one at most. The sweep deletes the leases that do not count any more.
//!
//! A DBA may have made the table unlogged. Then a crash empties it, and a standby cannot read it.

use crate::domain::decision::{Fingerprint, LeaseFacts};
use crate::domain::identity::{Digest, SessionId};
use crate::domain::lease::Lease;
use crate::domain::sequence::Range;
use crate::error::Error;
use crate::lock::Tag;
use crate::model::Stream;
use crate::pg;
use crate::store::blank;
use crate::store::cache;
use crate::store::catalog::{Index, Table};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, columns, uuid_equals};
use crate::store::write;
use pgrx::pg_sys;

columns! { "lease", Columns, COLUMNS:
    DIGEST, SESSION, TOKEN, BEGUN_AT, LEASED_UNTIL, ATTEMPT, STREAM, REQUEST, HOLDER, APPLICATION, FINGERPRINT, LAST
}

/// A lease in the table, run out or not.
#[derive(Clone)]
pub struct StoredLease {
    /// The lease itself.
    pub lease: Lease,
    /// The key or first number of the request that it was begun for.
    pub request: String,
    /// The last number of a numbered request; `None` for a keyed one.
    pub last: Option<i64>,
    /// The fingerprint of the payload, if one was given.
    pub fingerprint: Option<Fingerprint>,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
}

impl StoredLease {
    /// The facts for the decision about `request`. After it ran out the lease counts until `expires_at`.
    pub fn facts(&self, request: &str, expires_at: i64) -> LeaseFacts {
        let Lease { until, attempt, .. } = self.lease;
        let own = self.request == request;
        LeaseFacts { own, until, expires_at, attempt, visible: self.visible, fingerprint: self.fingerprint }
    }

    /// The same with another lease, to be written over this one.
    pub fn with<'a>(&'a self, lease: Lease, of: Stream<'a>, lock: &'a Digest) -> NewLease<'a> {
        let (request, last, fingerprint) = (&*self.request, self.last, self.fingerprint);
        NewLease { of, lock, request, last, fingerprint, lease, is_first: false, holder: None }
    }

    /// The numbers of the request that it was begun for; `None` for a key.
    pub fn range(&self) -> Option<Range> {
        let last = self.last?;
        self.request.parse().ok().map(|first| Range { first, last })
    }
}

/// Who holds a lease.
#[derive(Clone)]
pub struct Holder {
    /// The name of the role that was current at the begin.
    pub role: String,
    /// What its client called itself.
    pub application: String,
    /// When the lease runs out or ran out.
    pub until: i64,
}

/// The holder of the lease that is kept under a request's lock.
pub fn holder(of: Stream<'_>, lock: &Digest) -> Option<Holder> {
    let table = Rel::open_unless_blank(Table::Lease)?;
    table.find_digest(lock, Snapshot::LatestMvcc, |row: &Columns<'_>| {
        let is_of = row.uuid(SESSION).as_ref() == Some(of.session);
        let (role, until) = (row.get(HOLDER)?, row.get(LEASED_UNTIL)?);
        is_of.then(|| Holder { role, application: row.get(APPLICATION).unwrap_or_default(), until })
    })
}

/// Finds the lease that is kept under a request's lock. It may be that of another number in the same lane.
pub fn find(of: Stream<'_>, lock: &Digest, snapshot: Snapshot) -> Result<Option<StoredLease>, Error> {
    let Some(table) = Rel::open_unless_blank(Table::Lease) else { return Ok(None) };
    Ok(find_in(&table, of, lock, snapshot)?.map(|(found, _)| found))
}

fn find_in<'rel>(
    table: &'rel Rel,
    of: Stream<'_>,
    lock: &Digest,
    snapshot: Snapshot,
) -> Result<Option<(StoredLease, Tid<'rel>)>, Error> {
    if table.is_empty() {
        return Ok(None);
    }
    let its =
        |row: &Columns<'rel>| (row.uuid(DIGEST) == Some(lock.0)).then(|| read(row, of).map(|found| (found, row.at())));
    let hint = cache::with(|cache| cache.lease.filter(|(of, _)| of == lock));
    let there = match (snapshot, hint) {
        (Snapshot::Itself, Some((_, hint))) => table.look_at(hint, its),
        _ => None,
    };
    let found = there.or_else(|| table.find_digest(lock, snapshot, its)).transpose()?;
    remember(table, lock, found.as_ref().map(|(_, at)| *at));
    Ok(found)
}

fn remember(table: &Rel, lock: &Digest, at: Option<Tid<'_>>) {
    if let Some(hint) = at.map(|at| table.hint(at)) {
        cache::with(|cache| cache.lease = Some((*lock, hint)));
    }
}

fn read(row: &Columns<'_>, of: Stream<'_>) -> Result<StoredLease, Error> {
    // As with outcomes, the digest only leads to the row.
    if row.uuid(SESSION).as_ref() != Some(of.session) || !row.text_is(STREAM, of.name) {
        return Err(Error::Corrupted { message: "a lease is kept under the lock of another request".into() });
    }
    let lease = || {
        let (token, attempt) = (row.get(TOKEN)?, row.get(ATTEMPT)?);
        Some(Lease { token, attempt, begun_at: row.get(BEGUN_AT)?, until: row.get(LEASED_UNTIL)? })
    };
    let (last, fingerprint, visible) = (row.get(LAST), row.uuid(FINGERPRINT), row.visible());
    let stored = lease().zip(row.get(REQUEST));
    stored
        .map(|(lease, request)| StoredLease { lease, request, last, fingerprint, visible })
        .ok_or_else(|| Error::Corrupted { message: "a row of table \"idempotence.lease\" lacks a value".into() })
}

/// A lease to be written.
pub struct NewLease<'a> {
    /// The session and stream of its request.
    pub of: Stream<'a>,
    /// The digest that is locked for its request.
    pub lock: &'a Digest,
    /// The request's key or first number.
    pub request: &'a str,
    /// The last number of a numbered request.
    pub last: Option<i64>,
    /// The fingerprint of the payload, if one was given.
    pub fingerprint: Option<Fingerprint>,
    /// The lease itself.
    pub lease: Lease,
    /// Whether it is known that none is kept under the lock.
    pub is_first: bool,
    /// Whose lease it was, if nobody takes it over by this; `None`: it is the caller's.
    pub holder: Option<Holder>,
}

impl NewLease<'_> {
    /// The names of whoever holds it: the role, and the application.
    pub fn names(&self) -> (String, String) {
        match &self.holder {
            Some(holder) => (holder.role.clone(), holder.application.clone()),
            None => (pg::current_role_name(), pg::application_name()),
        }
    }
}

/// Writes a lease over the one that is kept under the same lock. The caller has the request's lock.
pub fn save(new: &NewLease<'_>) -> Result<(), Error> {
    debug_assert!(Tag::request(new.lock).is_held_by_us(), "a lease changes only under its request's lock");
    let mut columns: [Option<pg_sys::Datum>; COLUMNS] = [None; COLUMNS];
    columns[DIGEST] = Some(pg::uuid(&new.lock.0));
    columns[SESSION] = Some(pg::uuid(new.of.session));
    columns[TOKEN] = Some(new.lease.token.into());
    columns[BEGUN_AT] = Some(new.lease.begun_at.into());
    columns[LEASED_UNTIL] = Some(new.lease.until.into());
    columns[LAST] = new.last.map(Into::into);
    columns[ATTEMPT] = Some(new.lease.attempt.into());
    columns[FINGERPRINT] = new.fingerprint.as_ref().map(pg::uuid);
    columns[REQUEST] = Some(pg::text(new.request));
    columns[STREAM] = Some(pg::text(new.of.name));
    let (role, application) = new.names();
    columns[HOLDER] = Some(pg::text(&role));
    columns[APPLICATION] = Some(pg::text(&application));
    let table = Rel::open(Table::Lease, Access::Write);
    let former = if new.is_first { None } else { find_in(&table, new.of, new.lock, Snapshot::Itself)? };
    remember(&table, new.lock, write::save(&table, former.map(|(_, at)| at), &columns));
    blank::written(Table::Lease);
    Ok(())
}

/// Deletes the lease that is kept under the lock; gives whether there was one. The caller has the request's lock.
pub fn delete(of: Stream<'_>, lock: &Digest) -> Result<bool, Error> {
    debug_assert!(Tag::request(lock).is_held_by_us(), "a lease changes only under its request's lock");
    let table = Rel::open(Table::Lease, Access::Write);
    let found = find_in(&table, of, lock, Snapshot::Itself)?;
    Ok(found.map(|(_, at)| write::delete(&table, at)).is_some())
}

/// Makes the commit of this transaction wait for its flush, where leases are logged, whatever `synchronous_commit` says:
/// a holder was told of its lease, or a former holder was superseded, and no crash may undo that.
pub fn keep_through_crash() {
    if !Rel::open(Table::Lease, Access::Read).is_unlogged() {
        pg::force_sync_commit();
    }
}

/// How many leases a role has, run out or not. It is at least `enough` if they are. Where the table is too small to hold
/// so many, none is counted, and this is how many it could hold.
pub fn count(role: pg_sys::Oid, enough: i64) -> i64 {
    /// A row takes a hundred bytes at least.
    const ROWS_A_PAGE_MAX: i64 = pg_sys::BLCKSZ as i64 / 100;
    let table = Rel::open(Table::Lease, Access::Read);
    let held_at_most = i64::from(table.pages()) * ROWS_A_PAGE_MAX;
    if held_at_most < enough {
        return held_at_most;
    }
    let name = pg::role_name(role).unwrap_or_default();
    table.count(None, &mut [], enough, |row: &Columns<'_>| row.text_is(HOLDER, &name))
}

/// The greatest number of a stream that has a lease, run out or not; 0: none has.
pub fn greatest_number(of: Stream<'_>) -> i64 {
    let last = |row: &Columns<'_>| row.get::<i64>(LAST).filter(|_| row.text_is(STREAM, of.name));
    of_session(of.session, last).into_iter().max().unwrap_or(0)
}

/// When the last lease of a session runs out that has not run out at `now_us`; `None`: it has no such lease.
pub fn last_end(session: &SessionId, now_us: i64) -> Option<i64> {
    of_session(session, |row| row.get::<i64>(LEASED_UNTIL).filter(|until| *until > now_us)).into_iter().max()
}

/// The keys or first numbers that have a lease in a session, run out or not.
pub fn keys_of(session: &SessionId) -> Vec<String> {
    of_session(session, |row| row.get(REQUEST))
}

/// What `read` makes of every lease that a session has, as the latest snapshot sees it.
fn of_session<T>(session: &SessionId, read: impl Fn(&Columns<'_>) -> Option<T>) -> Vec<T> {
    let Some(table) = Rel::open_unless_blank(Table::Lease) else { return Vec::new() };
    let keys = &mut [uuid_equals(SESSION, session)];
    table.all(Some(Index::LeaseSession), keys, Snapshot::LatestMvcc, read)
}
