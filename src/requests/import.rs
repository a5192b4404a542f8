//! Import: takes outcomes over from any query into a standing session, in one transaction.
//!
//! `idem_import` (`sql/run.sql`) executes a statement that [`begin`] makes of the user's query. It calls [`row`] for each
//! row. So the user's query never runs inside a frame of the library, rows are not kept in memory, and one call writes
//! one row.
//!
//! An import holds no lock of a request, since the lock table has no room for a million of them. It is right all the same:
//!
//! * It shares the sweep's lock. So the ring stands still until its commit: every transaction that records meanwhile writes
//!   to the same segment, where the unique index lets one of two outcomes of a request in. A record that comes after the
//!   ring has moved on looks again before it writes (`outcome::insert`).
//! * For each row it looks at the request's lock first and at the outcome after that. Whoever held the lock before has
//!   committed its outcome by the second look, or is waited for, or the import is refused.
//! * Whoever begins the request after these looks does not see what the import has inserted. It executes, and its record
//!   waits for the import's commit and fails with 40001. A retry of it replays what was imported.
//! * A lease that was begun so is superseded by the outcome, see `held.rs`.
//!
//! In an inbox the insertion is that of `idem_once`, which takes no lock of a request either.

use crate::arguments;
use crate::domain::class::Class;
use crate::domain::decision::Fingerprint;
use crate::domain::identity::Digest;
use crate::domain::time_key::AHEAD_US_MAX;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::model::{Session, StandingSession, Stream};
use crate::names;
use crate::open::{self, RequestKey};
use crate::pg::{self, Deadline, Jsonb};
use crate::requests::finish;
use crate::requests::keyed::{Keyed, check_sort};
use crate::requests::repair;
use crate::requests::request::{self, Request};
use crate::sessions::resolve;
use crate::store::audit::{self, Repair};
use crate::store::checkpoint;
use crate::store::inbox;
use crate::store::lease;
use crate::store::outcome::{self, Outcome};
use crate::store::rel::Snapshot;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The columns that a query may give, and their types.
const COLUMNS: [(&str, &str); 7] = [
    ("key", "pg_catalog.text"),
    ("response", "pg_catalog.jsonb"),
    ("failed", "pg_catalog.bool"),
    ("recorded_at", "pg_catalog.timestamptz"),
    ("expires_at", "pg_catalog.timestamptz"),
    ("payload", "pg_catalog.jsonb"),
    ("fingerprint", "pg_catalog.uuid"),
];

/// A row of the query.
pub struct Row<'a> {
    /// `key`
    pub key: Option<&'a str>,
    /// `response`
    pub response: Option<Jsonb>,
    /// `failed`
    pub failed: Option<bool>,
    /// `recorded_at`
    pub recorded_at: Option<i64>,
    /// `expires_at`
    pub expires_at: Option<i64>,
    /// `payload`
    pub payload: Option<Jsonb>,
    /// `fingerprint`
    pub fingerprint: Option<[u8; 16]>,
}

/// What became of a row. The statement counts the numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Its outcome was imported.
    Imported = 0,
    /// The request has an outcome already.
    Present = 1,
    /// It has expired.
    Expired = 2,
}

/// An import that is under way.
struct Import {
    /// Tells it from an import that was begun later in the same transaction.
    number: i64,
    session: Rc<StandingSession>,
    reason: String,
    role: pg_sys::Oid,
    /// Until when the import waits for requests at work, all in all.
    deadline: Deadline,
    rows: Cell<u64>,
}

thread_local! {
    static IMPORT: RefCell<Option<Rc<Import>>> = const { RefCell::new(None) };
    static NUMBER: Cell<i64> = const { Cell::new(0) };
}

/// Begins an import. Gives the statement that imports.
pub fn begin(session: &str, query: &str, reason: &str) -> Result<String, Error> {
    repair::check_reason(reason)?;
    standing(session)?;
    arguments::check_writable("idem_import", || "Outcomes are to be inserted.".into())?;
    let query = query.trim_end_matches(|last: char| last == ';' || last.is_whitespace());
    let values = values(query)?;
    let waited = |what: &str| Error::WaitRanOut { what: what.into(), hint: WAIT_BY_SETTING };
    let deadline = Deadline::after(guc::wait_us());
    // Two imports into one session would wait for each other's rows. And the session stays as it is.
    if !names::standing_session_lock(session).acquire(deadline.left_us()) {
        return Err(waited(&format!("a change of session \"{session}\", or an import into it,")));
    }
    if !Tag::sweep().share(deadline.left_us()) {
        return Err(waited("a step of the sweep"));
    }
    let number = NUMBER.get() + 1;
    NUMBER.set(number);
    let import = Import {
        number,
        session: standing(session)?,
        reason: reason.into(),
        role: pg::current_role(),
        deadline,
        rows: Cell::new(0),
    };
    IMPORT.set(Some(Rc::new(import)));
    let count =
        |taken: Taken| format!("pg_catalog.count(*) FILTER (WHERE i.taken OPERATOR(pg_catalog.=) {})", taken as i32);
    let (imported, present, expired) = (count(Taken::Imported), count(Taken::Present), count(Taken::Expired));
    Ok(format!(
        "SELECT {imported}, {present}, {expired}
         FROM (SELECT idempotence.import_row({number}, {values}) FROM ({query}
         ) q) i (taken)"
    ))
}

/// The standing session to import into.
fn standing(name: &str) -> Result<Rc<StandingSession>, Error> {
    match resolve::any_session(name)? {
        Session::Standing(session) if session.dropped_at.is_none() => Ok(session),
        Session::Standing(_) => Err(resolve::unknown(name)),
        Session::Client(session) => Err(Error::Invalid {
            message: format!("outcomes cannot be imported into client session \"{}\"", session.name),
            detail: "Its slots keep the replies to its own client's numbers.".into(),
            hint: "Import them into a standing session, made with idem_create_session().",
        }),
    }
}

/// The values that the statement takes from the query, in the order of [`COLUMNS`].
fn values(query: &str) -> Result<String, Error> {
    const HINT: &str = "Give it as a SELECT of the columns key, response, failed, recorded_at, expires_at, payload, fingerprint, by these names; key is a must.";
    let invalid = |message: &str, detail: String| Error::Invalid { message: message.into(), detail, hint: HINT };
    let Some(given) = pg::columns_of(&format!("SELECT * FROM ({query}\n) q")) else {
        return Err(invalid("the query to import from is not one query", "It is to be one SELECT or VALUES.".into()));
    };
    for (place, column) in given.iter().enumerate() {
        if !COLUMNS.iter().any(|(known, _)| known == column) {
            return Err(invalid(
                "the query to import from has a column of another name",
                format!("Found \"{column}\"."),
            ));
        }
        if given[..place].contains(column) {
            return Err(invalid("the query to import from has a column twice", format!("Found \"{column}\" again.")));
        }
    }
    if !given.iter().any(|column| column == "key") {
        return Err(invalid("the query to import from has no column \"key\"", format!("Found {}.", given.join(", "))));
    }
    let value = |(name, sql_type): (&str, &str)| match given.iter().any(|column| column == name) {
        true => format!("q.{name}::{sql_type}"),
        false => format!("NULL::{sql_type}"),
    };
    Ok(COLUMNS.map(value).join(", "))
}

/// The import that the statement with this number belongs to. It must still have the sweep's lock, which a rollback to a
/// savepoint may have given back.
fn under_way(number: i64) -> Result<Rc<Import>, Error> {
    let import = IMPORT.with_borrow(Clone::clone).filter(|import| import.number == number);
    import.filter(|_| Tag::sweep().is_shared_by_us()).ok_or_else(|| Error::Invalid {
        message: "no such import is under way".into(),
        detail: "This function belongs to a call of idem_import(), and one import cannot run inside another.".into(),
        hint: "Call idem_import().",
    })
}

/// Ends the import, and notes it.
pub fn end(imported: i64, present: i64, expired: i64) -> Result<(), Error> {
    let Some(import) = IMPORT.take() else { return Ok(()) };
    let found = format!("{imported} imported, {present} there already, {expired} expired");
    let (session, reason) = (&import.session.name, &import.reason);
    audit::insert(&Repair { action: "import", session, request: "", reason, found: &found });
    Ok(())
}

/// Imports a row.
pub fn row(number: i64, row: &Row<'_>) -> Result<Taken, Error> {
    let import = under_way(number)?;
    import.rows.set(import.rows.get() + 1);
    let Some(key) = row.key else {
        return Err(Error::Invalid {
            message: format!("row {} of the query to import from has no key", import.rows.get()),
            detail: "Found NULL.".into(),
            hint: "Leave such rows out, or give them a key.",
        });
    };
    import.take(Keyed::of(Rc::clone(&import.session), key)?, row)
}

impl Import {
    fn take(&self, request: Keyed<'_>, row: &Row<'_>) -> Result<Taken, Error> {
        // The clock of this row: the query may give what was done since the import began.
        let now_us = pg::now_us();
        request.check_time(now_us)?;
        let (recorded_at, expires_at) = self.moments(&request, row, now_us)?;
        if expires_at <= now_us {
            return Ok(Taken::Expired);
        }
        if self.session.inbox {
            return self.take_into_inbox(&request, row, [recorded_at, expires_at, now_us]);
        }
        let request = Request::Keyed(request);
        finish::check_size("response", &request, row.response)?;
        let fingerprint = fingerprint(&request, row)?;
        let Request::Keyed(request) = request else { unreachable!("made just now") };
        let digest = request.digest();
        if !self.look(&request, digest, now_us)? {
            return Ok(Taken::Present);
        }
        let class = if row.failed == Some(true) { Class::Failed } else { Class::Succeeded };
        let outcome = Outcome {
            class,
            response: row.response,
            fingerprint,
            token: None,
            recorded_at,
            expires_at: Some(expires_at),
            writer: pg::Writer::THIS,
        };
        outcome::insert_by(&request.probe(digest), &outcome, self.role);
        Ok(Taken::Imported)
    }

    /// When the outcome was recorded and when it expires, as far as the row does not say so now and a ttl later.
    fn moments(&self, request: &Keyed<'_>, row: &Row<'_>, now_us: i64) -> Result<(i64, i64), Error> {
        let invalid = |what: &str, detail: String, hint| Error::Invalid {
            message: format!("{} {what}", request.name()),
            detail,
            hint,
        };
        let ttl_us = self.session.ttl_us();
        let recorded_at = row.recorded_at.unwrap_or(now_us);
        if recorded_at == i64::MIN || recorded_at > now_us.saturating_add(AHEAD_US_MAX) {
            return Err(invalid(
                "was recorded at no time in the past",
                format!("Found {} as recorded_at.", describe(recorded_at)),
                "Give when it was done, or leave recorded_at out.",
            ));
        }
        // Another clock may be ahead, as those that make time keys may.
        let recorded_at = recorded_at.min(now_us);
        let by_ttl = request.expires_at_us(recorded_at, ttl_us);
        let expires_at = row.expires_at.unwrap_or(by_ttl);
        let latest = request.expires_at_us(now_us, ttl_us);
        if expires_at > latest {
            return Err(invalid(
                "would be kept longer than the session allows",
                format!("Found {} as expires_at; the latest is {}.", describe(expires_at), describe(latest)),
                "Leave expires_at out, give an earlier one, or alter the session's ttl with idem_alter_session().",
            ));
        }
        if request.key_expires_at_us().is_some_and(|earliest| expires_at < earliest) {
            return Err(invalid(
                "would expire before its time key is too old",
                format!("Found {} as expires_at.", describe(expires_at)),
                "Leave expires_at out: with time_keys a key tells how long its outcome is kept at least.",
            ));
        }
        Ok((recorded_at, expires_at))
    }

    /// Whether the request may be imported, since it has no outcome and nobody is at work on it. What has expired is cleared
    /// away.
    fn look(&self, request: &Keyed<'_>, digest: Digest, now_us: i64) -> Result<bool, Error> {
        if open::holds(RequestKey { session: &self.session.name, stream: "", request: &request.key }) {
            let hint = "Record or release it, or import in a transaction of its own.";
            return Err(Error::AlreadyBegun { name: request.name(), hint });
        }
        let (lock, probe) = (Tag::request(&digest), request.probe(digest));
        loop {
            let held = lock.is_held_by_another();
            let found = outcome::find(&probe, now_us, Snapshot::Itself)?;
            match found {
                Some(found) if found.outcome.lives_at(now_us) => return Ok(false),
                // It may be about to be recorded. The wait takes no lock.
                _ if held && lock.wait_for_end_of_holder(self.deadline.left_us()) => {}
                _ if held => return Err(Error::WaitRanOut { what: request.name().to_string(), hint: AT_WORK }),
                Some(_) if !lock.try_acquire() => {}
                Some(_) => {
                    outcome::clear(&probe)?;
                    break;
                }
                None => break,
            }
        }
        self.refuse_unfinished(request, digest, now_us)?;
        Ok(true)
    }

    /// Refuses a request that was begun here, committed, and is not done.
    fn refuse_unfinished(&self, request: &Keyed<'_>, digest: Digest, now_us: i64) -> Result<(), Error> {
        let counts = |since| request.expires_at_us(since, self.session.ttl_us()) > now_us;
        let of = Stream { session: &self.session.id, name: "" };
        let lease = lease::find(of, &digest, Snapshot::LatestMvcc)?.filter(|kept| counts(kept.lease.until));
        if let Some(kept) = lease.as_ref().filter(|kept| kept.lease.runs_at(now_us)) {
            return Err(Error::Leased {
                name: request.name(),
                until: pg::describe_moment(kept.lease.until),
                hint: AT_WORK,
            });
        }
        let checkpoint = checkpoint::find(&request.probe(digest), Snapshot::LatestMvcc)?
            .map(|found| found.checkpoint)
            .filter(|checkpoint| counts(checkpoint.written_at));
        if lease.is_none() && checkpoint.is_none() {
            return Ok(());
        }
        let (name, point) = (request.name(), checkpoint.map(|checkpoint| checkpoint.point));
        Err(Error::MustLook { name, point, taken_over: lease.is_some(), given_up: false })
    }

    fn take_into_inbox(
        &self,
        request: &Keyed<'_>,
        row: &Row<'_>,
        [recorded_at, expires_at, now_us]: [i64; 3],
    ) -> Result<Taken, Error> {
        let (response, payload) = (row.response.is_some(), row.payload.is_some() || row.fingerprint.is_some());
        if response || payload || row.failed == Some(true) {
            check_sort(&self.session, false)?;
        }
        let key = inbox::Key { key: &request.key, digest: request.digest(), expires_at };
        let inserted = inbox::insert(&self.session, &[key], recorded_at, now_us, false)?;
        Ok(if inserted == [true] { Taken::Imported } else { Taken::Present })
    }
}

/// The hint where somebody is at work on a request.
const AT_WORK: &str = "Import it again when it is done: what is there already is left as it is. A query for fewer rows meets fewer requests.";

/// The fingerprint of the payload that a request came with.
fn fingerprint(request: &Request<'_>, row: &Row<'_>) -> Result<Option<Fingerprint>, Error> {
    match (row.payload, row.fingerprint) {
        (Some(_), Some(_)) => Err(Error::Invalid {
            message: format!("{} comes with a payload and a fingerprint", request.name()),
            detail: "One of them says the other.".into(),
            hint: "Give the payload, or what idem_fingerprint() gave for it.",
        }),
        (None, Some(fingerprint)) => Ok(Some(fingerprint)),
        (payload, None) => request::fingerprint(request, payload),
    }
}

/// A moment for messages.
fn describe(moment: i64) -> String {
    match moment {
        i64::MIN => "-infinity".into(),
        i64::MAX => "infinity".into(),
        moment => pg::describe_moment(moment),
    }
}
