//! Import: takes outcomes over from any query into a standing session, in one transaction.
//!
//! `idem_import` (`sql/run.sql`) executes a statement that [`begin`] makes of the user's query. It calls [`row`] for each
//! row. So the user's query never runs inside a frame of the library, rows are not kept in memory, and one call writes
//! one row. [`end`] notes the import in the audit; a transaction that has not come to that does not commit
//! (`transaction/importing.rs`).
//!
//! An import holds no lock of a request, since the lock table has no room for a million of them. It is right all the same:
//!
//! * For each row it looks at the request's lock and at what is kept, inserts, and looks once more. If another transaction
//!   has begun the request meanwhile, or has left something of it, the import fails with 40001.
//! * Whoever begins the request takes the lock first and looks then, also for rows that are being inserted. Whoever meets
//!   the row of an import that has not ended fails with 40001 (`Snapshot::WithInserted`). So of an import and a begin at
//!   least one sees the other.
//! * A lease that was committed between the two looks is seen by the second one. One that comes later meets the row.
//!
//! In an inbox the insertion is that of `idem_once`, which takes no lock of a request either. A row that tells of an
//! unfinished request has the request locked, since lease and checkpoint change only under its lock.
//!
//! What becomes of one row is in `imported.rs`.

use crate::arguments;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::model::{Session, StandingSession};
use crate::names;
use crate::pg::{self, Deadline, Own};
use crate::requests::imported::{Import, ImportedRow, Taken};
use crate::requests::keyed::{Keyed, refuse_journal};
use crate::requests::repair;
use crate::sessions::resolve;
use crate::store::audit;
use crate::transaction::importing;
use std::cell::Cell;
use std::rc::Rc;

/// The columns that a query may give, and their types.
const COLUMNS: [(&str, &str); 14] = [
    ("key", "pg_catalog.text"),
    ("response", "pg_catalog.jsonb"),
    ("failed", "pg_catalog.bool"),
    ("recorded_at", "pg_catalog.timestamptz"),
    ("expires_at", "pg_catalog.timestamptz"),
    ("payload", "pg_catalog.jsonb"),
    ("fingerprint", "pg_catalog.uuid"),
    ("status", "pg_catalog.text"),
    ("token", "pg_catalog.int8"),
    ("attempt", "pg_catalog.int4"),
    ("begun_at", "pg_catalog.timestamptz"),
    ("leased_until", "pg_catalog.timestamptz"),
    ("point", "pg_catalog.text"),
    ("state", "pg_catalog.jsonb"),
];

/// The import that was begun last, be it under way or not.
static IMPORT: Own<Option<Rc<Import>>> = Own::new();

/// Begins an import. Gives the statement that imports.
pub fn begin(session: &str, query: &str, reason: &str) -> Result<String, Error> {
    repair::check_reason(reason)?;
    standing(session)?;
    arguments::check_writable("idem_import", || "Outcomes are to be inserted.".into())?;
    let query = query.trim_end_matches(|last: char| last == ';' || last.is_whitespace());
    let values = values(query)?;
    let deadline = Deadline::after(guc::wait_us());
    // Two imports into one session would wait for each other's rows. And the session stays as it is.
    let what = || format!("a change of session \"{session}\", or an import into it,");
    names::standing_session_lock(session).acquire_or_fail(deadline.left_us(), WAIT_BY_SETTING, what)?;
    let (session, role) = (standing(session)?, pg::current_role_name());
    let Some(number) = importing::begin() else {
        return Err(Error::Invalid {
            message: "another import is under way".into(),
            detail: "This transaction has begun one that has not ended, and none can run inside another.".into(),
            hint: "Call idem_import() for one query after the other.",
        });
    };
    let import = Import { number, session, role, deadline, reason: reason.into(), taken: Cell::default() };
    drop(IMPORT.with(|last| last.replace(Rc::new(import))));
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
        Session::Standing(session) if session.dropped_at.is_none() => {
            refuse_journal(&session, "idem_import")?;
            Ok(session)
        }
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
    const HINT: &str = "Give it as a SELECT of the columns key, response, failed, recorded_at, expires_at, payload, fingerprint, by these names, or of those that idem_export() gives; key is a must.";
    let invalid = |what: &str, detail| {
        Err(Error::Invalid { message: format!("the query to import from {what}"), detail, hint: HINT })
    };
    let Some(given) = pg::columns_of(&format!("SELECT * FROM ({query}\n) q")) else {
        return invalid("is not one query", "It is to be one SELECT or VALUES.".into());
    };
    for (place, column) in given.iter().enumerate() {
        if !COLUMNS.iter().any(|(known, _)| known == column) {
            return invalid("has a column of another name", format!("Found \"{column}\"."));
        }
        if given[..place].contains(column) {
            return invalid("has a column twice", format!("Found \"{column}\" again."));
        }
    }
    if !given.iter().any(|column| column == "key") {
        return invalid("has no column \"key\"", format!("Found {}.", given.join(", ")));
    }
    let value = |(name, sql_type): (&str, &str)| match given.iter().any(|column| column == name) {
        true => format!("q.{name}::{sql_type}"),
        false => format!("NULL::{sql_type}"),
    };
    Ok(COLUMNS.map(value).join(", "))
}

/// The import that is under way, if it has this number.
fn under_way(number: Option<i64>) -> Result<Rc<Import>, Error> {
    let import = IMPORT.with(|import| import.clone()).filter(|import| Some(import.number) == number);
    import.filter(|_| importing::number() == number).ok_or_else(|| Error::Invalid {
        message: "no such import is under way".into(),
        detail: "This function belongs to a call of idem_import().".into(),
        hint: "Call idem_import().",
    })
}

/// Ends the import, and notes it.
pub fn end() -> Result<(), Error> {
    let import = under_way(importing::number())?;
    importing::end();
    IMPORT.take();
    let [imported, present, expired] = import.taken.get();
    let found = format!("{imported} imported, {present} there already, {expired} expired");
    audit::note("import", &import.session.name, "", Some(&import.reason), &found);
    Ok(())
}

/// Imports a row.
pub fn row(number: i64, row: &ImportedRow<'_>) -> Result<Taken, Error> {
    let import = under_way(Some(number))?;
    let mut counts = import.taken.get();
    let Some(key) = row.key else {
        return Err(Error::Invalid {
            message: format!("row {} of the query to import from has no key", counts.iter().sum::<u64>() + 1),
            detail: "Found NULL.".into(),
            hint: "Leave such rows out, or give them a key.",
        });
    };
    let taken = import.take(Keyed::of(Rc::clone(&import.session), key, None)?, row)?;
    counts[taken as usize] += 1;
    import.taken.set(counts);
    Ok(taken)
}
